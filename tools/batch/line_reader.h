// LineReader: the lines of a file or a pipe, one after the other, however large it is. Throws Error(io).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::tools {

class LineReader {
 public:
  // Does not own the descriptor. `name` is what errors start with.
  LineReader(int descriptor, std::string name) : descriptor_(descriptor), name_(std::move(name)) {}

  enum class Result { line, end, not_yet };
  // The next line, without its end. Where it is not there yet, as in a pipe whose writer takes his time,
  // waits for it until a Ctrl-C, or not at all.
  enum class Wait { yes, no };
  Result next(std::string& line, Wait wait = Wait::yes);

  int64_t n_lines() const { return n_lines_; }  // so far; the number of the last one, counted from 1
  // Whether the last line had its newline, and the bytes up to its end.
  bool ended() const { return ended_; }
  uint64_t n_bytes() const { return n_bytes_; }
  // Whether the last line was longer than kLongest and so is not all there.
  bool too_long() const { return too_long_; }
  static constexpr size_t kLongest = size_t{64} << 20;

 private:
  bool fill(Wait wait);
  bool take(std::string& line);

  int descriptor_;
  std::string name_;
  std::string buffer_;
  size_t begin_ = 0, searched_ = 0;  // in the buffer
  bool at_end_ = false, ended_ = true, too_long_ = false, skipping_ = false;
  int64_t n_lines_ = 0;
  uint64_t n_bytes_ = 0;
};

// Nothing but white space.
bool is_blank(std::string_view line);

}  // namespace tandem::tools
