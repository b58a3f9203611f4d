#include "gguf/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/open_file.h"
#include "gguf/held_pages.h"
#include "gguf/read_whole.h"
#include "gguf/sigbus.h"

namespace tandem {

// A mapping of a file (guarded against SIGBUS) or of anonymous memory.
struct MappedFile::Holder {
  void* address = nullptr;
  size_t n_bytes = 0;
  SigbusRange* guard = nullptr;
  HeldPages held;

  Holder() = default;
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() {
    if (guard) unguard_range(guard);
    if (address) munmap(address, n_bytes);
  }
};

void MappedFile::HolderDelete::operator()(Holder* holder) const {
  delete holder;
}

namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

int64_t nanoseconds(const timespec& time) {
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// Returns the stamp of the regular file behind `fd`, which is not empty.
FileStamp regular_stamp(int fd, const std::string& path) {
  struct stat status;
  if (fstat(fd, &status) != 0) throw_error(ErrorCode::io, "{}: cannot stat: {}", path, strerror(errno));
  if (!S_ISREG(status.st_mode)) {
    throw_error(ErrorCode::bad_file, "{}: found {}, needed a GGUF file", path, kind_of(status.st_mode));
  }
  if (status.st_size <= 0) {
    throw_error(ErrorCode::bad_file, "{}: found an empty file, needed a GGUF file", path);
  }
  return {static_cast<uint64_t>(status.st_size), nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

void* map_or_throw(size_t n_bytes, int flags, int fd, const std::string& path) {
  const int protection = fd >= 0 ? PROT_READ : PROT_READ | PROT_WRITE;
  void* address = ::mmap(nullptr, n_bytes, protection, flags, fd, 0);
  if (address == MAP_FAILED) {
    throw_error(errno == ENOMEM ? ErrorCode::out_of_memory : ErrorCode::io, "{}: cannot {} {} bytes: {}",
                path, fd >= 0 ? "map" : "allocate", n_bytes, strerror(errno));
  }
  return address;
}

// Places the memory of a copy that nothing has touched yet.
void place(std::byte* bytes, size_t n_bytes, const NodeShares& nodes, std::span<const NodeRange> ranges) {
  bool placed = interleave(bytes, n_bytes, nodes);
  for (const NodeRange& range : ranges) {
    // The file may have changed since its tensors were read.
    if (range.offset > n_bytes || range.n_bytes > n_bytes - range.offset) continue;
    placed &= place_on_node(bytes + range.offset, range.n_bytes, range.node_id);
  }
  if (!placed) log_verbose("the system refuses to place memory on NUMA nodes: {}", strerror(errno));
}

}  // namespace

MappedFile MappedFile::open(const std::string& path, const OpenOptions& options) {
  return open_placed(path, options, options.mmap || options.metadata_only, {});
}

MappedFile MappedFile::copy_to_nodes(const std::string& path, const OpenOptions& options,
                                     std::span<const NodeRange> ranges) {
  return open_placed(path, options, false, ranges);
}

MappedFile MappedFile::open_placed(const std::string& path, const OpenOptions& options, bool map,
                                   std::span<const NodeRange> ranges) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer. It has no effect on a regular file.
  const Descriptor file{open_for_reading(path, O_NONBLOCK)};
  if (file.fd < 0) throw_error(ErrorCode::io, "{}: cannot open: {}", path, strerror(errno));
  MappedFile mapped;
  mapped.path_ = path;
  mapped.stamp_ = regular_stamp(file.fd, path);
  const size_t n_bytes = mapped.stamp_.n_bytes;
  mapped.holder_.reset(new Holder);
  Holder& holder = *mapped.holder_;
  holder.address = map ? map_or_throw(n_bytes, MAP_SHARED, file.fd, path)
                       : map_or_throw(n_bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, path);
  holder.n_bytes = n_bytes;
  auto* bytes = static_cast<std::byte*>(holder.address);
  if (map) {
    holder.guard = guard_range(bytes, n_bytes, path);
  } else {
    madvise(bytes, n_bytes, MADV_HUGEPAGE);  // fewer page walks, which take long in virtual machines
    if (!ranges.empty()) place(bytes, n_bytes, options.nodes, ranges);
    read_whole(file.fd, {bytes, n_bytes}, path);
  }
  // A hint, like prefetch(): if the system refuses, only time is lost.
  if (map && options.numa && !options.metadata_only) madvise(holder.address, n_bytes, MADV_RANDOM);
  if (options.mlock && !options.metadata_only && mlock(holder.address, n_bytes) != 0) {
    log_warning("{}: cannot lock {} bytes in memory: {} (see ulimit -l)", path, n_bytes, strerror(errno));
  }
  mapped.bytes_ = {bytes, n_bytes};
  mapped.evictable_ = map && !options.mlock;
  return mapped;
}

void read_ahead(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  madvise(reinterpret_cast<void*>(first), end - first, MADV_WILLNEED);
}

void MappedFile::prefetch() const {
  if (holder_ && holder_->guard) madvise(holder_->address, holder_->n_bytes, MADV_WILLNEED);
}

bool MappedFile::hold(std::span<const std::byte> bytes) const {
  const bool is_mapping = holder_ && holder_->guard;
  return !is_mapping || holder_->held.hold(bytes);
}

MappedFile MappedFile::view(std::span<const std::byte> bytes, const std::string& name) {
  MappedFile mapped;
  mapped.path_ = name;
  mapped.bytes_ = bytes;
  return mapped;
}

}  // namespace tandem
