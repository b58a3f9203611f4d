#include "gguf/quants.h"

#include <cstring>

#include "base/error.h"
#include "base/fp16.h"
#include "gguf/lanes.h"
#include "gguf/quants_impl.h"

namespace tandem {
namespace quants {

void dequantize_f32(const void* src, float* dst, int64_t n) {
  std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
}

void quantize_f32(const float* src, void* dst, int64_t n, const float*) {
  std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
}

// Sixteen at a time. A multiplication shifts the exponent; it is exact and handles subnormals.
TANDEM_LANES_FN void dequantize_f16(const void* src, float* dst, int64_t n) {
  using HalfLanes = uint16_t __attribute__((vector_size(kLanes * sizeof(uint16_t))));
  const auto* halves = static_cast<const fp16_t*>(src);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    HalfLanes h;
    std::memcpy(&h, halves + i, sizeof h);
    const IntLanes bits = __builtin_convertvector(h, IntLanes), shifted = (bits & 0x7fff) << 13;
    Lanes size;
    std::memcpy(&size, &shifted, sizeof size);
    size *= 0x1p112f;
    IntLanes value;
    std::memcpy(&value, &size, sizeof value);
    value = (bits & 0x7c00) == 0x7c00 ? shifted | 0x7f800000 : value;  // infinities and NaN
    value |= (bits & 0x8000) << 16;
    std::memcpy(dst + i, &value, sizeof value);
  }
  for (; i < n; ++i) dst[i] = fp16_to_fp32(halves[i]);
}

void quantize_f16(const float* src, void* dst, int64_t n, const float*) {
  auto* halves = static_cast<fp16_t*>(dst);
  for (int64_t i = 0; i < n; ++i) halves[i] = fp32_to_fp16(src[i]);
}

void dequantize_bf16(const void* src, float* dst, int64_t n) {
  const auto* halves = static_cast<const bf16_t*>(src);
  for (int64_t i = 0; i < n; ++i) dst[i] = bf16_to_fp32(halves[i]);
}

void quantize_bf16(const float* src, void* dst, int64_t n, const float*) {
  auto* halves = static_cast<bf16_t*>(dst);
  for (int64_t i = 0; i < n; ++i) halves[i] = fp32_to_bf16(src[i]);
}

}  // namespace quants

DequantizeFn dequantize_fn(DType dtype) {
  const DequantizeFn to_float = dtype_info(dtype).to_float;
  TANDEM_CHECK(to_float != nullptr);
  return to_float;
}
QuantizeFn quantize_fn(DType dtype) {
  const QuantizeFn from_float = dtype_info(dtype).from_float;
  TANDEM_CHECK(from_float != nullptr);
  return from_float;
}

void quantize_cache_row(DType dtype, const float* src, void* dst, int64_t n) {
  if (dtype == DType::IQ4_NL) return quants::quantize_at_once(src, static_cast<BlockIQ4_NL*>(dst), n);
  quantize_row(dtype, src, dst, n);
}

}  // namespace tandem
