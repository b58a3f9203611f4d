// The formats: what unpacks 256 columns of a strip to pairs of bf16. Runs in L1 and costs 0.2 ns a packed byte of Q4_K,
// as much as the products of some 50 tokens.
#include "cpu/amx/linear_unpack.h"
#include "cpu/avx512/linear_unpack_low.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

int unpack_bf16(const WeightRows& from, int64_t n, std::byte* to) {
  __m512i* panel = reinterpret_cast<__m512i*>(to);
  for (int64_t c = 0; c < n; c += 16) {
    const Words8 words = load_words8({from.base, from.stride}, static_cast<size_t>(2 * c));
    unroll<8>([&](auto i) __attribute__((always_inline)) { _mm512_store_si512(panel++, words.w[i.value]); });
  }
  return 1;
}

int unpack_f16(const WeightRows& from, int64_t n, std::byte* to) {
  __m512i* panel = reinterpret_cast<__m512i*>(to);
  __m512i any_low = _mm512_setzero_si512();
  for (int64_t c = 0; c < n; c += 16) {
    const Words8 words = load_words8({from.base, from.stride}, static_cast<size_t>(2 * c));
    unroll<8>([&](auto i) __attribute__((always_inline)) {
      const __m512 even = low_halves(words.w[i.value]), odd = high_halves(words.w[i.value]);
      const __m512i high = pack_pairs(even, odd);
      _mm512_store_si512(panel, high);
      const __m512i low = pack_pairs(_mm512_sub_ps(even, even_of(high)), _mm512_sub_ps(odd, odd_of(high)));
      _mm512_store_si512(panel + kPlaneVectors, low);
      any_low = _mm512_or_si512(any_low, low);
      ++panel;
    });
  }
  return _mm512_test_epi16_mask(any_low, _mm512_set1_epi16(0x7fff)) != 0 ? 2 : 1;
}

constexpr Format kF16{1, 2, 2, unpack_f16}, kBF16{1, 2, 1, unpack_bf16};

}  // namespace

const Format* find_format(DType dtype) {
  switch (dtype) {
    case DType::F16: return &kF16;
    case DType::BF16: return &kBF16;
    case DType::Q4_0: return &format_of<UnpackQ4_0>;
    case DType::Q4_1: return &format_of<UnpackQ4_1>;
    case DType::Q5_0: return &format_of<UnpackQ5_0>;
    case DType::Q5_1: return &format_of<UnpackQ5_1>;
    case DType::Q8_0: return &format_of<UnpackQ8_0>;
    case DType::IQ4_NL: return &format_of<UnpackIQ4_NL>;
    case DType::MXFP4: return &format_of<UnpackMXFP4>;
    case DType::Q2_K: return &format_of<UnpackQ2_K>;
    case DType::Q3_K: return &format_of<UnpackQ3_K>;
    case DType::Q4_K: return &format_of<UnpackQ4_K>;
    case DType::Q5_K: return &format_of<UnpackQ5_K>;
    case DType::Q6_K: return &format_of<UnpackQ6_K>;
    case DType::IQ4_XS: return &format_of<UnpackIQ4_XS>;
    case DType::TQ2_0: return &format_of<UnpackTQ2_0>;
    case DType::NVFP4: return &format_of<UnpackNVFP4>;
    case DType::Q1_0: return &format_of<UnpackQ1_0>;
    case DType::TQ1_0: return &format_of<UnpackTQ1_0>;
    default: return find_grid_format(dtype);
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
