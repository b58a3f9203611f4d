// OutputFile: a file that appears under its name only when it is complete.
//
// Writes to a temporary file in the target's folder, which publish() renames. Where the filesystem allows it,
// the temporary is unnamed and disappears even if the process is killed; otherwise it is PATH.tmp-PID, which
// the destructor removes. Ownership: owns the temporary. Not thread-safe. Throws Error(io) when writing
// fails, with the file's name (the temporary's, if it has one), and Error(usage) for an empty name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/temporary_file.h"

namespace tandem {

class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  uint64_t n_bytes() const { return n_written_; }  // so far

  // Writes and syncs everything, without the final name yet: with several files that belong together,
  // complete all of them before publishing the first.
  void complete();
  // Completes the file, if complete() was not called, and gives it its final name.
  void publish();

 private:
  void create();
  void flush();
  [[noreturn]] void fail(const char* doing) const;

  std::string path_, temporary_path_;
  std::unique_ptr<TemporaryFile> file_;  // null: published
  bool complete_ = false;
  std::vector<std::byte> buffer_;
  uint64_t n_written_ = 0;  // buffered bytes included
};

// Throws if OutputFile could not be opened for this path. For use before long work that ends in writing it.
void check_writable(const std::string& path);

}  // namespace tandem
