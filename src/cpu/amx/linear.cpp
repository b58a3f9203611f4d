// The table of AMX products, and the encoding of activations as tiles of bf16: 4 bytes read and 2 written an element.
#include <cstring>

#include "cpu/amx/linear_layout.h"
#include "cpu/avx512/linear_simd.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

bool has_kernel(DType dtype) {
  return find_format(dtype) != nullptr;
}

size_t encoded_bytes(DType, int64_t n, int64_t k) {
  return static_cast<size_t>(whole(n, kTileRows) * whole(k, kTileColumns)) * 2;
}

bool same_encoding(DType, DType, int64_t) {
  return true;
}

int64_t encode_granularity(DType, int64_t) {
  return kTileRows;
}

// 32 columns of a token, zero from the n-th on.
TANDEM_INLINE void encode_row(const float* x, int64_t n, std::byte* to) {
  const __mmask16 low = first_lanes(n), high = first_lanes(n > 16 ? n - 16 : 0);
  const __m512 first = _mm512_maskz_loadu_ps(low, x), second = _mm512_maskz_loadu_ps(high, x + 16);
  _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

void encode(DType, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0, int64_t token1,
            std::byte* encoded) {
  for (int64_t column = 0; column < k; column += kBlockColumns) {
    const ActivationBlock block = activation_block(n, k, column);
    std::byte* to = encoded + block.offset + static_cast<size_t>(token0 / kTileRows) * block.tile_row_bytes();
    const int64_t end = column + block.n_columns;
    for (int64_t token = token0; token < token1; token += kTileRows) {
      for (int64_t c = column; c < end; c += kTileColumns) {
        for (int64_t t = token; t < token + kTileRows; ++t, to += 64) {
          if (t < n) {
            encode_row(x + t * ldx + c, k - c, to);
          } else {
            _mm512_store_si512(to, _mm512_setzero_si512());
          }
        }
      }
    }
  }
}

int64_t row_granularity(DType, int64_t, int64_t, int64_t) {
  return 2 * kTileRows;
}

size_t scratch_bytes(DType dtype, int64_t n, int64_t) {
  return tiles_scratch_bytes(dtype, n);
}

}  // namespace

// Where tiles overtake the kernels below on a Granite Rapids, with 5632 x 2048 weights and two threads; of BF16
// on a Sapphire Rapids, 2048 x 2048, in 0.37 of the time at 32 tokens. IQ1, IQ2, IQ3, TQ1_0, NVFP4 and Q1_0 on an Emerald Rapids: of 32
// tokens 0.8 to 1.1 times the speed, of 48 0.8 to 1.2, of 64 1.1 to 1.4, of 512 1.4 to 2.3.
bool takes(DType dtype, int64_t n) {
  switch (dtype) {
    case DType::F32: return false;  // routers and the like: never rounded
    case DType::F16:
    case DType::BF16:
      return n >= 20;  // not for the 17 tokens of a step with guesses, which so round as tokens alone do
    case DType::Q4_0:
    case DType::Q4_K:
    case DType::Q5_K: return n >= 56;
    case DType::Q8_0: return n >= 64;
    case DType::IQ1_M:
    case DType::IQ2_XS:
    case DType::IQ2_S:
    case DType::NVFP4: return n >= 40;
    case DType::IQ1_S:
    case DType::IQ2_XXS:
    case DType::IQ3_XXS:
    case DType::IQ3_S:
    case DType::TQ1_0:
    case DType::Q1_0: return n >= 56;
    case DType::Q2_K:
    case DType::Q3_K: return false;  // are integers for any number (linear_bytes.h)
    default: return n >= 32;
  }
}

const LinearKernels& linear_kernels() {
  static constexpr LinearKernels table{has_kernel, encoded_bytes,   same_encoding, encode_granularity,
                                       encode,     row_granularity, scratch_bytes, multiply_tiles};
  return table;
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
