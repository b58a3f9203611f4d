// The block layouts of KIVI4 and KIVI2: groups of keys and rows of values.
#include "gguf/kivi.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gguf/quants.h"
#include "support/row_values.h"

namespace tandem {
namespace {

using test::rms_error;

constexpr DType kBoth[] = {DType::KIVI4, DType::KIVI2};

std::vector<std::byte> group_of(DType dtype, const std::vector<float>& keys, int64_t head_dim) {
  std::vector<std::byte> bytes(row_bytes(dtype, head_dim) * kKiviGroup);
  quantize_key_group(dtype, keys.data(), bytes.data(), head_dim);
  return bytes;
}

std::vector<float> keys_of(DType dtype, const std::vector<std::byte>& group, int64_t head_dim) {
  std::vector<float> keys(static_cast<size_t>(kKiviGroup * head_dim));
  dequantize_key_group(dtype, group.data(), 0, kKiviGroup, keys.data(), head_dim);
  return keys;
}

TEST(Kivi, TypesAreOfNoFile) {
  for (const DType dtype : kBoth) {
    EXPECT_EQ(find_dtype(static_cast<uint32_t>(dtype)), nullptr);
    EXPECT_FALSE(dtype_from_name(dtype_name(dtype)).has_value());
  }
  EXPECT_EQ(row_bytes(DType::KIVI4, 128), 80u);
  EXPECT_EQ(row_bytes(DType::KIVI2, 128), 48u);
}

// Channel c of token t has the level (t + c) % levels, so every code is known.
TEST(Kivi, AGroupOfKeysHasScalesThenMinimaThenCodes) {
  constexpr int64_t kHead = 64;
  for (const DType dtype : kBoth) {
    const int bits = kivi_bits(dtype), levels = 1 << bits;
    std::vector<float> keys(kKiviGroup * kHead);
    for (int64_t t = 0; t < kKiviGroup; ++t) {
      for (int64_t c = 0; c < kHead; ++c)
        keys[static_cast<size_t>(t * kHead + c)] =
            0.25f * static_cast<float>((t + c) % levels) - static_cast<float>(c);
    }
    const std::vector<std::byte> group = group_of(dtype, keys, kHead);
    const auto* halves = reinterpret_cast<const fp16_t*>(group.data());
    const auto* codes = reinterpret_cast<const uint8_t*>(halves + 2 * kHead);
    for (int64_t c = 0; c < kHead; ++c) {
      EXPECT_EQ(fp16_to_fp32(halves[c]), 0.25f);
      EXPECT_EQ(fp16_to_fp32(halves[kHead + c]), -static_cast<float>(c));
    }
    const int64_t token = 3, piece = 1;
    const uint8_t* first = codes + (token * 2 + piece) * 4 * bits;
    const auto level = [&](int64_t c) { return (token + 32 * piece + c) % levels; };
    EXPECT_EQ(first[1], bits == 4 ? level(1) | level(17) << 4
                                  : level(1) | level(9) << 2 | level(17) << 4 | level(25) << 6);
    EXPECT_EQ(keys_of(dtype, group, kHead), keys);
    std::vector<float> some(static_cast<size_t>(5 * kHead));
    dequantize_key_group(dtype, group.data(), 7, 5, some.data(), kHead);
    EXPECT_EQ(std::memcmp(some.data(), keys.data() + 7 * kHead, some.size() * sizeof(float)), 0);
  }
}

TEST(Kivi, ErrorsAgainstHalfFloats) {
  constexpr int64_t kHead = 128;
  const std::vector<float> x = test::normal_floats(kKiviGroup * kHead, 1.0f, 3);
  const struct {
    DType dtype;
    double bound;
  } bounds[] = {{DType::KIVI4, 0.082}, {DType::KIVI2, 0.42}};
  for (const auto& [dtype, bound] : bounds) {
    const double keys = rms_error(x, keys_of(dtype, group_of(dtype, x, kHead), kHead));
    std::vector<std::byte> rows(row_bytes(dtype, kKiviGroup * kHead));
    quantize_row(dtype, x.data(), rows.data(), kKiviGroup * kHead);
    std::vector<float> y(x.size());
    dequantize_row(dtype, rows.data(), y.data(), kKiviGroup * kHead);
    const double values = rms_error(x, y);
    for (const double error : {keys, values}) {
      EXPECT_LE(error, bound) << dtype_name(dtype);
      EXPECT_GE(error, 0.9 * bound) << dtype_name(dtype) << ": tighten the bound";
    }
  }
}

// Why keys are quantized by channel: one that is a hundred times larger costs its neighbours nothing.
TEST(Kivi, AnOutlierChannelCostsOtherChannelsNothing) {
  constexpr int64_t kHead = 64, kOutlier = 5;
  const std::vector<float> plain = test::normal_floats(kKiviGroup * kHead, 1.0f, 4);
  std::vector<float> x = plain;
  for (int64_t t = 0; t < kKiviGroup; ++t) x[static_cast<size_t>(t * kHead + kOutlier)] *= 100;
  for (const DType dtype : kBoth) {
    std::vector<float> a = keys_of(dtype, group_of(dtype, plain, kHead), kHead),
                       b = keys_of(dtype, group_of(dtype, x, kHead), kHead);
    for (int64_t t = 0; t < kKiviGroup; ++t) {
      const auto at = static_cast<size_t>(t * kHead + kOutlier);
      a[at] = b[at] = 0;
    }
    EXPECT_EQ(a, b);
  }
}

TEST(Kivi, ConstantChannelsAreExactAndAnyFloatIsTaken) {
  constexpr int64_t kHead = 32;
  for (const DType dtype : kBoth) {
    std::vector<float> x(kKiviGroup * kHead, -1.5f);
    EXPECT_EQ(keys_of(dtype, group_of(dtype, x, kHead), kHead), x);
    for (const float odd : {std::nanf(""), std::numeric_limits<float>::infinity(), 1e30f, -1e30f, 1e-42f}) {
      x[17] = odd;
      const std::vector<float> y = keys_of(dtype, group_of(dtype, x, kHead), kHead);
      for (int64_t c = 0; c < kHead; ++c)
        EXPECT_EQ(y[static_cast<size_t>(kHead + c)] == -1.5f || c == 17, true);
      std::vector<std::byte> row(row_bytes(dtype, kHead));
      quantize_row(dtype, x.data(), row.data(), kHead);
    }
  }
}

// What a saved session does: rows are read as half floats, and quantized again when they are loaded.
TEST(Kivi, QuantizingAgainChangesLittle) {
  constexpr int64_t kHead = 64;
  const std::vector<float> x = test::normal_floats(kKiviGroup * kHead, 1.0f, 5);
  for (const DType dtype : kBoth) {
    const std::vector<float> once = keys_of(dtype, group_of(dtype, x, kHead), kHead);
    std::vector<float> half = once;
    for (float& v : half) v = fp16_to_fp32(fp32_to_fp16(v));
    EXPECT_LE(rms_error(once, keys_of(dtype, group_of(dtype, half, kHead), kHead)), 2e-3);
  }
}

}  // namespace
}  // namespace tandem
