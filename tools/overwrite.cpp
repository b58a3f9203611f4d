#include "tools/overwrite.h"

#include <filesystem>
#include <fstream>

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

void check_log_file(const std::string& path) {
  constexpr std::string_view kStart = "tandem: ";  // of every line of a log
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::ifstream in(path, std::ios::binary);
  std::string start(kStart.size(), '\0');
  in.read(start.data(), static_cast<std::streamsize>(start.size()));
  if (in.gcount() == 0 || start == kStart) return;
  throw_error(ErrorCode::usage, "{}: exists and is not a log of this program; log to another file",
              printable(path, 4096));
}

}  // namespace tandem::tools
