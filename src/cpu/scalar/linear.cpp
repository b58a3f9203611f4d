// The reference matrix products: weights dequantized by the format's reference code, activations encoded as
// in every instruction set. Written for reading and comparison, not for speed.
//
// Encodings, by weight dtype:
//   floats               the activations as they are
//   blocks of 32 to 128  int8 and one scale per 32 columns
//   blocks of 256        int8 and one scale per 256 columns
// Encoded token: k int8, then the scales; for floats k floats.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "cpu/linear_kernels.h"
#include "gguf/quants.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// The dtypes that this is the reference for: those with kernels in some instruction set.
constexpr DType kDtypes[] = {
    DType::F32,    DType::F16,   DType::BF16,    DType::Q4_0,   DType::Q4_1,  DType::Q5_0,    DType::Q5_1,
    DType::Q8_0,   DType::Q2_K,  DType::Q3_K,    DType::Q4_K,   DType::Q5_K,  DType::Q6_K,    DType::IQ4_NL,
    DType::IQ4_XS, DType::MXFP4, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS, DType::IQ3_S,
    DType::IQ1_S,  DType::IQ1_M, DType::TQ1_0,   DType::TQ2_0,  DType::NVFP4, DType::Q1_0};

bool has_kernel(DType dtype) {
  return std::find(std::begin(kDtypes), std::end(kDtypes), dtype) != std::end(kDtypes);
}

// Columns that share a scale; 0 when the activations stay floats.
int64_t scale_columns(DType dtype) {
  const int64_t block = dtype_info(dtype).block_elements;
  return block == 1 ? 0 : block < 256 ? 32 : block;
}

size_t encoded_token_bytes(DType dtype, int64_t k) {
  const int64_t block = scale_columns(dtype);
  return static_cast<size_t>(block == 0 ? 4 * k : k + 4 * (k / block));
}

size_t encoded_bytes(DType dtype, int64_t n, int64_t k) {
  return static_cast<size_t>(n) * encoded_token_bytes(dtype, k);
}

bool same_encoding(DType a, DType b, int64_t) {
  return scale_columns(a) == scale_columns(b);
}

int64_t encode_granularity(DType, int64_t) {
  return 1;
}

// See LinearKernels::encode. Returns the scale.
float encode_block(const float* x, int8_t* q, int64_t count) {
  uint32_t max_bits = 0;  // magnitudes order like their bits, with infinity and NaN above everything
  for (int64_t i = 0; i < count; ++i)
    max_bits = std::max(max_bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffff);
  const float max = std::bit_cast<float>(max_bits);
  const bool finite = std::isfinite(max);
  if (!finite || max < 1e-30f) {
    std::memset(q, 0, static_cast<size_t>(count));
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const float inverse = 127.0f / max;
  for (int64_t i = 0; i < count; ++i) q[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  return max / 127.0f;
}

void encode(DType dtype, const float* x, int64_t ldx, int64_t, int64_t k, int64_t token0, int64_t token1,
            std::byte* encoded) {
  const int64_t block = scale_columns(dtype);
  const size_t stride = encoded_token_bytes(dtype, k);
  for (int64_t t = token0; t < token1; ++t) {
    std::byte* to = encoded + static_cast<size_t>(t) * stride;
    const float* from = x + t * ldx;
    if (block == 0) {
      std::memcpy(to, from, stride);
      continue;
    }
    int8_t* q = reinterpret_cast<int8_t*>(to);
    float* scales = reinterpret_cast<float*>(to + k);  // k is a multiple of 32
    for (int64_t b = 0; b < k / block; ++b) scales[b] = encode_block(from + b * block, q + b * block, block);
  }
}

int64_t row_granularity(DType, int64_t, int64_t, int64_t) {
  return 1;
}

size_t scratch_bytes(DType, int64_t, int64_t k) {
  return static_cast<size_t>(k) * sizeof(float);
}

// Dot product of one weight row, as floats, with one encoded token.
double dot(const float* w, const std::byte* x, int64_t block, int64_t k) {
  double sum = 0;
  if (block == 0) {
    const float* values = reinterpret_cast<const float*>(x);
    for (int64_t i = 0; i < k; ++i) sum += static_cast<double>(w[i]) * values[i];
    return sum;
  }
  const int8_t* q = reinterpret_cast<const int8_t*>(x);
  const float* scales = reinterpret_cast<const float*>(x + k);
  for (int64_t b = 0; b < k / block; ++b) {
    double block_sum = 0;
    for (int64_t i = b * block; i < (b + 1) * block; ++i) block_sum += static_cast<double>(w[i]) * q[i];
    sum += block_sum * scales[b];
  }
  return sum;
}

void multiply(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  const DequantizeFn dequantize = dequantize_fn(call.dtype);
  const size_t w_stride = row_bytes(call.dtype, call.k);
  const size_t x_stride = encoded_token_bytes(call.dtype, call.k);
  const int64_t block = scale_columns(call.dtype);
  float* w = reinterpret_cast<float*>(scratch);  // [k]
  for (int64_t r = row0; r < row1; ++r) {
    dequantize(call.w + static_cast<size_t>(r) * w_stride, w, call.k);
    for (int64_t t = call.token0; t < call.end_token(); ++t) {
      float y = static_cast<float>(dot(w, call.x + static_cast<size_t>(t) * x_stride, block, call.k));
      if (call.bias) y += call.bias[r];
      if (call.residual) y += call.residual[t * call.ld_residual + r];
      call.y[t * call.ldy + r] = y;
    }
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
