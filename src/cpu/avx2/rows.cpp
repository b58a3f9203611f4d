#include "cpu/avx2/vec.h"  // first: the rest is written in its vectors

#include "cpu/simd/rows.h"

namespace tandem::cpu::TANDEM_ISA {

const RowKernels& row_kernels() {
  return kRowKernels;
}

}  // namespace tandem::cpu::TANDEM_ISA
