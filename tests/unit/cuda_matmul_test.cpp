// The CUDA tensor-core products, run on the host block by block. A stand-in replaces cp.async, ldmatrix and
// mma, with the fragment layouts of the PTX manual; everything else is the kernel's own code.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "ggml-cuda/matmul.h"
#include "unit/cuda_products.h"

namespace tandem::cuda {
namespace {

int8_t byte_of(uint32_t word, int i) {
  return static_cast<int8_t>(word >> 8 * i & 0xff);
}

// Registers of a warp, [lane][register].
struct Warp {
  uint32_t a[32][4];
  uint32_t b[32][4];
};

// Element (row, column) of A [16, 32] and (column, token) of B [32, 8].
int8_t element_a(const Warp& warp, int row, int column) {
  return byte_of(warp.a[row % 8 * 4 + column % 16 / 4][column / 16 * 2 + row / 8], column % 4);
}
int8_t element_b(const Warp& warp, int j, int column, int token) {
  return byte_of(warp.b[token * 4 + column % 16 / 4][2 * j + column / 16], column % 4);
}

// c [lane][4] of columns first .. last - 1 of fragments A and B number j.
void multiply_part(const Warp& warp, int j, int first, int last, int c[32][4]) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      c[lane][i] = 0;
      for (int column = first; column < last; ++column) {
        c[lane][i] +=
            element_a(warp, lane / 4 + i / 2 * 8, column) * element_b(warp, j, column, lane % 4 * 2 + i % 2);
      }
    }
  }
}

// ldmatrix.x4: lane l of 8m .. 8m+7 gives the address of a row of matrix m; lane l gets word l % 4 of row l /
// 4 of each.
void load_from_stage(const std::byte* stage, const int (&at)[32], uint32_t (&to)[32][4]) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) std::memcpy(&to[lane][m], stage + at[8 * m + lane / 4] + lane % 4 * 4, 4);
  }
}

template <DType T, int kPairs>
void run_block(const MatmulArgs& args, TokenTile tokens, int block_x, int slice) {
  using M = Matmul<T, kPairs>;
  const typename M::Tile tile{expert_planes(args.w, tokens.expert),
                              args.w.k / kBlockColumns,
                              args.w.m,
                              block_x * kTileRows,
                              tokens.first,
                              tokens.count};
  std::vector<int> x_rows(M::kTokens);
  for (int i = 0; i < tokens.count; ++i)
    x_rows[i] = args.row_of ? args.row_of[tokens.first + i] : tokens.first + i;
  Aligned stage(M::kStageBytes);
  std::vector<float> floats(M::kScaleFloats);
  std::vector<float> sums(4 * 2 * 2 * kPairs * 32 * 4);  // [warp][i][j][lane][e]
  const auto sum_at = [](int warp, int i, int j, int lane, int e) {
    return (((warp * 2 + i) * 2 * kPairs + j) * 32 + lane) * 4 + e;
  };
  const StageRange range = stages_of_slice(args.w.k, slice, args.n_slices);
  for (int s = range.first; s < range.first + range.count; ++s) {
    std::memset(stage.data(), 0xee, M::kStageBytes);
    std::fill(floats.begin(), floats.end(), NAN);
    for (int thread = 0; thread < kMatmulThreads; ++thread) {
      const auto cursor = M::cursor_of(tile, x_rows.data(), thread);
      M::copy_stage(tile, args.x, cursor, s, thread,
                    [&]<int kBytes>(int at, const std::byte* from, bool valid) {
                      ASSERT_EQ(at % kBytes, 0);
                      ASSERT_EQ(reinterpret_cast<uintptr_t>(from) % kBytes, 0u);
                      ASSERT_LE(at + kBytes, M::kStageBytes);
                      if (valid)
                        std::memcpy(stage.data() + at, from, kBytes);
                      else
                        std::memset(stage.data() + at, 0, kBytes);
                    });
      M::store_scales(M::load_scales(tile, args.x, cursor, s, thread), s, thread, floats.data());
    }
    for (int w = 0; w < 4; ++w) {
      const int row = w / 2 * 32, token = w % 2 * (M::kTokens / 2);
      for (int b = 0; b < kStageBlocks; ++b) {
        for (int i = 0; i < 2; ++i) {
          for (int pair = 0; pair < kPairs; ++pair) {
            Warp warp;
            int at[32], c[2][32][4];
            for (int lane = 0; lane < 32; ++lane) {
              M::fragment_a(stage.data(), floats.data(), row + 16 * i, b, lane, warp.a[lane]);
              at[lane] = M::fragment_b_at(token + 16 * pair, b, lane);
            }
            load_from_stage(stage.data(), at, warp.b);
            for (int j = 0; j < 2; ++j) {
              multiply_part(warp, j, 0, M::F::kHalves ? 16 : 32, c[0]);
              multiply_part(warp, j, 16, 32, c[1]);
              for (int lane = 0; lane < 32; ++lane) {
                for (int e = 0; e < 4; ++e) {
                  const int halves[2] = {c[0][lane][e], c[1][lane][e]};
                  float& sum = sums[sum_at(w, i, 2 * pair + j, lane, e)];
                  sum = M::scaled(sum, halves,
                                  M::row_floats(floats.data(), row + 16 * i + accumulator_row(lane, e), b),
                                  M::token_floats(floats.data(),
                                                  token + 16 * pair + 8 * j + accumulator_token(lane, e), b));
                }
              }
            }
          }
        }
      }
    }
  }
  for (int w = 0; w < 4; ++w) {
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2 * kPairs; ++j) {
        for (int lane = 0; lane < 32; ++lane) {
          for (int e = 0; e < 4; ++e) {
            const int r = tile.row0 + w / 2 * 32 + 16 * i + accumulator_row(lane, e);
            const int t = w % 2 * (M::kTokens / 2) + 8 * j + accumulator_token(lane, e);
            if (r < tile.m && t < tile.n_tokens) {
              store_sum(args, slice, tokens.expert, tile.token0 + t, r, sums[sum_at(w, i, j, lane, e)]);
            }
          }
        }
      }
    }
  }
}

