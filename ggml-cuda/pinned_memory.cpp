#include "ggml-cuda/pinned_memory.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace tandem::cuda {
namespace {

struct PageRange {
  std::byte *begin, *end;
};
PageRange pages_of(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(bytes.data()), last = first + bytes.size() - 1;
  return {reinterpret_cast<std::byte*>(first / page * page),
          reinterpret_cast<std::byte*>((last / page + 1) * page)};
}

}  // namespace

PinnedMemory& PinnedMemory::of_process() {
  static PinnedMemory memory;
  return memory;
}

PinnedPages::~PinnedPages() {
  if (!begin_) return;
  int current = 0;
  cudaGetDevice(&current);
  for (const int device : devices_) {
    cudaSetDevice(device);
    cudaDeviceSynchronize();
  }
  cudaSetDevice(current);
  cudaHostUnregister(begin_);
  cudaGetLastError();  // there is nothing left to do about a failure
  PinnedMemory::of_process().forget(*this);
}

void PinnedMemory::forget(const PinnedPages& pages) {
  const std::lock_guard lock(mutex_);
  ranges_.erase(pages.begin_);
}

std::map<std::byte*, PinnedMemory::Range>::iterator PinnedMemory::first_behind(const std::byte* at) {
  auto next = ranges_.upper_bound(const_cast<std::byte*>(at));
  if (next == ranges_.begin()) return next;
  const auto before = std::prev(next);
  return before->second.end > at ? before : next;
}

PinnedMemory::List PinnedMemory::pin(std::span<const std::byte> bytes) {
  List found, let_go;  // outlive the lock, which the last to let go of pages takes
  if (bytes.empty()) return found;
  auto [at, end] = pages_of(bytes);
  const std::lock_guard lock(mutex_);
  bool refused = false;
  for (auto next = first_behind(at); at < end && !refused;) {
    if (next == ranges_.end() || next->first > at) {
      std::byte* const until = next == ranges_.end() ? end : std::min(end, next->first);
      auto pages = std::make_shared<PinnedPages>(at, until);
      const auto added = ranges_.emplace(at, Range{until, pages}).first;
      refused = cudaHostRegister(at, static_cast<size_t>(until - at), cudaHostRegisterPortable) != cudaSuccess;
      if (refused) {
        ranges_.erase(added);
        pages->begin_ = nullptr;  // nothing to unlock
      } else {
        at = until;
      }
      (refused ? let_go : found).push_back(std::move(pages));
      continue;
    }
    found.push_back(next->second.pages.lock());
    refused = !found.back();
    at = std::max(at, next->second.end);
    ++next;
  }
  if (refused) {
    cudaGetLastError();
    let_go.insert(let_go.end(), found.begin(), found.end());
    found.clear();
  }
  return found;
}

PinnedMemory::List PinnedMemory::holding(std::span<const std::byte> bytes, int device) {
  List list, let_go;
  if (bytes.empty()) return list;
  const std::byte *at = bytes.data(), *const end = at + bytes.size();
  const std::lock_guard lock(mutex_);
  for (auto next = first_behind(at); at < end; ++next) {
    if (next != ranges_.end() && next->first <= at) list.push_back(next->second.pages.lock());
    if (next == ranges_.end() || next->first > at || !list.back()) {
      std::swap(list, let_go);
      return list;
    }
    list.back()->devices_.insert(device);
    at = next->second.end;
  }
  return list;
}

}  // namespace tandem::cuda
