// Copies from global to shared memory that arrive while the thread goes on (cp.async).
#pragma once

#include <cstdint>

namespace tandem::cuda {

// 16 bytes from global to shared memory, past the registers and the L1 cache.
__device__ inline void copy_16_async(void* shared, const void* global) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
// For what is read once: the L2 cache gives up such lines first, and keeps activations and the kernels' code. sm_80 and newer.
struct ReadOnce {
  uint64_t policy;
  __device__ ReadOnce() {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  }
};
// kBytes, 4 (without that hint) or 16, to an address of shared memory.
template <int kBytes>
__device__ inline void copy_async(unsigned to, const void* global, const ReadOnce& once) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "l"(once.policy) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(kBytes), "r"(kBytes) : "memory");
  }
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's copy groups are in flight.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tandem::cuda
