// The parts of DiskReader: files opened for reading in large aligned chunks, and the queue of chunks between
// callers and reading threads.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "base/disk_reader.h"

namespace tandem {

// A file, open as long as the object lives.
class OpenDiskFile {
 public:
  // Logs one line if it cannot bypass the page cache, with the reason. Throws Error(io).
  OpenDiskFile(DiskFile file, bool direct);
  ~OpenDiskFile();
  OpenDiskFile(OpenDiskFile&& other) noexcept;
  OpenDiskFile& operator=(OpenDiskFile&&) = delete;

  int fd() const { return fd_; }
  bool is_direct() const { return direct_; }
  const std::string& path() const { return file_.path; }
  std::span<const std::byte> mapped() const { return file_.mapped; }

 private:
  DiskFile file_;
  int fd_ = -1;
  bool direct_ = false;
};

struct ReadChunk {
  const OpenDiskFile* file = nullptr;
  uint64_t offset = 0;
  size_t n_bytes = 0;   // to read, rounded up to the alignment
  size_t n_needed = 0;  // of those, inside the file
  std::byte* to = nullptr;
  DiskReader::Ticket ticket = 0;
  int n_retries = 0;
};

// Any thread may call any function.
class ReadQueue {
 public:
  static constexpr size_t kChunkBytes = size_t{1} << 20;

  DiskReader::Ticket add(std::span<const OpenDiskFile> files, std::span<const DiskRead> reads);
  bool is_done(DiskReader::Ticket ticket);
  void wait(DiskReader::Ticket ticket);

  enum class Patience { wait, none };
  // Takes the next chunk. nullopt: the queue is empty (Patience::none) or closed.
  std::optional<ReadChunk> next(Patience patience);
  // Reports the result of reading a chunk: a number of bytes or -errno. Queues the missing bytes again.
  void finish(ReadChunk chunk, int64_t result);
  // Stops reading: next() returns nothing from now on.
  void close();

 private:
  struct Batch {
    size_t n_left = 0;  // chunks
    std::string error;
  };
  void chunk_done(const ReadChunk& chunk, const std::string& error);

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<ReadChunk> chunks_;
  std::map<DiskReader::Ticket, Batch> batches_;
  DiskReader::Ticket last_ = 0;
  bool closed_ = false;
};

}  // namespace tandem
