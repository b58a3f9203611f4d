// The bytes of the quantizers with searches do not depend on the instruction set: compares the same sources, compiled
// here for the baseline only, with the library, which uses the best instruction set of the CPU.
#define TANDEM_LANES_FN
#define quants quants_baseline
#include "gguf/quantize_grid.cpp"
#include "gguf/quantize_k.cpp"
#include "gguf/quants_blocks.cpp"
#include "gguf/quants_fit.cpp"
#include "gguf/quants_grid.cpp"
#include "gguf/quants_lanes.cpp"
#undef quants

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "gguf/quants.h"

namespace tandem {
namespace {

struct QuantCase {
  DType dtype;
  QuantizeFn baseline;
};

template <class Block>
void baseline(const float* x, void* to, int64_t n, const float* importance) {
  quants_baseline::quantize(x, static_cast<Block*>(to), n, importance);
}

constexpr QuantCase kCases[] = {
    {DType::Q2_K, baseline<BlockQ2_K>},   {DType::Q3_K, baseline<BlockQ3_K>},
    {DType::Q4_K, baseline<BlockQ4_K>},   {DType::Q5_K, baseline<BlockQ5_K>},
    {DType::Q6_K, baseline<BlockQ6_K>},   {DType::IQ2_XXS, baseline<BlockIQ2_XXS>},
    {DType::IQ3_S, baseline<BlockIQ3_S>}, {DType::IQ1_M, baseline<BlockIQ1_M>}};

// Rows of many kinds: ordinary, with outliers, of one sign, flat, tiny, huge, and of zeros.
std::vector<float> row(int kind, size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = normal(random);
    if (kind == 1 && i % 37 == 0) x[i] *= 20;
    if (kind == 2) x[i] = std::fabs(x[i]);
    if (kind == 3) x[i] = 0.5f;
    if (kind == 4) x[i] *= 1e-30f;
    if (kind == 5) x[i] *= 1e30f;
    if (kind == 6 && i / 16 % 3 == 0) x[i] = 0.0f;
    if (kind == 7) x[i] = -std::fabs(x[i]);
  }
  return x;
}

TEST(QuantsIsa, EveryInstructionSetGivesTheSameBytes) {
  constexpr size_t kElements = 2048;
  std::mt19937 random(7);
  std::exponential_distribution<float> importance;
  std::vector<float> weights(kElements);
  for (float& w : weights) w = importance(random);
  for (const QuantCase& c : kCases) {
    for (int kind = 0; kind < 8; ++kind) {
      for (const float* w : {static_cast<const float*>(nullptr), static_cast<const float*>(weights.data())}) {
        const std::vector<float> x = row(kind, kElements, random);
        std::vector<uint8_t> expected(row_bytes(c.dtype, kElements)), got(expected.size());
        c.baseline(x.data(), expected.data(), kElements, w);
        quantize_row(c.dtype, x.data(), got.data(), kElements, w);
        EXPECT_EQ(got, expected) << dtype_name(c.dtype) << ", kind " << kind << (w ? ", weighted" : "");
      }
    }
  }
}

TEST(QuantsIsa, EveryHalfIsTheFloatThatItIs) {
  std::vector<fp16_t> halves(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<fp16_t>(i);
  std::vector<float> got(halves.size() - 3);  // not a multiple of anything
  dequantize_row(DType::F16, halves.data(), got.data(), static_cast<int64_t>(got.size()));
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(fp16_to_fp32(halves[i]))) << i;
  }
}

}  // namespace
}  // namespace tandem
