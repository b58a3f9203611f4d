#include "cpu/avx512/vec.h"  // first: the rest is written in its vectors

#include "cpu/simd/sparse.h"

namespace tandem::cpu::TANDEM_ISA {

const SparseKernels& sparse_kernels() {
  return kSparseKernels;
}

}  // namespace tandem::cpu::TANDEM_ISA
