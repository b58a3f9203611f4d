#include "tools/chat/loading.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/progress.h"

namespace tandem::tools {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr auto kQuietTime = std::chrono::milliseconds(300);  // no bar for faster reads

size_t memory_bytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Reads one byte of every page; the system reads ahead.
void touch(std::span<const std::byte> bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  unsigned sum = 0;
  for (size_t i = 0; i < bytes.size(); i += page) sum += static_cast<unsigned>(bytes[i]);
  asm volatile("" : : "r"(sum));
}

}  // namespace

void read_ahead(const Model& model, bool show_progress) {
  const size_t n_all = model.file().n_file_bytes();
  if (n_all > memory_bytes() / 10 * 8) return;
  const auto start = std::chrono::steady_clock::now();
  StatusLine status;
  size_t n_done = 0;
  for (const MappedFile& part : model.file().parts()) {
    const std::span<const std::byte> bytes = part.bytes();
    for (size_t at = 0; at < bytes.size(); at += kChunkBytes) {
      if (interrupted()) throw Error(ErrorCode::interrupted, "");
      const auto chunk = bytes.subspan(at, std::min(kChunkBytes, bytes.size() - at));
      touch(chunk);
      n_done += chunk.size();
      if (!show_progress || std::chrono::steady_clock::now() - start < kQuietTime) continue;
      const size_t n_full = n_done * 24 / n_all;
      status.show("loading [" + std::string(n_full, '#') + std::string(24 - n_full, ' ') + "] " +
                  format("{}% of {:.1f} GB", n_done * 100 / n_all, static_cast<double>(n_all) / 1e9));
      fflush(stderr);
    }
  }
}

}  // namespace tandem::tools
