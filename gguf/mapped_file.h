// MappedFile: the bytes of one file, mapped read-only or read into memory, with a SIGBUS guard for mapped
// files that shrink or whose disk goes away while they are read.
//
// The first mapping installs a SIGBUS handler. For an address inside one of our mappings it prints one line
// with the file and the offset to stderr and exits with code 5 (io); any other SIGBUS goes to the previous
// handler. Threads: open, close and read from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/numa.h"

namespace tandem {

struct OpenOptions {
  bool mmap = true;                      // false: read the file into memory instead
  bool mlock = false;                    // lock it in memory; a warning when the system does not allow it
  bool prefetch = true;                  // read the whole mapping ahead
  uint64_t prefetch_limit = UINT64_MAX;  // no read-ahead for models larger than this, in bytes
  bool numa = false;                     // no read-ahead: pages land on the node that first touches them
  bool metadata_only = false;            // tensor data is not read: always mapped, never prefetched or locked
  // Nodes to copy a model to, unless its files are larger than node_copy_limit: each has its share of the rows of every matrix.
  NodeShares nodes = {};
  uint64_t node_copy_limit = UINT64_MAX;  // bytes
};

// A part of a file that goes to one node when it is copied into memory; the rest is interleaved over all.
struct NodeRange {
  uint64_t offset = 0, n_bytes = 0;
  int node_id = 0;
};

// What changes when somebody writes to a file or puts another in its place.
struct FileStamp {
  uint64_t n_bytes = 0;
  int64_t modified_ns = 0,
          changed_ns = 0;  // since 1970; of the contents, and of the contents or the file's entry
};

// Asks the system to read these bytes of a mapped file ahead. Only a hint.
void read_ahead(std::span<const std::byte> bytes);

class MappedFile {
 public:
  // Throws Error(io) when `path` cannot be opened or read, Error(bad_file) when it is not a regular file
  // (a FIFO never blocks), Error(out_of_memory) when there is no memory for a copy.
  static MappedFile open(const std::string& path, const OpenOptions& options);
  // Reads the file into memory, on huge pages where the system grants them, divided over options.nodes. Throws as open() does.
  static MappedFile copy_to_nodes(const std::string& path, const OpenOptions& options,
                                  std::span<const NodeRange> ranges);
  // A view of bytes that live elsewhere and outlive the object.
  static MappedFile view(std::span<const std::byte> bytes, const std::string& name);

  MappedFile(MappedFile&&) noexcept = default;
  MappedFile& operator=(MappedFile&&) noexcept = default;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Of the file when it was opened; all 0 of a view.
  const FileStamp& stamp() const { return stamp_; }
  // Asks the system to read the whole file ahead.
  void prefetch() const;
  // Returns whether the bytes are a mapping of the file whose pages the system may drop and read again.
  bool is_evictable() const { return evictable_; }
  // Moves these bytes of the file to memory, where they are not evictable: their addresses stay the same (held_pages.h), and
  // threads may read them meanwhile. Returns false if there is no memory for that.
  bool hold(std::span<const std::byte> bytes) const;

 private:
  MappedFile() = default;
  static MappedFile open_placed(const std::string& path, const OpenOptions& options, bool map,
                                std::span<const NodeRange> ranges);
  struct Holder;  // unmaps or frees
  struct HolderDelete {
    void operator()(Holder* holder) const;
  };

  std::string path_;
  std::span<const std::byte> bytes_;
  FileStamp stamp_;
  bool evictable_ = false;
  std::unique_ptr<Holder, HolderDelete> holder_;
};

}  // namespace tandem
