// The CUDA device's weight layouts, on the host: blocks converted and read back give the floats of the
// format.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "ggml-cuda/dtypes.h"
#include "ggml-cuda/relayout.h"
#include "gguf/quants.h"

namespace tandem::cuda {
namespace {

constexpr DType kQuantized[] = {DType::Q4_0,   DType::Q4_1,    DType::Q5_0,  DType::Q5_1,    DType::Q8_0,
                                DType::Q2_K,   DType::Q3_K,    DType::Q4_K,  DType::Q5_K,    DType::Q6_K,
                                DType::IQ4_NL, DType::IQ4_XS,  DType::MXFP4, DType::IQ2_XXS, DType::IQ2_XS,
                                DType::IQ2_S,  DType::IQ3_XXS, DType::IQ3_S, DType::IQ1_S,   DType::IQ1_M,
                                DType::TQ2_0,  DType::NVFP4,   DType::Q1_0};

// Quantized random floats use all bits and have finite scales.
std::vector<std::byte> random_weight(DType dtype, int64_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(rng);
  std::vector<std::byte> blocks(row_bytes(dtype, n));
  quantize_row(dtype, x.data(), blocks.data(), n);
  return blocks;
}

template <DType T>
void relayout(const std::byte* from, int64_t n_elements, const Planes& to) {
  using Block = FileBlock<T>;
  const auto* blocks = reinterpret_cast<const Block*>(from);
  const int64_t n_file_blocks = n_elements / kBlockColumns / kPerFileBlock<T>;
  for (int64_t i = 0; i < n_file_blocks; ++i) {
    for (int s = 0; s < kPerFileBlock<T>; ++s) relayout_block<T>(blocks[i], i, s, to);
  }
}

class CudaLayout : public testing::TestWithParam<DType> {};

TEST_P(CudaLayout, BlocksReadBackEqualTheReference) {
  const DType dtype = GetParam();
  std::mt19937 rng(static_cast<uint32_t>(dtype));
  constexpr int64_t kRows = 7, kCols = 768;
  const auto file = random_weight(dtype, kRows * kCols, rng);
  const PlaneOffsets offsets = plane_offsets(dtype, kRows, kCols);
  std::vector<std::byte> device(static_cast<size_t>(offsets.mat_bytes) + 16, std::byte{0xcd});
  auto* base =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(device.data()) + 15) & ~uintptr_t{15});
  const Planes planes = planes_of(dtype, base, kRows, kCols);
  std::vector<float> expected(kRows * kCols);
  dequantize_row(dtype, file.data(), expected.data(), kRows * kCols);
  for_format(dtype, [&]<DType T>() {
    relayout<T>(file.data(), kRows * kCols, planes);
    for (uint32_t block = 0; block < kRows * kCols / kBlockColumns; ++block) {
      float got[kBlockColumns];
      dequantize_block<T>(planes, block, got);
      for (int i = 0; i < kBlockColumns; ++i)
        ASSERT_EQ(got[i], expected[block * kBlockColumns + i]) << block << " " << i;
    }
  });
}

// Blocks of random bytes, to check that every bit of codes and scales reaches the planes.
TEST_P(CudaLayout, RandomBytesReadBackEqualTheReference) {
  const DType dtype = GetParam();
  std::mt19937 rng(99 + static_cast<uint32_t>(dtype));
  constexpr int64_t kCols = 2048;
  std::vector<std::byte> file(row_bytes(dtype, kCols));
  for (std::byte& b : file) b = static_cast<std::byte>(rng() & 0xff);
  std::vector<std::byte> device(static_cast<size_t>(plane_offsets(dtype, 1, kCols).mat_bytes));
  const Planes planes = planes_of(dtype, device.data(), 1, kCols);
  std::vector<float> expected(kCols);
  dequantize_row(dtype, file.data(), expected.data(), kCols);
  int n_compared = 0;
  for_format(dtype, [&]<DType T>() {
    relayout<T>(file.data(), kCols, planes);
    for (uint32_t block = 0; block < kCols / kBlockColumns; ++block) {
      float got[kBlockColumns];
      dequantize_block<T>(planes, block, got);
      for (int i = 0; i < kBlockColumns; ++i) {
        const float want = expected[block * kBlockColumns + i];
        if (!std::isfinite(want)) continue;  // NaN or infinite scale
        ASSERT_EQ(got[i], want) << block << " " << i;
        ++n_compared;
      }
    }
  });
  EXPECT_GT(n_compared, kCols / 2);
}

