#include "graph/hadamard.h"

#include <algorithm>
#include <cmath>

namespace tandem {

int64_t hadamard_width(int64_t head_dim) {
  if (head_dim <= 0) return 0;
  const int64_t width = std::min(head_dim & -head_dim, kMaxHadamard);
  return width < kMinHadamard ? 0 : width;
}

float hadamard_scale(int64_t width) {
  return 1.0f / std::sqrt(static_cast<float>(width));
}

void hadamard(float* x, int64_t width, int64_t n) {
  const float scale = hadamard_scale(width);
  for (float* run = x; run < x + n; run += width) {
    for (int64_t stride = 1; stride < width; stride *= 2) {
      for (int64_t i = 0; i < width; ++i) {
        if (i & stride) continue;
        const float a = run[i], b = run[i + stride];
        run[i] = a + b;
        run[i + stride] = a - b;
      }
    }
    for (int64_t i = 0; i < width; ++i) run[i] *= scale;
  }
}

}  // namespace tandem
