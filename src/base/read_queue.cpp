#include "base/read_queue.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/open_file.h"

namespace tandem {
namespace {

constexpr int kMaxRetries = 1000;  // per chunk, when the system says to try again

// Returns why a file opened with O_DIRECT cannot be read in chunks of kDiskAlignment; empty if it can.
std::string why_not_direct(int fd) {
#ifdef STATX_DIOALIGN
  struct statx status;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) &&
      (status.stx_dio_offset_align == 0 || status.stx_dio_offset_align > kDiskAlignment ||
       status.stx_dio_mem_align > kDiskAlignment)) {
    return "the filesystem needs another alignment";
  }
#endif
  alignas(kDiskAlignment) std::byte probe[kDiskAlignment];
  ssize_t n;
  do n = pread(fd, probe, sizeof probe, 0);
  while (n < 0 && errno == EINTR);
  return n < 0 && errno == EINVAL ? "the filesystem refuses direct reads" : "";
}

}  // namespace

OpenDiskFile::OpenDiskFile(DiskFile file, bool direct) : file_(std::move(file)) {
  std::string why = direct ? "" : "direct reads are switched off";
  if (direct) {
    fd_ = open_for_reading(path(), O_DIRECT);
    if (fd_ < 0 && errno == EINVAL) why = "the filesystem has no O_DIRECT";
    if (fd_ >= 0) why = why_not_direct(fd_);
    direct_ = why.empty();
    if (fd_ >= 0 && !direct_) ::close(std::exchange(fd_, -1));
  }
  if (!direct_) fd_ = open_for_reading(path());
  if (fd_ < 0) throw_error(ErrorCode::io, "{}: cannot open: {}", path(), strerror(errno));
  if (direct_) return;
  posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);  // we read ahead ourselves
  log_info("{}: reading through the page cache: {}", path(), why);
}

OpenDiskFile::~OpenDiskFile() {
  if (fd_ >= 0) ::close(fd_);
}

OpenDiskFile::OpenDiskFile(OpenDiskFile&& other) noexcept
    : file_(std::move(other.file_)), fd_(std::exchange(other.fd_, -1)), direct_(other.direct_) {}

// A read may span several mappings.
DiskReader::Ticket ReadQueue::add(std::span<const OpenDiskFile> files, std::span<const DiskRead> reads) {
  const std::lock_guard lock(mutex_);
  const DiskReader::Ticket ticket = ++last_;
  Batch& batch = batches_[ticket];
  for (const DiskRead& read : reads) {
    for (const OpenDiskFile& file : files) {
      const std::byte* const begin = std::max(read.from, file.mapped().data());
      const std::byte* const end =
          std::min(read.from + read.n_bytes, file.mapped().data() + file.mapped().size());
      for (const std::byte* at = begin; at < end; at += kChunkBytes) {
        ReadChunk chunk{&file, static_cast<uint64_t>(at - file.mapped().data())};
        chunk.n_needed = std::min(kChunkBytes, static_cast<size_t>(end - at));
        chunk.n_bytes = align_up(chunk.n_needed, kDiskAlignment);
        chunk.to = read.to + (at - read.from);
        chunk.ticket = ticket;
        chunks_.push_back(chunk);
        ++batch.n_left;
      }
    }
  }
  work_.notify_all();
  return ticket;
}

bool ReadQueue::is_done(DiskReader::Ticket ticket) {
  const std::lock_guard lock(mutex_);
  return batches_.at(ticket).n_left == 0;
}

void ReadQueue::wait(DiskReader::Ticket ticket) {
  std::unique_lock lock(mutex_);
  const auto batch = batches_.find(ticket);
  TANDEM_CHECK(batch != batches_.end());
  done_.wait(lock, [&] { return batch->second.n_left == 0; });
  const std::string error = std::move(batch->second.error);
  batches_.erase(batch);
  if (!error.empty()) throw Error(ErrorCode::io, error);
}

std::optional<ReadChunk> ReadQueue::next(Patience patience) {
  std::unique_lock lock(mutex_);
  if (patience == Patience::wait) work_.wait(lock, [&] { return closed_ || !chunks_.empty(); });
  if (closed_ || chunks_.empty()) return std::nullopt;
  const ReadChunk chunk = chunks_.front();
  chunks_.pop_front();
  return chunk;
}

void ReadQueue::finish(ReadChunk chunk, int64_t result) {
  const std::lock_guard lock(mutex_);
  const auto fail = [&](uint64_t offset, const std::string& why) {
    chunk_done(chunk, format("{}: reading {} bytes at offset {} failed: {}", chunk.file->path(),
                             chunk.n_needed, offset, why));
  };
  const auto again = [&] {
    chunks_.push_front(chunk);
    work_.notify_one();
  };
  if (result < 0) {
    const bool retryable = result == -EINTR || result == -EAGAIN;
    if (!retryable || ++chunk.n_retries > kMaxRetries)
      return fail(chunk.offset, strerror(static_cast<int>(-result)));
    return again();
  }
  const auto n = static_cast<size_t>(result);
  if (n >= chunk.n_needed) {
    // Drop the pages: this data is read once per step, and would evict pages of the mapped weights.
    if (!chunk.file->is_direct()) {
      posix_fadvise(chunk.file->fd(), static_cast<off_t>(chunk.offset), static_cast<off_t>(chunk.n_bytes),
                    POSIX_FADV_DONTNEED);
    }
    return chunk_done(chunk, "");
  }
  if (n == 0) return fail(chunk.offset, "the file ends before that; it was truncated");
  // Continue at an aligned address, unless that would read the same bytes again.
  const size_t whole = n / kDiskAlignment * kDiskAlignment;
  const size_t advance = whole > 0 || chunk.file->is_direct() ? whole : n;
  if (advance == 0) return fail(chunk.offset + n, "the file ends there; it was truncated");
  chunk.offset += advance;
  chunk.to += advance;
  chunk.n_bytes -= advance;
  chunk.n_needed -= advance;
  again();
}

// A batch reports its first error.
void ReadQueue::chunk_done(const ReadChunk& chunk, const std::string& error) {
  Batch& batch = batches_.at(chunk.ticket);
  if (batch.error.empty()) batch.error = error;
  if (--batch.n_left == 0) done_.notify_all();
}

void ReadQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  work_.notify_all();
}

}  // namespace tandem
