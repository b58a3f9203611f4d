#include "tools/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/terminal.h"

namespace tandem::tools {
namespace {

constexpr size_t kBufferBytes = 64 * 1024;

// Returns the number of bytes written, at least 1.
size_t write_some(int descriptor, std::string_view text) {
  while (true) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n > 0) return static_cast<size_t>(n);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {  // another program made stdout non-blocking
      pollfd wait{descriptor, POLLOUT, 0};
      poll(&wait, 1, -1);
      continue;
    }
    if (n < 0 && errno == EPIPE) throw ClosedPipe();
    throw_error(ErrorCode::io, "stdout: write failed: {}", n < 0 ? strerror(errno) : "nothing was written");
  }
}

}  // namespace

Output::Output(int descriptor) : descriptor_(descriptor), terminal_(isatty(descriptor) == 1) {}

Output::~Output() {
  try {
    flush();
  } catch (const Error&) {}
}

void Output::write(std::string_view text) {
  buffer_ += text;
  if (buffer_.size() >= kBufferBytes) flush();
}

void Output::write_text(std::string_view text) {
  terminal_ ? write(harmless(text)) : write(text);
}

void Output::flush() {
  std::string pending;
  pending.swap(buffer_);  // so that the destructor does not retry a failed write
  std::string_view rest = pending;
  while (!rest.empty()) rest.remove_prefix(write_some(descriptor_, rest));
  pending.clear();
  buffer_.swap(pending);  // keep the capacity
}

}  // namespace tandem::tools
