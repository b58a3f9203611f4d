// MappedFile: the bytes of one file, mapped read-only or read into memory; and what happens when a mapped
// file shrinks or its disk goes away while we read it (SIGBUS).
//
// The first mapping installs a SIGBUS handler. For an address inside one of our mappings it prints one line
// naming the file and the offset to stderr and leaves with exit code 5 (io); other SIGBUS go to the handler
// that was there. Threads: open and close from any; the bytes may be read from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tandem {

struct OpenOptions {
  bool mmap = true;      // false (--no-mmap): read the file into memory instead
  bool mlock = false;    // keep it from being paged out; a warning when the system does not allow it
  bool prefetch = true;  // ask the system to read ahead the whole mapping
  uint64_t prefetch_limit = UINT64_MAX;  // but not of a model that is larger than this
  bool numa = false;  // access is scattered over nodes: no read-ahead, pages come where they are touched
  bool metadata_only = false;  // the tensor data will not be read: always mapped, never prefetched or locked
};

class MappedFile {
 public:
  // Throws Error(io) when `path` cannot be opened or read, Error(bad_file) when it is not a regular file
  // (a FIFO never blocks), Error(out_of_memory) when there is no room for a copy.
  static MappedFile open(const std::string& path, const OpenOptions& options);
  // Bytes that live elsewhere and outlive the object.
  static MappedFile view(std::span<const std::byte> bytes, const std::string& name);

  MappedFile(MappedFile&&) noexcept = default;
  MappedFile& operator=(MappedFile&&) noexcept = default;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Asks the system to read ahead all of it.
  void prefetch() const;
  // Whether the bytes are a mapping of the file that the system may drop and fill again.
  bool is_evictable() const { return evictable_; }

 private:
  MappedFile() = default;
  struct Holder;  // unmaps or frees
  struct HolderDelete {
    void operator()(Holder* holder) const;
  };

  std::string path_;
  std::span<const std::byte> bytes_;
  bool evictable_ = false;
  std::unique_ptr<Holder, HolderDelete> holder_;
};

}  // namespace tandem
