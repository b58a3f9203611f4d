// A command that makes a file of another never writes over that other, under whatever name or link: should it
// fail, nothing would be left. Throws Error(usage) naming both.
#pragma once

#include <span>
#include <string>

#include "gguf/file.h"

namespace tandem::tools {

void refuse_to_overwrite(const std::string& input, std::span<const std::string> outputs);
void refuse_to_overwrite(const GgufFile& input, std::span<const std::string> outputs);  // any part of it

}  // namespace tandem::tools
