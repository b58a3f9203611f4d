// TQ2_0: -1, 0 or 1 times the largest magnitude of the block.
#include <cmath>

#include "gguf/blocks_k.h"
#include "gguf/quants_fit.h"

namespace tandem::quants {

// The scale is given, so importance has no say. Halves are rounded away from zero.
void quantize(const float* x, BlockTQ2_0* to, int64_t n, const float*) {
  for (int64_t b = 0; b < n / QK_K; ++b, x += QK_K) {
    const float d = std::fabs(signed_max(x, QK_K)), id = inverse(d);
    uint8_t codes[QK_K];
    for (int e = 0; e < QK_K; ++e) {
      const float v = x[e] * id;
      codes[e] = v >= 0.5f ? 2 : v <= -0.5f ? 0 : 1;
    }
    pack_two_bits(codes, to[b].qs);
    to[b].d = to_scale(d);
  }
}

}  // namespace tandem::quants
