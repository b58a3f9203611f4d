// FP8 (E4M3FN): its named values, its order, and NaN.
#include "base/fp8.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Fp8, HasTheValuesOfE4M3) {
  EXPECT_EQ(fp8_e4m3_to_fp32(0x00), 0.0f);
  EXPECT_EQ(fp8_e4m3_to_fp32(0x01), 0x1p-9f);  // the least subnormal
  EXPECT_EQ(fp8_e4m3_to_fp32(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(fp8_e4m3_to_fp32(0x08), 0x1p-6f);  // the least normal
  EXPECT_EQ(fp8_e4m3_to_fp32(0x38), 1.0f);
  EXPECT_EQ(fp8_e4m3_to_fp32(0x7e), 448.0f);  // the largest
  for (int bits = 0; bits < 0x7e; ++bits) {
    const float x = fp8_e4m3_to_fp32(static_cast<uint8_t>(bits));
    EXPECT_LT(x, fp8_e4m3_to_fp32(static_cast<uint8_t>(bits + 1))) << bits;
    EXPECT_EQ(fp8_e4m3_to_fp32(static_cast<uint8_t>(bits | 0x80)), -x) << bits;
  }
  EXPECT_TRUE(std::isnan(fp8_e4m3_to_fp32(0x7f)));
  EXPECT_TRUE(std::isnan(fp8_e4m3_to_fp32(0xff)));
}

}  // namespace
}  // namespace tandem
