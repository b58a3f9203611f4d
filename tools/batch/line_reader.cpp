#include "tools/batch/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/interrupt.h"

namespace tandem::tools {

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == line.npos;
}

// Takes the line at begin_ if its end is in the buffer or the input is at its end. Skips the rest of a line
// that is too long.
bool LineReader::take(std::string& line) {
  const size_t found = buffer_.find('\n', searched_);
  const bool whole = found != std::string::npos;
  const size_t end = whole ? found : buffer_.size();
  if (!whole && !at_end_) {
    searched_ = end;
    if (end - begin_ <= kMaxBytes) return false;
    n_bytes_ += end - begin_;
    if (skipping_ && n_bytes_ - line_start_ > kMaxSkippedBytes) {
      throw_error(ErrorCode::bad_file, "{}: line {} is longer than {} MiB", name_, n_lines_ + 1,
                  kMaxSkippedBytes >> 20);
    }
    buffer_.clear();
    begin_ = searched_ = 0;
    skipping_ = true;
    return false;
  }
  if (!whole && end == begin_ && !skipping_) return false;  // the end
  too_long_ = skipping_ || end - begin_ > kMaxBytes;
  skipping_ = false;
  line.assign(buffer_, begin_, too_long_ ? 0 : end - begin_);
  ended_ = whole;
  const size_t next = end + (whole ? 1 : 0);
  n_bytes_ += next - begin_;
  begin_ = searched_ = next;
  line_start_ = n_bytes_;
  ++n_lines_;
  return true;
}

// Reads more input. False if none is available now.
bool LineReader::fill(Wait wait) {
  constexpr size_t kChunk = 1 << 16;
  if (wait == Wait::no) {
    pollfd p{descriptor_, POLLIN, 0};
    if (poll(&p, 1, 0) == 0) return false;
  }
  buffer_.erase(0, begin_);
  searched_ -= begin_;
  begin_ = 0;
  const size_t had = buffer_.size();
  buffer_.resize(had + kChunk);
  const ssize_t n = read(descriptor_, buffer_.data() + had, kChunk);
  const int error = errno;
  buffer_.resize(had + static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (n < 0 && error == EINTR) return !interrupted();
  if (n < 0) throw_error(ErrorCode::io, "{}: read failed: {}", name_, strerror(error));
  at_end_ = n == 0;
  return true;
}

LineReader::Result LineReader::next(std::string& line, Wait wait) {
  for (;;) {
    if (take(line)) return Result::line;
    if (at_end_) return Result::end;
    if (!fill(wait)) return Result::not_yet;
  }
}

}  // namespace tandem::tools
