// The grouped cache types as CUDA kernels read them, on the host.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "ggml-cuda/kivi_rows.h"
#include "gguf/quants.h"

namespace tandem::cuda {
namespace {

TEST(CudaKivi, GroupsAreReadAsTheFormatDefines) {
  std::mt19937 random(std::random_device{}());
  for (const DType dtype : {DType::KIVI4, DType::KIVI2}) {
    for (const int n : {32, 64, 96, 128, 256}) {
      for (const Half half : {Half::keys, Half::values}) {
        std::normal_distribution<float> normal(0.0f, 3.0f);
        std::vector<float> x(static_cast<size_t>(kKiviGroup * n)), want(x.size());
        for (float& v : x) v = normal(random);
        std::vector<Words4> memory(row_bytes(dtype, kKiviGroup * n) / sizeof(Words4) + 1);
        auto* group = reinterpret_cast<uint8_t*>(memory.data());
        if (half == Half::keys) {
          quantize_key_group(dtype, x.data(), group, n);
          dequantize_key_group(dtype, group, 0, kKiviGroup, want.data(), n);
        } else {
          quantize_row(dtype, x.data(), group, kKiviGroup * n);
          dequantize_row(dtype, group, want.data(), kKiviGroup * n);
        }
        for (int token = 0; token < kKiviGroup; ++token) {
          for (int i = 0; i < n; ++i) {
            float got[8];
            read_group_eight(dtype, half, group, token, n, i / 8, got);
            const float expected = want[static_cast<size_t>(token * n + i)];
            ASSERT_EQ(got[i % 8], expected) << dtype_name(dtype) << " token " << token << " channel " << i;
            ASSERT_EQ(read_group_one(dtype, half, group, token, n, i), expected);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cuda
