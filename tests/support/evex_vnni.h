// The products of avx_vnni in the encoding that AVX-512 has for the same instructions, so that they run on machines with
// AVX-512 VNNI and without AVX-VNNI. Only tests and benchmarks have these kernels.
#pragma once

#include <algorithm>

#include "cpu/isa.h"
#include "cpu/linear_generic.h"

namespace tandem::cpu {

namespace evex_vnni {
const LinearKernels& linear_kernels();
}

namespace test {

inline const LinearKernels& evex_vnni_products() {
  static const LinearKernels table = WithGenericPath<evex_vnni::linear_kernels>::table();
  return table;
}

inline bool has_evex_vnni() {
  const std::vector<Isa>& isas = supported_isas();
  return std::find(isas.begin(), isas.end(), Isa::avx512_vnni) != isas.end();
}

}  // namespace test
}  // namespace tandem::cpu
