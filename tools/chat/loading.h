// Reads a large model file into memory before the first message, with a progress bar. Sequential reading is
// far faster than the page faults of a first prompt.
#pragma once

#include "engine/model.h"

namespace tandem::tools {

// Does nothing if the file is larger than 80% of memory. Throws Error(interrupted) after a Ctrl-C.
void read_ahead(const Model& model, bool show_progress);

}  // namespace tandem::tools