template <int kPairs>
void run_tile(const MatmulArgs& args, TokenTile tokens) {
  for (int slice = 0; slice < args.n_slices; ++slice) {
    for (int x = 0; x < (args.w.m + kTileRows - 1) / kTileRows; ++x) {
      for_format(args.w.dtype, [&]<DType T>() { run_block<T, kPairs>(args, tokens, x, slice); });
    }
  }
}

template <int kPairs>
void run_matmul(const MatmulArgs& args) {
  for (int t = 0; t < args.n; t += 32 * kPairs)
    run_tile<kPairs>(args, {0, t, std::min(32 * kPairs, args.n - t)});
}

std::vector<DType> quantized() {
  std::vector<DType> dtypes = test::quantizable_dtypes();
  std::erase_if(dtypes, [](DType dtype) { return !has_planes(dtype); });
  return dtypes;
}

class CudaMatmul : public testing::TestWithParam<DType> {
 protected:
  std::mt19937 rng{11 + static_cast<uint32_t>(GetParam())};
};

TEST_P(CudaMatmul, EqualsTheDequantizedProduct) {
  const DType dtype = GetParam();
  const int block = static_cast<int>(dtype_info(dtype).block_elements);
  for (const auto& [n, m, k] : {std::tuple{9, 5, 32}, {33, 70, 352}, {70, 64, 512}}) {
    const int cols = std::max(block, k / block * block);
    const HostWeight w(dtype, m, cols, 1, rng);
    const HostInput x(n, cols, rng);
    const std::vector<float> bias = normals(m, rng);
    const std::vector<float> residual = normals(n * m, rng);
    std::vector<float> expected(n * m);
    for (int i = 0; i < n * m; ++i) expected[i] = x.dot(w, 0, i % m, i / m) + bias[i % m] + residual[i];
    MatmulArgs args;
    args.w = w.device;
    args.x = x.input().encoded[static_cast<int>(encoding_of(dtype))];
    args.bias = bias.data();
    args.n = n;
    std::vector<float> y = residual;
    args.residual = args.y = y.data();
    n > 32 ? run_matmul<2>(args) : run_matmul<1>(args);
    expect_near(y, expected, dtype_name(dtype));
  }
}

