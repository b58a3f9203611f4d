#include "gguf/read_whole.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

namespace tandem {
namespace {

constexpr size_t kPiece = size_t{16} << 20;
constexpr unsigned kMaxThreads = 8;

void read_piece(int fd, std::span<std::byte> all, size_t begin, const std::string& path) {
  const size_t end = std::min(all.size(), begin + kPiece);
  for (size_t at = begin; at < end;) {
    const ssize_t n = pread(fd, all.data() + at, end - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw_error(ErrorCode::io, "{}: reading {} bytes stopped at offset {}: {}", path, all.size(), at,
                  n < 0 ? strerror(errno) : "the file ends there");
    }
    at += static_cast<size_t>(n);
  }
}

// What the threads share.
struct Pieces {
  std::atomic<size_t> next{0};  // offset
  std::mutex mutex;
  std::exception_ptr failure;

  void read(int fd, std::span<std::byte> to, const std::string& path) {
    try {
      for (size_t begin; (begin = next.fetch_add(kPiece)) < to.size();) read_piece(fd, to, begin, path);
    } catch (...) {
      next = to.size();
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  }
};

}  // namespace

void read_whole(int fd, std::span<std::byte> to, const std::string& path) {
  const size_t n_pieces = (to.size() + kPiece - 1) / kPiece;
  const size_t n_threads =
      std::min<size_t>({n_pieces, kMaxThreads, std::max(1u, std::thread::hardware_concurrency())});
  Pieces pieces;
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < n_threads; ++i) threads.emplace_back([&] { pieces.read(fd, to, path); });
  } catch (const std::exception&) {
    // Fewer threads do.
  }
  pieces.read(fd, to, path);
  for (std::thread& thread : threads) thread.join();
  if (pieces.failure) std::rethrow_exception(pieces.failure);
}

}  // namespace tandem
