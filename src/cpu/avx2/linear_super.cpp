// Products with weights in super-blocks of 256: Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS TQ1_0 TQ2_0.
#include "cpu/avx2/linear_dot_sub_blocks.h"
#include "cpu/avx2/linear_super.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Without VNNI as measured on a Zen 3, from memory: dot products with six tokens are 1.1 to 1.3 times as fast as panels, but of Q3_K,
// with eight 1.1 times, but of Q4_K, with twelve slower. With AVX-VNNI on an Emerald Rapids panels are as fast with five tokens of Q2_K,
// Q5_K and Q6_K and seven of Q4_K, faster with five of TQ1_0, TQ2_0 (1.1 to 1.4 times) and IQ4_XS (1.4).
template <class Format>
constexpr DtypeKernels byte_kernels = byte_kernels_k<Format>(kVnni ? 5 : 9);
constexpr DtypeKernels q3_k_kernels = byte_kernels_k<Q3_K>(6);
constexpr DtypeKernels q4_k_kernels = sub_block_kernels<Q4_K>(8);
constexpr DtypeKernels q5_k_kernels = sub_block_kernels<Q5_K>(kVnni ? 6 : 9);
// On a Zen 3, without VNNI, dot products are 1.09 times as fast for 10 tokens, 1.15 for 12, as fast as panels for 16.
constexpr DtypeKernels iq4_xs_kernels = signed_kernels_k<IQ4_XS>(kVnni ? 5 : 17);

}  // namespace

const DtypeKernels* super_block_kernels(DType dtype) {
  switch (dtype) {
    case DType::Q2_K: return &byte_kernels<Q2_K>;
    case DType::Q3_K: return &q3_k_kernels;
    case DType::Q4_K: return &q4_k_kernels;
    case DType::Q5_K: return &q5_k_kernels;
    case DType::Q6_K: return &byte_kernels<Q6_K>;
    case DType::IQ4_XS: return &iq4_xs_kernels;
    case DType::TQ1_0: return &byte_kernels<TQ1_0>;
    case DType::TQ2_0: return &byte_kernels<TQ2_0>;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
