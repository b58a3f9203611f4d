// DiskReader: large files read into memory ahead of use, past the page cache where the filesystem allows it
// (O_DIRECT). Reads are cut into chunks, many of which are under way at a time: through io_uring, or, where
// the system has none, by a few threads. What cannot be had is said in one line when the files are opened.
//
// A reader belongs to one thread; it has threads of its own for the reading. Its destructor waits for what is
// under way. Failures are Error(io), naming file and offset, thrown by whoever waits for the read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tandem {

// A file and where it is mapped. What is to be read is named by its address there; the mapping itself is
// never touched.
struct DiskFile {
  std::string path;
  std::span<const std::byte> mapped;
};

// Both addresses and the size are multiples of this. What lies past the end of a file is left as it was, and
// so is what lies in no file.
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
  // Starts reading; `to` is in use until the ticket has been waited for, which must happen once.
  virtual Ticket start(std::span<const DiskRead> reads) = 0;
  virtual bool is_done(Ticket ticket) = 0;  // wait() would return at once
  virtual void wait(Ticket ticket) = 0;
};

struct DiskOptions {
  bool direct = true;  // past the page cache
  bool uring = true;
};

// Throws Error(io) for a file that cannot be opened.
std::unique_ptr<DiskReader> open_disk_reader(std::vector<DiskFile> files, const DiskOptions& options = {});

}  // namespace tandem
