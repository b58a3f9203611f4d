// OutputFile: a file that appears under its name only when it is complete.
//
// Everything goes to a temporary file beside the target that takes its name in publish(). Where the file
// system can, the temporary has no name at all, and is gone even when the process is killed; elsewhere it is
// PATH.tmp-PID, which the destructor removes. Ownership: owns the temporary. Not thread-safe. Throws
// Error(io) when the disk refuses, naming the file, and the temporary where it has a name; Error(usage) for
// an empty name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tandem {

class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  uint64_t n_bytes() const { return n_written_; }  // so far

  // Everything is on disk, durably, but not yet under the final name: of several files that belong together
  // all are completed before the first is published.
  void complete();
  // Completes the file, if that is still to be done, and gives it its name.
  void publish();

 private:
  void open_temporary();
  std::string descriptor_path() const;
  void flush();
  [[noreturn]] void fail(const char* doing) const;

  std::string path_, temporary_path_;
  int fd_ = -1;
  bool named_ = false;  // the temporary has a name
  bool complete_ = false;
  std::vector<std::byte> buffer_;
  uint64_t n_written_ = 0;  // buffered bytes included
};

// Before long work whose result goes there: throws what OutputFile would throw at its beginning.
void check_writable(const std::string& path);

}  // namespace tandem
