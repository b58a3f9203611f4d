// Products with weights in super-blocks of 256: Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS.
#include "cpu/avx2/linear_super.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <class Format>
constexpr DtypeKernels byte_kernels = byte_kernels_k<Format>(6);
// On a Zen 3, without VNNI, dot products are 1.09 times as fast for 10 tokens, 1.15 for 12, as fast as panels for 16.
constexpr DtypeKernels iq4_xs_kernels = signed_kernels_k<IQ4_XS>(kVnni ? 10 : 17);

}  // namespace

const DtypeKernels* super_block_kernels(DType dtype) {
  switch (dtype) {
    case DType::Q2_K: return &byte_kernels<Q2_K>;
    case DType::Q3_K: return &byte_kernels<Q3_K>;
    case DType::Q4_K: return &byte_kernels<Q4_K>;
    case DType::Q5_K: return &byte_kernels<Q5_K>;
    case DType::Q6_K: return &byte_kernels<Q6_K>;
    case DType::IQ4_XS: return &iq4_xs_kernels;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
