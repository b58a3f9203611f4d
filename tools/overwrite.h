// Refuses to write an output over its input, under any name or link: a failure would leave neither file.
// Throws Error(usage) that names both.
#pragma once

#include <span>
#include <string>

#include "gguf/file.h"

namespace tandem::tools {

void refuse_to_overwrite(const std::string& input, std::span<const std::string> outputs);
void refuse_to_overwrite(const GgufFile& input, std::span<const std::string> outputs);  // checks every part

// Refuses to append a log to a file that holds something else, such as a model: it must be new, empty, a log of
// this program, or no regular file.
void check_log_file(const std::string& path);

}  // namespace tandem::tools
