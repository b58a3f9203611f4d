#include "gguf/held_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gguf/pieces.h"

namespace tandem {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Replaces whole pages by a copy of them. The copy is made elsewhere, as far behind the start of a huge page as these are, and
// then moved over them in one step, in which other threads find the pages before it or the copy.
bool replace(std::byte* pages, size_t n_bytes) {
  const size_t room = n_bytes + kHugePage;
  void* const region = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (region == MAP_FAILED) return false;
  auto* const begin = static_cast<std::byte*>(region);
  const size_t before = (reinterpret_cast<uintptr_t>(pages) - reinterpret_cast<uintptr_t>(begin)) % kHugePage;
  std::byte* const copy = begin + before;
  madvise(copy, n_bytes, MADV_HUGEPAGE);
  for_each_piece(n_bytes, [&](size_t from, size_t to) { std::memcpy(copy + from, pages + from, to - from); });
  const bool moved =
      mremap(copy, n_bytes, n_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pages) != MAP_FAILED;
  if (!moved) {
    munmap(region, room);
    return false;
  }
  if (before > 0) munmap(begin, before);
  munmap(copy + n_bytes, room - before - n_bytes);
  return true;
}

}  // namespace

bool HeldPages::hold(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(bytes.data()), last = first + bytes.size() - 1;
  auto* at = reinterpret_cast<std::byte*>(first / page * page);
  auto* const end = reinterpret_cast<std::byte*>((last / page + 1) * page);
  const std::lock_guard lock(mutex_);
  auto next = held_.upper_bound(at);
  if (next != held_.begin()) at = std::max(at, std::prev(next)->second);
  while (at < end) {
    std::byte* const until = next == held_.end() ? end : std::min(end, next->first);
    if (at < until) {
      if (!replace(at, static_cast<size_t>(until - at))) return false;
      held_.emplace(at, until);
    }
    if (next == held_.end()) break;
    at = std::max(until, next->second);
    ++next;
  }
  return true;
}

}  // namespace tandem
