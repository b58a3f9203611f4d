// One dequantizer and one quantizer per dtype; the public interface is quants.h. Internal to gguf/.
#pragma once

#include <cstdint>

namespace tandem::quants {

#define TANDEM_DECLARE_QUANT(name)                                \
  void dequantize_##name(const void* src, float* dst, int64_t n); \
  void quantize_##name(const float* src, void* dst, int64_t n, const float* importance);

TANDEM_DECLARE_QUANT(f32)
TANDEM_DECLARE_QUANT(f16)
TANDEM_DECLARE_QUANT(bf16)
TANDEM_DECLARE_QUANT(q4_0)
TANDEM_DECLARE_QUANT(q4_1)
TANDEM_DECLARE_QUANT(q5_0)
TANDEM_DECLARE_QUANT(q5_1)
TANDEM_DECLARE_QUANT(q8_0)
TANDEM_DECLARE_QUANT(mxfp4)
TANDEM_DECLARE_QUANT(q2_k)
TANDEM_DECLARE_QUANT(q3_k)
TANDEM_DECLARE_QUANT(q4_k)
TANDEM_DECLARE_QUANT(q5_k)
TANDEM_DECLARE_QUANT(q6_k)
TANDEM_DECLARE_QUANT(iq4_nl)
TANDEM_DECLARE_QUANT(iq4_xs)
#undef TANDEM_DECLARE_QUANT

}  // namespace tandem::quants
