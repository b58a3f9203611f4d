// Kernels that begin before the previous one has ended (programmatic dependent launch, compute capability
// 9.0). Such a kernel calls wait_for_previous() in every thread before it touches anything that an earlier
// kernel writes or reads, and let_next_begin() once the next one may be set up. Weights need no wait: their
// first loads are in flight while the previous kernel ends.
#pragma once

#include "ggml-cuda/portable.h"

namespace tandem::cuda {

// The software GPU of the tests has these instructions too.
#if (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900) || defined(TANDEM_EMULATED_CUDA)
#define TANDEM_HAS_OVERLAP
#endif

TANDEM_HD inline void wait_for_previous() {
#ifdef TANDEM_HAS_OVERLAP
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

TANDEM_HD inline void let_next_begin() {
#ifdef TANDEM_HAS_OVERLAP
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tandem::cuda
