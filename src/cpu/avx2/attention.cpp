#include "cpu/avx2/vec.h"  // first: the rest is written in its vectors

#include "cpu/simd/attention.h"

namespace tandem::cpu::TANDEM_ISA {

const AttentionKernels& attention_kernels() {
  return kAttentionKernels;
}

}  // namespace tandem::cpu::TANDEM_ISA
