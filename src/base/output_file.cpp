#include "base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace tandem {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

}  // namespace

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), temporary_path_(path_ + ".tmp-" + std::to_string(getpid())) {
  if (path_.empty()) throw_error(ErrorCode::usage, "the output file name is empty");
  struct stat status;
  if (stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {  // never replace a device or folder
    throw_error(ErrorCode::io, "{}: cannot write: it exists and is not a regular file", path_);
  }
  open_temporary();
  buffer_.reserve(kBufferBytes);
}

// linkat() gives an unnamed file a name through this link.
std::string OutputFile::descriptor_path() const {
  return "/proc/self/fd/" + std::to_string(fd_);
}

void OutputFile::open_temporary() {
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  fd_ = open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (fd_ >= 0 && access(descriptor_path().c_str(), F_OK) == 0) return;
  if (fd_ >= 0) close(fd_);
  fd_ = open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("create");
  named_ = true;
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  close(fd_);
  if (named_) unlink(temporary_path_.c_str());
}

void OutputFile::fail(const char* doing) const {
  const char* why = strerror(errno);
  const uint64_t n_done = n_written_ - buffer_.size();
  const std::string where = n_done > 0 ? format(
                                             " after the first {}"
                                             " bytes",
                                             n_done)
                                       : "";
  throw_error(ErrorCode::io, "{}: cannot {}{}: {}", (named_ ? temporary_path_ : path_), doing, where, why);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  TANDEM_CHECK(!complete_);
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + n);
    n_written_ += n;
    bytes = bytes.subspan(n);
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void OutputFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int why = errno;
      buffer_.erase(buffer_.begin(), buffer_.begin() + done);
      errno = why;
      fail("write");
    }
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
}

void OutputFile::complete() {
  flush();
  if (fsync(fd_) != 0) fail("sync");
  complete_ = true;
}

void OutputFile::publish() {
  TANDEM_CHECK(fd_ >= 0);
  if (!complete_) complete();
  if (!named_) {  // linkat cannot replace a file: link under the temporary name, then rename
    unlink(temporary_path_.c_str());
    if (linkat(AT_FDCWD, descriptor_path().c_str(), AT_FDCWD, temporary_path_.c_str(), AT_SYMLINK_FOLLOW) !=
        0) {
      fail("name");
    }
    named_ = true;
  }
  if (rename(temporary_path_.c_str(), path_.c_str()) != 0) fail("rename to its final name");
  close(fd_);
  fd_ = -1;
}

void check_writable(const std::string& path) {
  const OutputFile file(path);
}

}  // namespace tandem
