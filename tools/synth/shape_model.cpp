#include "tools/synth/shape_model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace tandem::tools {
namespace {

// A file without a name; the mapping of a model keeps its contents after it is closed.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& name) : name_(name), fd_(memfd_create(name.c_str(), MFD_CLOEXEC)) {
    if (fd_ < 0) fail();
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno != EINTR) fail();
      if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }
  void grow(uint64_t n_bytes) {
    if (ftruncate(fd_, static_cast<off_t>(n_bytes)) != 0) fail();
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  [[noreturn]] void fail() const {
    throw_error(ErrorCode::io, "{}: cannot make a file in memory: {}", name_, std::strerror(errno));
  }
  std::string name_;
  int fd_;
};

}  // namespace

std::unique_ptr<Model> load_shape(const Shape& shape, const SynthOptions& synth, ModelOptions options) {
  constexpr int kTokens = 2000;  // nobody tokenizes with it, and 128,000 take a second
  SynthOptions with_few_tokens = synth;
  with_few_tokens.max_tokens = kTokens;
  const GgufHeader header = synthetic_header(shape, with_few_tokens);
  const std::vector<std::byte> bytes = header.bytes();
  MemoryFile file{std::string(shape.name)};
  file.write(bytes);
  file.grow(bytes.size() + header.n_data_bytes());
  options.path = file.path();
  options.open = {};
  options.open.prefetch = false;  // a hole needs none
  return Model::load(options);
}

}  // namespace tandem::tools