TEST_P(CudaLayout, PlanesAreAlignedDisjointAndCompact) {
  const DType dtype = GetParam();
  const int64_t rows = 33, cols = 512;
  const PlaneOffsets o = plane_offsets(dtype, rows, cols);
  for (int64_t at : {o.high, o.scale, o.super, o.mat_bytes}) EXPECT_EQ(at % 256, 0);
  EXPECT_LE(0, o.high);
  EXPECT_LE(o.high, o.scale);
  EXPECT_LE(o.scale, o.super);
  EXPECT_LE(o.super, o.mat_bytes);
  const auto file = static_cast<int64_t>(row_bytes(dtype, cols)) * rows;
  // Whole bytes for the scales of Q3_K; two bytes of padding of IQ3_S; every 32 columns of Q1_0 have their scale.
  const int of_256 = dtype == DType::Q3_K ? 4 : dtype == DType::IQ3_S ? 2 : dtype == DType::Q1_0 ? 12 : 0;
  const int64_t more = rows * cols / 256 * of_256;
  EXPECT_GE(o.mat_bytes, file + more);
  EXPECT_LT(o.mat_bytes, file + more + 4 * 256);
  EXPECT_EQ(layout_bytes(dtype, 5, rows, cols, 5 * file), 5 * o.mat_bytes);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaLayout, testing::ValuesIn(kQuantized),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

// Made by any number of threads, every word of a table is written and holds the levels of its vector.
TEST(CudaGrids, TablesHoldTheLevelsOfTheirVectors) {
  for (DType dtype : kQuantized) {
    for_format(dtype, [&]<DType T>() {
      if constexpr (has_grid(T)) {
        constexpr uint32_t kWords = 2100;
        std::vector<uint32_t> words(kWords, 0xcdcdcdcd);
        for (int thread = 0; thread < 96; ++thread) make_grid<T>(words.data(), thread, 96);
        for (uint32_t i = 0; i < kWords; ++i) {
          SCOPED_TRACE(testing::Message() << dtype_name(T) << " " << i);
          if (i >= static_cast<uint32_t>(grid_entries(T))) {
            ASSERT_EQ(words[i], 0xcdcdcdcd);
            continue;
          }
          for (int j = 0; j < (has_grid_of_8(T) ? 8 : 4); ++j) {
            const uint32_t code =
                packed_vector<T>(i) >> (has_grid_of_8(T) ? 2 : 3) * j & (has_grid_of_8(T) ? 3 : 7);
            if (has_grid_of_8(T)) {
              ASSERT_EQ(words[i] >> 4 * j & 15, code);
            } else {
              ASSERT_EQ(static_cast<int>(words[i] >> 8 * j & 255),
                        T == DType::IQ3_S ? iq3_s_level(code) : iq3_xxs_level(code));
            }
          }
          ASSERT_EQ((SharedGrid{words.data()}.entry<T>(i)), PackedGrid{}.entry<T>(i));
        }
      }
    });
  }
}

TEST(CudaLayoutTable, EveryDtypeThatCanBeReadHasOnePath) {
  const std::set<DType> quantized(std::begin(kQuantized), std::end(kQuantized));
  for (const DTypeInfo& info : all_dtypes()) {
    const bool planes = quantized.count(info.dtype) == 1;
    EXPECT_EQ(has_planes(info.dtype), planes) << info.name;
    bool listed = false;
    for_format(info.dtype, [&]<DType T>() { listed = T == info.dtype; });
    EXPECT_EQ(listed, planes) << info.name;
    EXPECT_EQ(is_plain(info.dtype) + planes + is_generic(info.dtype), info.to_float ? 1 : 0) << info.name;
    const KernelPath path = !info.to_float           ? KernelPath::none
                            : is_generic(info.dtype) ? KernelPath::generic
                                                     : KernelPath::own;
    EXPECT_EQ(dtype_support(info.dtype).read, path) << info.name;
    EXPECT_EQ(dtype_support(info.dtype).multiply, path) << info.name;
  }
  EXPECT_EQ(layout_bytes(DType::F32, 1, 1, 100, 400), 512);
}

}  // namespace
}  // namespace tandem::cuda
