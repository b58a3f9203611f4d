// The table of AVX512 products. Compiled twice, with and without VNNI; linear_simd.h has the differences.
#include "cpu/avx512/linear_layout.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16;
}

bool has_kernel(DType dtype) {
  return is_float(dtype) || unit_of(dtype) != 0;
}

size_t encoded_bytes(DType dtype, int64_t n, int64_t k) {
  if (is_float(dtype)) return float_encoded_bytes(n, k);
  return static_cast<size_t>(n * encoding_of(dtype, n).bytes(k));
}

bool same_encoding(DType a, DType b, int64_t n) {
  if (is_float(a) || is_float(b)) return is_float(a) && is_float(b);
  return encoding_of(a, n) == encoding_of(b, n);
}

int64_t encode_granularity(DType dtype, int64_t n) {
  return is_float(dtype) ? tile_tokens(n) : encoding_of(dtype, n).tile_tokens;
}

void encode(DType dtype, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0, int64_t token1,
            std::byte* encoded) {
  if (is_float(dtype)) return float_encode(x, ldx, n, k, token0, token1, encoded);
  const Encoding encoding = encoding_of(dtype, n);
  if (encoding.by_rows()) {
    for (int64_t t = token0; t < token1; ++t) encode_row(encoding, x + t * ldx, k, t, n, encoded);
    return;
  }
  const TileLayout layout{encoding.unit, k, encoding.order};
  const int64_t T = encoding.tile_tokens;
  for (int64_t t = token0; t < token1; t += T) {
    const int64_t tokens = t + T < n ? T : n - t;
    encode_tile(layout, x + t * ldx, ldx, tokens, encoded + 4 * t * layout.token_words());
  }
}

int64_t row_granularity(DType, int64_t, int64_t, int64_t) {
  return kStrip;
}

size_t scratch_bytes(DType dtype, int64_t n, int64_t k) {
  return is_float(dtype) ? float_scratch_bytes(n, k) : quantized_scratch_bytes(dtype, n, k);
}

void multiply(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  if (is_float(call.dtype)) {
    multiply_float(call, row0, row1, scratch);
  } else {
    multiply_quantized(call, row0, row1, scratch);
  }
}

}  // namespace

const LinearKernels& linear_kernels() {
  static constexpr LinearKernels table{has_kernel, encoded_bytes,   same_encoding, encode_granularity,
                                       encode,     row_granularity, scratch_bytes, multiply};
  return table;
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
