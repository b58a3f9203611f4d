#include "base/disk_reader.h"

#include <liburing.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/read_queue.h"

namespace tandem {
namespace {

constexpr unsigned kDepth = 32;  // chunks in flight
constexpr size_t kThreads = 4;   // without io_uring

// Makes the ring. Returns the reason if io_uring cannot be used, empty on success.
std::string make_ring(io_uring& ring) {
  const int made = io_uring_queue_init(kDepth, &ring, 0);
  if (made < 0) return strerror(-made);
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  const bool reads = probe && io_uring_opcode_supported(probe, IORING_OP_READ);
  if (probe) io_uring_free_probe(probe);
  if (reads) return "";
  io_uring_queue_exit(&ring);
  return "this system's io_uring does not support reads";
}

// Keeps up to kDepth reads in flight until the queue is closed and they have ended.
void read_with_ring(io_uring& ring, ReadQueue& queue) {
  std::array<ReadChunk, kDepth> under_way;
  std::vector<unsigned> idle;
  for (unsigned i = 0; i < kDepth; ++i) idle.push_back(i);
  for (;;) {
    while (!idle.empty()) {
      const bool nothing_to_do = idle.size() == kDepth;
      const auto chunk = queue.next(nothing_to_do ? ReadQueue::Patience::wait : ReadQueue::Patience::none);
      if (!chunk) break;
      const unsigned i = idle.back();
      idle.pop_back();
      under_way[i] = *chunk;
      io_uring_sqe* entry = io_uring_get_sqe(&ring);  // never null: the ring has kDepth entries
      io_uring_prep_read(entry, chunk->file->fd(), chunk->to, static_cast<unsigned>(chunk->n_bytes),
                         chunk->offset);
      io_uring_sqe_set_data64(entry, i);
    }
    if (idle.size() == kDepth) return;
    io_uring_submit_and_wait(&ring, 1);  // entries that were not submitted are submitted next time
    io_uring_cqe* done;
    while (io_uring_peek_cqe(&ring, &done) == 0) {
      const auto i = static_cast<unsigned>(io_uring_cqe_get_data64(done));
      queue.finish(under_way[i], done->res);
      idle.push_back(i);
      io_uring_cqe_seen(&ring, done);
    }
  }
}

void read_with_pread(ReadQueue& queue) {
  while (const auto chunk = queue.next(ReadQueue::Patience::wait)) {
    const ssize_t n = pread(chunk->file->fd(), chunk->to, chunk->n_bytes, static_cast<off_t>(chunk->offset));
    queue.finish(*chunk, n < 0 ? -errno : n);
  }
}

class FileReader final : public DiskReader {
 public:
  FileReader(std::vector<DiskFile> files, const DiskOptions& options) {
    for (DiskFile& file : files) files_.emplace_back(std::move(file), options.direct);
    const std::string why = options.uring ? make_ring(ring_) : "it is switched off";
    has_ring_ = why.empty();
    if (has_ring_) {
      threads_.emplace_back([this] { read_with_ring(ring_, queue_); });
      return;
    }
    log_info("reading files with {} threads: io_uring is not available ({})", kThreads, why);
    for (size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { read_with_pread(queue_); });
  }

  ~FileReader() override {
    queue_.close();
    for (std::thread& thread : threads_) thread.join();
    if (has_ring_) io_uring_queue_exit(&ring_);
  }

  Ticket start(std::span<const DiskRead> reads) override {
    for (const DiskRead& read : reads) {
      TANDEM_CHECK(reinterpret_cast<uintptr_t>(read.from) % kDiskAlignment == 0 &&
                   reinterpret_cast<uintptr_t>(read.to) % kDiskAlignment == 0 &&
                   read.n_bytes % kDiskAlignment == 0);
    }
    return queue_.add(files_, reads);
  }
  bool is_done(Ticket ticket) override { return queue_.is_done(ticket); }
  void wait(Ticket ticket) override { queue_.wait(ticket); }

 private:
  std::vector<OpenDiskFile> files_;
  ReadQueue queue_;
  io_uring ring_{};
  bool has_ring_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<DiskReader> open_disk_reader(std::vector<DiskFile> files, const DiskOptions& options) {
  return std::make_unique<FileReader>(std::move(files), options);
}

}  // namespace tandem
