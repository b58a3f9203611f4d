#include "gguf/pieces.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem {
namespace {

constexpr size_t kPiece = size_t{16} << 20;
constexpr unsigned kMaxThreads = 8;

}  // namespace

void for_each_piece(size_t n_bytes, const std::function<void(size_t begin, size_t end)>& fn) {
  std::atomic<size_t> next{0};  // offset
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (size_t begin; (begin = next.fetch_add(kPiece)) < n_bytes;)
        fn(begin, std::min(n_bytes, begin + kPiece));
    } catch (...) {
      next = n_bytes;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  const size_t n_pieces = (n_bytes + kPiece - 1) / kPiece;
  const size_t n_threads =
      std::min<size_t>({n_pieces, kMaxThreads, std::max(1u, std::thread::hardware_concurrency())});
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < n_threads; ++i) threads.emplace_back(work);
  } catch (const std::exception&) {
    // Fewer threads do.
  }
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tandem