TEST_P(CudaMatmul, SlicesOfTheColumnsAddUp) {
  const DType dtype = GetParam();
  const int n = 12, m = 20, k = 768;
  const HostWeight w(dtype, m, k, 1, rng);
  const HostInput x(n, k, rng);
  MatmulArgs args;
  args.w = w.device;
  args.x = x.input().encoded[static_cast<int>(encoding_of(dtype))];
  args.n = n;
  args.n_slices = 4;
  args.store = MatmulStore::partial;
  std::vector<float> partial(4 * n * m, NAN), y(n * m), expected(n * m);
  args.partial = partial.data();
  run_matmul<1>(args);
  for (int i = 0; i < n * m; ++i) {
    expected[i] = x.dot(w, 0, i % m, i / m);
    for (int s = 0; s < 4; ++s) y[i] += partial[s * n * m + i];
  }
  expect_near(y, expected, dtype_name(dtype));
}

// Tokens in the order of their experts, their rows of x anywhere; the up product meets the gate's.
TEST_P(CudaMatmul, GroupsReadTheirExpertAndTheirRows) {
  const DType dtype = GetParam();
  const int m = 30, k = 256, n_expert = 3;
  const HostWeight w(dtype, m, k, n_expert, rng);
  const HostInput x(5, k, rng);
  const std::vector<int> row_of = {4, 0, 2, 2, 1, 3, 4};
  const std::vector<TokenTile> tiles = {{2, 0, 2}, {0, 2, 4}, {1, 6, 1}};
  const int n = static_cast<int>(row_of.size());
  std::vector<float> gate = normals(n * m, rng), y = gate, expected(n * m);
  MatmulArgs args;
  args.w = w.device;
  args.x = x.input().encoded[static_cast<int>(encoding_of(dtype))];
  args.n = n;
  args.row_of = row_of.data();
  args.y = y.data();
  args.store = MatmulStore::with_gate;
  for (const TokenTile& tile : tiles) {
    run_tile<1>(args, tile);
    for (int t = tile.first; t < tile.first + tile.count; ++t) {
      for (int r = 0; r < m; ++r) {
        expected[t * m + r] =
            activate(Activation::silu, gate[t * m + r]) * x.dot(w, tile.expert, r, row_of[t]);
      }
    }
  }
  expect_near(y, expected, dtype_name(dtype));
}

// Every byte of a stage that is read is written exactly once, by any thread.
TEST_P(CudaMatmul, ThreadsCopyDistinctPieces) {
  for_format(GetParam(), [&]<DType T>() {
    using M = Matmul<T, 2>;
    std::vector<int> rows(M::kTokens);
    const typename M::Tile tile{{}, 8, 200, 64, 0, M::kTokens};
    std::set<int> offsets;
    int n_bytes = 0;
    for (int thread = 0; thread < kMatmulThreads; ++thread) {
      M::copy_stage(tile, {}, M::cursor_of(tile, rows.data(), thread), 0, thread,
                    [&]<int kBytes>(int at, const std::byte*, bool valid) {
                      EXPECT_TRUE(valid);
                      EXPECT_TRUE(offsets.insert(at).second) << at;
                      n_bytes += kBytes;
                    });
    }
    const int row = (M::F::kBytes.low + M::F::kBytes.high) * kStageBlocks;
    EXPECT_EQ(n_bytes, kTileRows * row + M::kTokens * 32 * kStageBlocks);
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaMatmul, testing::ValuesIn(quantized()),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST(CudaMatmulStages, SlicesCutAllStages) {
  for (int k : {32, 96, 2880, 14336}) {
    for (int n_slices : {1, 2, 5, 8}) {
      int next = 0;
      for (int s = 0; s < n_slices; ++s) {
        const StageRange range = stages_of_slice(k, s, n_slices);
        EXPECT_EQ(range.first, next);
        next += range.count;
      }
      EXPECT_EQ(next, (k / 32 + 3) / 4);
    }
  }
}

}  // namespace
}  // namespace tandem::cuda
