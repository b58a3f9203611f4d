// What a DiskReader is made of: files opened for reading in large aligned chunks, and the queue of chunks
// between whoever wants them and the threads that read.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "base/disk_reader.h"

namespace tandem {

// Open for as long as the object lives.
class OpenDiskFile {
 public:
  // Says in one line why it reads through the page cache, if it does. Throws Error(io).
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
  size_t n_bytes = 0;   // asked for
  size_t n_needed = 0;  // of those, in the file
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
  // The next chunk to read; none when there is none, or, with patience, when all is over.
  std::optional<ReadChunk> next(Patience patience);
  // What a read of the chunk returned: a number of bytes or -errno. What is missing is queued again.
  void finish(ReadChunk chunk, int64_t result);
  // Nothing is read from now on.
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
