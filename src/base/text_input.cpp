#include "base/text_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/open_file.h"

namespace tandem {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 10;

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd > STDERR_FILENO) close(fd);
  }
};

struct stat status_of(int fd, const std::string& name) {
  struct stat status {};
  if (fstat(fd, &status) != 0) throw_error(ErrorCode::io, "{}: cannot read: {}", name, strerror(errno));
  return status;
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "a socket";
}

// Up to max_bytes + 1 bytes.
std::string read_at_most(int fd, const std::string& name, size_t max_bytes) {
  std::string text;
  for (size_t n_read = 0;;) {
    text.resize(std::min(std::max(n_read + kChunkBytes, n_read + n_read / 2), max_bytes + 1));
    const ssize_t n = ::read(fd, text.data() + n_read, text.size() - n_read);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_error(ErrorCode::io, "{}: cannot read: {}", name, strerror(errno));
    n_read += static_cast<size_t>(n);
    if (n > 0 && n_read <= max_bytes) continue;
    text.resize(n_read);
    return text;
  }
}

std::string read_file(int fd, const std::string& name, const struct stat& status, size_t max_bytes) {
  if (static_cast<uintmax_t>(std::max<off_t>(status.st_size, 0)) > max_bytes) {
    throw_error(ErrorCode::bad_file, "{}: found {} bytes, needed at most {}", name, status.st_size,
                max_bytes);
  }
  std::string text = read_at_most(fd, name, max_bytes);  // it may have grown
  if (text.size() > max_bytes) {
    throw_error(ErrorCode::bad_file, "{}: found more than {} bytes, needed at most that", name, max_bytes);
  }
  return text;
}

std::string read_stream(int fd, const std::string& name, mode_t mode, size_t max_bytes) {
  max_bytes = std::min(max_bytes, kMaxStreamBytes);
  std::string text = read_at_most(fd, name, max_bytes);
  if (text.size() > max_bytes) {
    throw_error(ErrorCode::bad_file,
                "{}: more than {} bytes from {}, which is no regular file: needed at most that", name,
                max_bytes, kind_of(mode));
  }
  return text;
}

}  // namespace

std::string read_text(const std::string& path, size_t max_bytes) {
  const bool is_stdin = path == "-";
  const std::string name = is_stdin ? "stdin" : printable(path, 4096);
  const Descriptor file{is_stdin ? STDIN_FILENO : open_for_reading(path)};
  if (file.fd < 0) throw_error(ErrorCode::io, "{}: cannot open: {}", name, strerror(errno));
  const struct stat status = status_of(file.fd, name);
  if (S_ISREG(status.st_mode)) return read_file(file.fd, name, status, max_bytes);
  return read_stream(file.fd, name, status.st_mode, max_bytes);
}

std::string read_regular_file(const std::string& path, size_t max_bytes) {
  const std::string name = printable(path, 4096);
  const Descriptor file{open_for_reading(path, O_NONBLOCK)};
  if (file.fd < 0) throw_error(ErrorCode::io, "{}: cannot open: {}", name, strerror(errno));
  const struct stat status = status_of(file.fd, name);
  if (!S_ISREG(status.st_mode)) {
    throw_error(ErrorCode::bad_file, "{}: not a regular file: found {}", name, kind_of(status.st_mode));
  }
  return read_file(file.fd, name, status, max_bytes);
}

std::string read_optional_file(const std::string& path, size_t max_bytes) {
  try {
    return read_regular_file(path, max_bytes);
  } catch (const Error&) {
    return "";
  }
}

}  // namespace tandem
