#include "tools/overwrite.h"

#include <filesystem>

#include "base/error.h"

namespace tandem::tools {

void refuse_to_overwrite(const std::string& input, std::span<const std::string> outputs) {
  for (const std::string& output : outputs) {
    std::error_code no_such_file;
    if (!std::filesystem::equivalent(input, output, no_such_file)) continue;
    throw_error(ErrorCode::usage, "{}: the output is the input file ({}); write to another file", output,
                input);
  }
}

void refuse_to_overwrite(const GgufFile& input, std::span<const std::string> outputs) {
  for (size_t part = 0; part < input.n_parts(); ++part) {
    refuse_to_overwrite(input.part_path(static_cast<int>(part)), outputs);
  }
}

}  // namespace tandem::tools
