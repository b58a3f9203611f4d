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
  pages_.erase(pages.begin_);
}

PinnedMemory::List PinnedMemory::pin(std::span<const std::byte> bytes) {
  List found, let_go;  // outlive the lock, which the last to let go of pages takes
  if (bytes.empty()) return found;
  auto [at, end] = pages_of(bytes);
  const std::lock_guard lock(mutex_);
  auto next = pages_.upper_bound(at);
  if (next != pages_.begin()) --next;
  bool refused = false;
  while (at < end && !refused) {
    if (next == pages_.end() || next->first > at) {
      std::byte* const until = next == pages_.end() ? end : std::min(end, next->first);
      refused = cudaHostRegister(at, static_cast<size_t>(until - at), cudaHostRegisterPortable) != cudaSuccess;
      if (refused) break;
      found.push_back(std::make_shared<PinnedPages>(at, until));
      pages_.emplace(at, found.back());
      at = until;
      continue;
    }
    found.push_back(next->second.lock());
    refused = !found.back();  // about to be unlocked
    if (!refused) at = std::max(at, found.back()->end_);
    ++next;
  }
  if (refused) {
    cudaGetLastError();
    std::swap(found, let_go);
  }
  return found;
}

PinnedMemory::List PinnedMemory::holding(std::span<const std::byte> bytes, int device) {
  List list, let_go;
  if (bytes.empty()) return list;
  const std::byte *at = bytes.data(), *const end = at + bytes.size();
  const std::lock_guard lock(mutex_);
  auto next = pages_.upper_bound(const_cast<std::byte*>(at));
  if (next != pages_.begin()) --next;
  for (; at < end; ++next) {
    list.push_back(next == pages_.end() ? nullptr : next->second.lock());
    const PinnedPages* pages = list.back().get();
    if (!pages || pages->begin_ > at || pages->end_ <= at) {
      std::swap(list, let_go);
      return list;
    }
    list.back()->devices_.insert(device);
    at = pages->end_;
  }
  return list;
}

}  // namespace tandem::cuda
