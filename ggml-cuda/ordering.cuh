// Counters by which blocks of a grid learn what others have stored. Cheaper than __threadfence() on both sides of an atomicAdd, each of
// which is a fence of all memory for all to agree on (fence.sc): these order what the threads that meet at the counter need.
#pragma once

#include "ggml-cuda/portable.h"

namespace tandem::cuda {

// Adds n and returns what was there before. What this thread has stored, and the others of its block before a barrier, is there for
// whoever sees the sum; and what those had stored whose counts are in it is there for this thread, and behind a barrier for its block.
__device__ inline int count(int* counter, int n) {
#ifdef TANDEM_EMULATED_CUDA
  __threadfence();
  const int before = atomicAdd(counter, n);
  __threadfence();
  return before;
#else
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(n) : "memory");
  return before;
#endif
}

#ifndef TANDEM_EMULATED_CUDA
// The two halves: of one that only tells, and of one that only waits.
__device__ inline void tell(int* counter, int n) {
  asm volatile("red.add.release.gpu.global.s32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
}
__device__ inline int see(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
#endif

}  // namespace tandem::cuda
