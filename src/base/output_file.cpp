#include "base/output_file.h"

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
  create();
  buffer_.reserve(kBufferBytes);
}

void OutputFile::create() {
  int error = 0;
  const auto& elsewhere = creator_of_temporaries();
  file_ =
      elsewhere ? elsewhere(path_, temporary_path_, error) : create_temporary(path_, temporary_path_, error);
  if (file_) return;
  errno = error;
  fail("create");
}

OutputFile::~OutputFile() = default;

void OutputFile::fail(const char* doing) const {
  const char* why = strerror(errno);
  const uint64_t n_done = n_written_ - buffer_.size();
  const std::string where = n_done > 0 ? format(
                                             " after the first {}"
                                             " bytes",
                                             n_done)
                                       : "";
  throw_error(ErrorCode::io, "{}: cannot {}{}: {}", (file_ && file_->named() ? temporary_path_ : path_),
              doing, where, why);
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
    const ssize_t n = ::write(file_->fd(), buffer_.data() + done, buffer_.size() - done);
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
  if (fsync(file_->fd()) != 0) fail("sync");
  complete_ = true;
}

void OutputFile::publish() {
  TANDEM_CHECK(file_ != nullptr);
  if (!complete_) complete();
  const TemporaryFile::Failure failure = file_->publish();
  if (failure.error != 0) {
    errno = failure.error;
    fail(failure.in == TemporaryFile::Failure::In::name ? "name" : "rename to its final name");
  }
  file_.reset();
}

void check_writable(const std::string& path) {
  const OutputFile file(path);
}

}  // namespace tandem
