// DiskReader: reads large files into memory ahead of use, past the page cache where the filesystem allows it
// (O_DIRECT). Splits reads into chunks and keeps many in flight, through io_uring or, without it, a few
// threads. Opening the files logs one line for each of these that is not available.
//
// A reader belongs to one thread; it reads on threads of its own. Its destructor waits for reads in flight.
// A failed read throws Error(io), with file and offset, from wait().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tandem {

// A file and its mapping. A read names its source by address in the mapping; the mapping itself is not
// touched.
struct DiskFile {
  std::string path;
  std::span<const std::byte> mapped;
};

// Both addresses and the size are multiples of this. Bytes of `to` for addresses past the end of a file, or
// in no file, stay unchanged.
inline constexpr size_t kDiskAlignment = 4096;
struct DiskRead {
  const std::byte* from = nullptr;
  size_t n_bytes = 0;
  std::byte* to = nullptr;
};

class DiskReader {
 public:
  virtual ~DiskReader() = default;

  using Ticket = uint64_t;
  // Starts reading. `to` must stay valid until wait(ticket) returns or the reader is gone; wait once per
  // ticket.
  virtual Ticket start(std::span<const DiskRead> reads) = 0;
  virtual bool is_done(Ticket ticket) = 0;  // whether wait() would return at once
  virtual void wait(Ticket ticket) = 0;
};

struct DiskOptions {
  bool direct = true;  // bypass the page cache
  bool uring = true;
};

// Throws Error(io) if a file cannot be opened.
std::unique_ptr<DiskReader> open_disk_reader(std::vector<DiskFile> files, const DiskOptions& options = {});

}  // namespace tandem
