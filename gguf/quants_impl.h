// The floats' dequantizers and quantizers; the public interface is quants.h. Internal to gguf/.
#pragma once

#include <cstdint>

namespace tandem::quants {

void dequantize_f32(const void* src, float* dst, int64_t n);
void dequantize_f16(const void* src, float* dst, int64_t n);
void dequantize_bf16(const void* src, float* dst, int64_t n);
void quantize_f32(const float* src, void* dst, int64_t n, const float* importance);
void quantize_f16(const float* src, void* dst, int64_t n, const float* importance);
void quantize_bf16(const float* src, void* dst, int64_t n, const float* importance);

}  // namespace tandem::quants
