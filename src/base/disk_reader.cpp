#include "base/disk_reader.h"

#include <liburing.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

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

void read_chunk(const ReadChunk& chunk, ReadQueue& queue) {
  const ssize_t n = pread(chunk.file->fd(), chunk.to, chunk.n_bytes, static_cast<off_t>(chunk.offset));
  queue.finish(chunk, n < 0 ? -errno : n);
}

void read_with_pread(ReadQueue& queue) {
  while (const auto chunk = queue.next(ReadQueue::Patience::wait)) read_chunk(*chunk, queue);
}

// The reads of one ring.
class RingReads {
 public:
  RingReads(io_uring& ring, ReadQueue& queue) : ring_(ring), queue_(queue) {
    for (unsigned i = 0; i < kDepth; ++i) idle_.push_back(i);
  }

  // Keeps up to kDepth reads in flight until the queue is closed and they have ended. If the system refuses to take more,
  // reads without it.
  void run() {
    for (;;) {
      prepare();
      if (idle_.size() == kDepth) return;
      if (!submit()) break;
      collect();
    }
    while (idle_.size() + prepared_.size() < kDepth) {  // submitted earlier: they still write to their memory
      collect();
      std::this_thread::sleep_for(kPause);
    }
    for (const unsigned i : prepared_) read_chunk(under_way_[i], queue_);
    read_with_pread(queue_);
  }

 private:
  void prepare() {
    while (!idle_.empty()) {
      const bool nothing_to_do = idle_.size() == kDepth;
      const auto chunk = queue_.next(nothing_to_do ? ReadQueue::Patience::wait : ReadQueue::Patience::none);
      if (!chunk) return;
      const unsigned i = idle_.back();
      idle_.pop_back();
      under_way_[i] = *chunk;
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);  // never null: the ring has kDepth entries
      io_uring_prep_read(entry, chunk->file->fd(), chunk->to, static_cast<unsigned>(chunk->n_bytes),
                         chunk->offset);
      io_uring_sqe_set_data64(entry, i);
      prepared_.push_back(i);
    }
  }

  // Waits for a read to end. False if the system takes no more; what was not submitted is then in prepared_.
  bool submit() {
    const int n = io_uring_submit_and_wait(&ring_, 1);  // submits in the order of preparation
    if (n > 0) prepared_.erase(prepared_.begin(), prepared_.begin() + n);
    if (n >= 0) n_refused_ = 0;
    if (n >= 0 || n == -EINTR) return true;
    const bool passing = n == -EAGAIN || n == -EBUSY;
    if (!passing || ++n_refused_ > kMaxRefused) return false;
    std::this_thread::sleep_for(kPause);
    return true;
  }

  void collect() {
    io_uring_cqe* done;
    while (io_uring_peek_cqe(&ring_, &done) == 0) {
      const auto i = static_cast<unsigned>(io_uring_cqe_get_data64(done));
      queue_.finish(under_way_[i], done->res);
      idle_.push_back(i);
      io_uring_cqe_seen(&ring_, done);
    }
  }

  static constexpr auto kPause = std::chrono::milliseconds(1);
  static constexpr int kMaxRefused = 100;
  io_uring& ring_;
  ReadQueue& queue_;
  std::array<ReadChunk, kDepth> under_way_;
  std::vector<unsigned> idle_, prepared_;  // indices of under_way_: free; not yet submitted, in order
  int n_refused_ = 0;                      // in a row
};

class FileReader final : public DiskReader {
 public:
  FileReader(std::vector<DiskFile> files, const DiskOptions& options) {
    for (DiskFile& file : files) files_.emplace_back(std::move(file), options.direct);
    const std::string why = options.uring ? make_ring(ring_) : "it is switched off";
    has_ring_ = why.empty();
    if (!has_ring_) log_info("reading files with {} threads: io_uring is not available ({})", kThreads, why);
    start_threads();
  }

  ~FileReader() override { end(); }

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
  // With fewer threads than wanted, reading is only slower.
  void start_threads() {
    try {
      threads_.reserve(kThreads);
      if (has_ring_) threads_.emplace_back([this] { RingReads(ring_, queue_).run(); });
      while (!has_ring_ && threads_.size() < kThreads)
        threads_.emplace_back([this] { read_with_pread(queue_); });
    } catch (const std::system_error& e) {
      if (!threads_.empty()) return;
      end();
      throw_error(ErrorCode::out_of_memory, "cannot start a thread that reads files: {}", e.what());
    } catch (...) {
      end();
      throw;
    }
  }
  void end() {
    queue_.close();
    for (std::thread& thread : threads_) thread.join();
    if (has_ring_) io_uring_queue_exit(&ring_);
  }

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
