// LineReader: reads a file or a pipe of any size line by line. Throws Error(io).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::tools {

class LineReader {
 public:
  // Does not own the descriptor. Errors start with `name`.
  LineReader(int descriptor, std::string name) : descriptor_(descriptor), name_(std::move(name)) {}

  enum class Result { line, end, not_yet };
  // Reads the next line, without its newline. If a pipe has no complete line yet, Wait::yes waits for it (or
  // for a Ctrl-C) and Wait::no returns not_yet.
  enum class Wait { yes, no };
  Result next(std::string& line, Wait wait = Wait::yes);

  int64_t n_lines() const { return n_lines_; }   // lines read so far = number of the last line, from 1
  bool ended() const { return ended_; }          // whether the last line had its newline
  uint64_t n_bytes() const { return n_bytes_; }  // up to the end of the last line
  bool too_long() const { return too_long_; }    // the last line exceeded kMaxBytes and was dropped
  static constexpr size_t kMaxBytes = size_t{64} << 20;
  // A longer line is no input but a mistake, such as a device that never ends: Error(bad_file).
  static constexpr uint64_t kMaxSkippedBytes = uint64_t{256} << 20;

 private:
  bool fill(Wait wait);
  bool take(std::string& line);

  int descriptor_;
  std::string name_;
  std::string buffer_;
  size_t begin_ = 0, searched_ = 0;  // in the buffer
  bool at_end_ = false, ended_ = true, too_long_ = false, skipping_ = false;
  int64_t n_lines_ = 0;
  uint64_t n_bytes_ = 0, line_start_ = 0;
};

// Whether the line is empty or only white space.
bool is_blank(std::string_view line);

}  // namespace tandem::tools
