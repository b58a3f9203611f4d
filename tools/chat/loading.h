// Reading a big model file into memory before the first question, with a progress bar: in order it is read
// far faster than where the first prompt happens to touch it.
#pragma once

#include "engine/model.h"

namespace tandem::tools {

// Does nothing for a file that memory cannot hold. Throws Error(interrupted) after a Ctrl-C.
void read_ahead(const Model& model, bool show_progress);

}  // namespace tandem::tools
