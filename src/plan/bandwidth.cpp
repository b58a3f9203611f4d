#include "plan/bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/sanitized.h"
#include "plan/pages.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kChunk = ReadLoop::kChunk;
constexpr size_t kLine = 64;
constexpr size_t kAhead = 4096;    // bytes from a load to the prefetch of its stream, times streams
constexpr size_t kWindows = 16;    // parts of the buffer that are timed each on its own
constexpr int64_t kMinRounds = 4;  // over the whole buffer
constexpr double kMinSeconds = kSanitized ? 0 : 0.4;

using Vec = uint64_t __attribute__((vector_size(16)));  // every CPU that we run on has registers of 16 bytes

// Adds up a chunk, in several streams at a time. Which number is the fastest depends on the CPU: several keep more loads under
// way, but the caches' own prefetching may follow one only. The additions are independent, so that nothing but the loads takes
// time.
template <size_t kStreams>
uint64_t read_chunk(const std::byte* chunk) {
  constexpr size_t kStream = kChunk / kStreams;
  Vec sums[kStreams] = {};
  for (size_t i = 0; i < kStream; i += kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      const std::byte* line = chunk + s * kStream + i;
      __builtin_prefetch(line + kAhead / kStreams);
      const Vec* v = reinterpret_cast<const Vec*>(line);
      sums[s] += (v[0] + v[1]) + (v[2] + v[3]);
    }
  }
  Vec sum = sums[0];
  for (size_t s = 1; s < kStreams; ++s) sum += sums[s];
  return sum[0] + sum[1];
}

}  // namespace

size_t last_cache_bytes() {
  for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    if (const long n_bytes = sysconf(level); n_bytes > 0) return static_cast<size_t>(n_bytes);
  }
  return 0;
}

size_t bandwidth_buffer_bytes(size_t free_bytes, size_t cache_bytes, int n_cores) {
  constexpr size_t kLeast = kWindows * kChunk, kOfCore = size_t{512} << 20;
  if (kSanitized) return kLeast;  // a sanitizer reads slowly
  const size_t most = std::clamp<size_t>(static_cast<size_t>(n_cores) * kOfCore, kOfCore, size_t{2} << 30);
  const size_t usual = std::clamp(4 * cache_bytes, kOfCore, most);
  return std::clamp(free_bytes / 4, kLeast, usual) / kChunk * kChunk;
}

ReadLoop::ReadLoop(ThreadPool& pool, std::span<const std::span<const std::byte>> memory) : pool_(pool) {
  for (const std::span<const std::byte> part : memory) {
    for (size_t at = 0; at + kChunk <= part.size(); at += kChunk) chunks_.push_back(part.data() + at);
  }
}

ReadLoop::Pass ReadLoop::read(int64_t first, int64_t n, bool in_streams) const {
  if (interrupted()) throw Error(ErrorCode::interrupted, "interrupted");
  const auto read = in_streams ? read_chunk<4> : read_chunk<1>;
  std::atomic<uint64_t> total{0};
  const Clock::time_point start = Clock::now();
  pool_.run([&](Worker& worker) {
    uint64_t sum = 0;
    worker.for_each(n, [&](int64_t i) { sum += read(chunks_[static_cast<size_t>(first + i)]); });
    total += sum;
  });
  return {std::chrono::duration<double>(Clock::now() - start).count(), total};
}

double measure_read_bandwidth(ThreadPool& pool, size_t n_bytes) {
  const auto n_windows = static_cast<int64_t>(kWindows);
  const auto n_chunks = static_cast<int64_t>(std::max<size_t>(n_bytes / kChunk / kWindows, 1));  // of a window
  const Pages pages(static_cast<size_t>(n_windows * n_chunks) * kChunk);
  // Pages that were never written are all the same page of zeros, which would be read from cache.
  pool.run([&](Worker& worker) {
    worker.for_each(n_windows * n_chunks, [&](int64_t i) {
      if (!interrupted()) memset(pages.data() + static_cast<size_t>(i) * kChunk, 1, kChunk);
    });
  });
  const std::span<const std::byte> memory(pages.data(), static_cast<size_t>(n_windows * n_chunks) * kChunk);
  const ReadLoop loop(pool, std::span(&memory, 1));
  const auto sum_of_window = static_cast<uint64_t>(n_chunks) * (kChunk / sizeof(uint64_t)) * 0x0101010101010101u;
  double best = 0, spent = 0;
  for (int64_t pass = 0; pass < kMinRounds * n_windows || spent < kMinSeconds; ++pass) {
    const ReadLoop::Pass window = loop.read(pass % n_windows * n_chunks, n_chunks, pass / n_windows % 2 == 0);
    TANDEM_CHECK(window.sum == sum_of_window);  // and so every byte was read
    best = std::max(best, static_cast<double>(n_chunks) * static_cast<double>(kChunk) / window.seconds);
    spent += window.seconds;
  }
  return best;
}

}  // namespace tandem
