// Shared by the fuzz targets: the parts of an input, an input as a file or a folder, and the errors that are allowed.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "support/gguf_bytes.h"

namespace tandem::fuzz {

// An input, taken from its start. Past the end there are zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto first = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return first;
  }
  int64_t between(int64_t min, int64_t max) {
    int64_t n = byte();
    if (max - min > 0xff) n = n << 8 | byte();
    return min + n % (max - min + 1);
  }
  // Up to the next newline, which is dropped.
  std::string_view line() {
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return text;
  }
  std::string_view rest() const { return rest_; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(rest_)); }

 private:
  std::string_view rest_;
};

// A file in memory, for readers that want a path.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {}
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& set(std::string_view bytes) {
    TANDEM_CHECK(ftruncate(descriptor_, 0) == 0);
    TANDEM_CHECK(pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    TANDEM_CHECK(lseek(descriptor_, 0, SEEK_SET) == 0);
    return path_;
  }
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
  std::string path_ = "/proc/self/fd/" + std::to_string(descriptor_);
};

// A folder in which one file is the input.
class InputFolder {
 public:
  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return directory_.path(name); }
  void set(const std::string& name, std::string_view bytes) {
    file_.set(bytes);
    if (link_ == path(name)) return;
    std::filesystem::remove(link_);
    link_ = path(name);
    std::filesystem::create_symlink(file_.path(), link_);
  }

 private:
  test::TempDir directory_;
  std::string path_ = directory_.path("");
  MemoryFile file_;
  std::string link_ = directory_.path("input");
};

// Runs `read` and returns whether it threw nothing. It may throw an Error of these kinds, in one printable line.
template <class Read>
bool accepts(std::initializer_list<ErrorCode> allowed, Read&& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    const std::string_view text = error.what();
    const bool is_allowed = std::find(allowed.begin(), allowed.end(), error.code()) != allowed.end();
    const bool is_printable = !text.empty() && std::none_of(text.begin(), text.end(), [](char c) {
      return (c >= 0 && c < ' ') || c == 0x7f;
    });
    if (!is_allowed || !is_printable) {
      fprintf(stderr, "Error of code %d: %s\n", static_cast<int>(error.code()), error.what());
    }
    TANDEM_CHECK(is_allowed);
    TANDEM_CHECK(is_printable);
    return false;
  }
}

inline const bool no_messages = (set_log_level(LogLevel::quiet), true);

}  // namespace tandem::fuzz
