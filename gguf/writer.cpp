#include "gguf/writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {
namespace {

constexpr uint64_t kDefaultAlignment = 32;
constexpr size_t kBufferBytes = size_t{1} << 20;

// The header, as it will stand in the file.
struct Bytes {
  std::vector<std::byte> bytes;

  void add(std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); }
  template <class T>
  void number(T value) {
    add(std::as_bytes(std::span(&value, 1)));
  }
  void string(std::string_view text) {
    number(static_cast<uint64_t>(text.size()));
    add(std::as_bytes(std::span(text)));
  }
  void value(const Value& value) {
    number(static_cast<uint32_t>(value.type()));
    if (value.type() == ValueType::string) return string(value.text());
    if (!value.is_array()) return add(value.raw());
    number(static_cast<uint32_t>(value.element_type()));
    number(static_cast<uint64_t>(value.size()));
    if (value.element_type() != ValueType::string) return add(value.raw());
    for (const std::string_view text : value.strings()) string(text);
  }
};

}  // namespace

GgufWriter::GgufWriter(const std::string& path, uint64_t alignment)
    : path_(path),
      temporary_path_(path + ".tmp-" + std::to_string(getpid())),
      alignment_(alignment),
      metadata_(path) {
  TANDEM_CHECK(alignment >= 8 && (alignment & (alignment - 1)) == 0);
  if (alignment != kDefaultAlignment)
    metadata_.set("general.alignment", Value(static_cast<uint32_t>(alignment)));
  struct stat status;
  if (stat(path.c_str(), &status) == 0 &&
      !S_ISREG(status.st_mode)) {  // do not replace a device or a directory
    throw_error(ErrorCode::io, "%s: cannot write: it exists and is not a regular file", path.c_str());
  }
  open_temporary();
  buffer_.reserve(kBufferBytes);
}

// By a link of /proc a file without a name can be given one.
std::string GgufWriter::descriptor_path() const {
  return "/proc/self/fd/" + std::to_string(fd_);
}

void GgufWriter::open_temporary() {
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  fd_ = open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (fd_ >= 0 && access(descriptor_path().c_str(), F_OK) == 0) return;
  if (fd_ >= 0) close(fd_);
  fd_ = open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("create");
  named_ = true;
}

GgufWriter::~GgufWriter() {
  if (fd_ < 0) return;
  close(fd_);
  if (named_) unlink(temporary_path_.c_str());
}

void GgufWriter::fail(const char* doing) const {
  throw_error(ErrorCode::io, "%s: cannot %s (%" PRIu64 " bytes so far): %s",
              (named_ ? temporary_path_ : path_).c_str(), doing, n_written_ - buffer_.size(),
              strerror(errno));
}

void GgufWriter::add_tensor(std::string_view name, DType dtype, std::span<const int64_t> dims) {
  TANDEM_CHECK(!header_written_ && !dims.empty() && dims.size() <= 4);
  const DTypeInfo& info = dtype_info(dtype);
  TANDEM_CHECK(dims[0] % info.block_elements == 0);
  uint64_t n_bytes = row_bytes(dtype, dims[0]);
  for (const int64_t size : dims) TANDEM_CHECK(size > 0);
  for (const int64_t size : dims.subspan(1)) {
    const auto product = checked_mul(n_bytes, static_cast<uint64_t>(size));
    TANDEM_CHECK(product.has_value());
    n_bytes = *product;
  }
  const uint64_t offset =
      tensors_.empty() ? 0 : align_up(tensors_.back().offset + tensors_.back().n_bytes, alignment_);
  tensors_.push_back({std::string(name), dtype, {dims.begin(), dims.end()}, n_bytes, offset});
}

uint64_t GgufWriter::n_tensor_bytes() const {
  uint64_t n = 0;
  for (const Tensor& tensor : tensors_) n += tensor.n_bytes;
  return n;
}

void GgufWriter::write_header() {
  Bytes header;
  header.add(std::as_bytes(std::span("GGUF", 4)));
  header.number(uint32_t{3});
  header.number(static_cast<uint64_t>(tensors_.size()));
  header.number(static_cast<uint64_t>(metadata_.entries().size()));
  for (const Metadata::Entry& entry : metadata_.entries()) {
    header.string(entry.key);
    header.value(entry.value);
  }
  for (const Tensor& tensor : tensors_) {
    header.string(tensor.name);
    header.number(static_cast<uint32_t>(tensor.dims.size()));
    for (const int64_t size : tensor.dims) header.number(size);
    header.number(static_cast<uint32_t>(tensor.dtype));
    header.number(tensor.offset);
  }
  header_written_ = true;
  put(header.bytes);
  pad_to_alignment();
}

void GgufWriter::begin_tensor(std::string_view name) {
  if (!header_written_) write_header();
  TANDEM_CHECK(n_left_ == 0 && n_begun_ < tensors_.size() && tensors_[n_begun_].name == name);
  pad_to_alignment();
  n_left_ = tensors_[n_begun_++].n_bytes;
}

void GgufWriter::append(std::span<const std::byte> bytes) {
  TANDEM_CHECK(bytes.size() <= n_left_);
  n_left_ -= bytes.size();
  put(bytes);
}

void GgufWriter::put(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    n_written_ += n;
    bytes = bytes.subspan(n);
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void GgufWriter::pad_to_alignment() {
  const std::vector<std::byte> zeros(align_up(n_written_, alignment_) - n_written_);
  put(zeros);
}

void GgufWriter::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write");
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
}

void GgufWriter::complete() {
  if (!header_written_) write_header();
  TANDEM_CHECK(fd_ >= 0 && n_left_ == 0 && n_begun_ == tensors_.size());
  pad_to_alignment();  // some readers want the last tensor padded too
  flush();
  if (fsync(fd_) != 0) fail("sync");
  complete_ = true;
}

void GgufWriter::finish() {
  if (!complete_) complete();
  if (!named_) {  // a link cannot replace a file, so it is linked beside the target and renamed
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

}  // namespace tandem
