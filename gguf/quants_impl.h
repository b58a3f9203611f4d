// The floats' dequantizers and quantizers, and that of IQ4_NL for caches; the public interface is quants.h. Internal to gguf/.
#pragma once

#include <cstdint>

#include "gguf/blocks.h"

namespace tandem::quants {

void dequantize_f32(const void* src, float* dst, int64_t n);
void dequantize_f16(const void* src, float* dst, int64_t n);
void dequantize_bf16(const void* src, float* dst, int64_t n);
void quantize_f32(const float* src, void* dst, int64_t n, const float* importance);
void quantize_f16(const float* src, void* dst, int64_t n, const float* importance);
void quantize_bf16(const float* src, void* dst, int64_t n, const float* importance);
// Without a search; see quantize_cache_row.
void quantize_at_once(const float* src, BlockIQ4_NL* blocks, int64_t n);

}  // namespace tandem::quants
