// Refuses to write an output over its input, under any name or link: a failure would leave neither file.
// Throws Error(usage) that names both.
#pragma once

#include <span>
#include <string>

#include "gguf/file.h"

namespace tandem::tools {

void refuse_to_overwrite(const std::string& input, std::span<const std::string> outputs);
void refuse_to_overwrite(const GgufFile& input, std::span<const std::string> outputs);  // checks every part

}  // namespace tandem::tools
