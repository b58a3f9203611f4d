// The CUDA prefill attention kernel on the host: the fragment maps of mma and ldmatrix, and a block of the
// kernel, lane by lane, against a reference in double precision.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "ggml-cuda/attention_fragments.h"
#include "ggml-cuda/attention_unpack.h"
#include "unit/cuda_attention_scene.h"

namespace tandem::cuda {
namespace {

using namespace attention_test;

template <int kRegisters>
using Fragments = std::array<std::array<std::array<float, 2>, kRegisters>, 32>;  // [lane][register][element]
using Sums = std::array<std::array<float, 4>, 32>;                               // C: [lane][register]

// A matrix of 16-bit elements in shared memory.
struct Matrix {
  int n_rows, n_cols;
  std::vector<float> x;
  Matrix(int rows, int cols) : n_rows(rows), n_cols(cols), x(static_cast<size_t>(rows * cols)) {}
  float& at(int row, int col) { return x[static_cast<size_t>(row * n_cols + col)]; }
  float at(int row, int col) const { return x[static_cast<size_t>(row * n_cols + col)]; }
};

// Emulates ldmatrix.x4: register i comes from the matrix whose rows lanes 8 i .. 8 i + 7 point to.
Fragments<4> load_matrices(const Matrix& m, int row, int col, Place (*row_of)(int), bool trans) {
  Fragments<4> f{};
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < 2; ++e) {
        const int i = trans ? lane % 4 * 2 + e : lane / 4, j = trans ? lane / 4 : lane % 4 * 2 + e;
        const Place from = row_of(8 * r + i);
        f[static_cast<size_t>(lane)][static_cast<size_t>(r)][static_cast<size_t>(e)] =
            m.at(row + from.row, col + from.col + j);
      }
    }
  }
  return f;
}

// C += A B, through the maps; B is registers b0 and b0 + 1.
void multiply(Sums& c, const Fragments<4>& a, const Fragments<4>& b, int b0) {
  Matrix ma(16, 16), mb(16, 8);
  for (int lane = 0; lane < 32; ++lane) {
    const auto l = static_cast<size_t>(lane);
    for (int e = 0; e < 2; ++e) {
      for (int r = 0; r < 4; ++r) {
        const Place p = place_in_a(lane, r, e);
        ma.at(p.row, p.col) = a[l][static_cast<size_t>(r)][static_cast<size_t>(e)];
      }
      for (int r = 0; r < 2; ++r) {
        const Place p = place_in_b(lane, r, e);
        mb.at(p.row, p.col) = b[l][static_cast<size_t>(b0 + r)][static_cast<size_t>(e)];
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Place p = place_in_c(lane, i);
      for (int k = 0; k < 16; ++k) {
        c[static_cast<size_t>(lane)][static_cast<size_t>(i)] += ma.at(p.row, k) * mb.at(k, p.col);
      }
    }
  }
}

TEST(CudaAttentionFragments, EveryElementIsInOneRegister) {
  std::set<std::pair<int, int>> a, b, c;
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < 2; ++e) {
        const Place pa = place_in_a(lane, r, e), pb = place_in_b(lane, r % 2, e);
        EXPECT_TRUE(a.insert({pa.row, pa.col}).second);
        if (r < 2) {
          EXPECT_TRUE(b.insert({pb.row, pb.col}).second);
        }
        EXPECT_TRUE(pa.row < 16 && pa.col < 16 && pb.row < 16 && pb.col < 8);
      }
      const Place pc = place_in_c(lane, r);
      EXPECT_TRUE(c.insert({pc.row, pc.col}).second);
      EXPECT_TRUE(pc.row < 16 && pc.col < 8);
    }
  }
  EXPECT_EQ(a.size(), 256u);
  EXPECT_EQ(b.size(), 128u);
  EXPECT_EQ(c.size(), 128u);
}

// The examples of the PTX ISA: lane 5 is group 1, thread 1 of it.
TEST(CudaAttentionFragments, LanesMatchTheManual) {
  const auto is = [](Place p, int row, int col) { return p.row == row && p.col == col; };
  EXPECT_TRUE(is(place_in_a(5, 0, 0), 1, 2));
  EXPECT_TRUE(is(place_in_a(5, 1, 1), 9, 3));
  EXPECT_TRUE(is(place_in_a(5, 2, 0), 1, 10));
  EXPECT_TRUE(is(place_in_a(5, 3, 1), 9, 11));
  EXPECT_TRUE(is(place_in_b(5, 0, 1), 3, 1));
  EXPECT_TRUE(is(place_in_b(5, 1, 0), 10, 1));
  EXPECT_TRUE(is(place_in_c(5, 1), 1, 3));
  EXPECT_TRUE(is(place_in_c(5, 2), 9, 2));
}

// ldmatrix gives B of Q K^T from keys [position, dim], and with .trans B of P V from values [position, dim].
TEST(CudaAttentionFragments, LdmatrixLoadsTheOperandsOfTheProducts) {
  Matrix m(16, 16);
  for (int i = 0; i < 256; ++i) m.x[static_cast<size_t>(i)] = static_cast<float>(i);
  const Fragments<4> keys = load_matrices(m, 0, 0, key_row_of, false);
  const Fragments<4> values = load_matrices(m, 0, 0, value_row_of, true);
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < 2; ++e) {
        const Place p = place_in_b(lane, r % 2, e);
        const int n = p.col + 8 * (r / 2);
        const auto l = static_cast<size_t>(lane), i = static_cast<size_t>(r), j = static_cast<size_t>(e);
        EXPECT_EQ(keys[l][i][j], m.at(n, p.row));    // k: dim, n: position
        EXPECT_EQ(values[l][i][j], m.at(p.row, n));  // k: position, n: dim
      }
    }
  }
}

TEST(CudaAttentionFragments, ScoresBecomeWeightsInPlace) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < 2; ++e) {
        const Place a = place_in_a(lane, r, e), c = place_in_c(lane, weight_register(r) + e);
        EXPECT_EQ(a.row, c.row);
        EXPECT_EQ(a.col, c.col + 8 * weight_tile(r));
      }
    }
  }
}

TEST(CudaAttentionTiles, QueryRowsAreEveryHeadOfEveryTokenOnce) {
  for (int group : {1, 3, 4, 7, 71}) {
    for (int n_tokens : {1, 9, 64, 130}) {
      std::set<std::pair<int, int>> rows;
      const int n_rows = n_tokens * group;
      for (int tile = 0; tile < query_tiles(n_tokens, group); ++tile) {
        const int first = tile * kQueryTile, last = std::min(first + kQueryTile, n_rows) - 1;
        EXPECT_LE(query_row(last, group).token - query_row(first, group).token, kQueryTile - 1);
        for (int flat = first; flat <= last; ++flat) {
          const QueryRow row = query_row(flat, group);
          EXPECT_TRUE(row.token < n_tokens && row.head < group);
          EXPECT_TRUE(rows.insert({row.token, row.head}).second);
        }
      }
      EXPECT_EQ(static_cast<int>(rows.size()), n_rows);
    }
  }
}

// A block of attention_prefill.cu, with the lanes of its warps in arrays.
template <int kDim>
class BlockOnHost {
 public:
  static constexpr int kTile = kDim <= 128 ? 64 : 32;

  BlockOnHost(const Scene& scene, int kv_head, int tile, int split)
      : scene_(scene),
        kv_head_(kv_head),
        row0_(tile * kQueryTile),
        split_(split),
        k_(kTile, kDim + 8),
        v_(kTile, kDim + 8) {
    n_rows_ = static_cast<int>(scene.positions.size()) * scene.group();
    const int last = std::min(row0_ + kQueryTile, n_rows_) - 1;
    token0_ = query_row(row0_, scene.group()).token;
    n_tokens_ = query_row(last, scene.group()).token - token0_ + 1;
    for (int w = 0; w < 4; ++w) warps_[static_cast<size_t>(w)] = make_warp(w);
  }

  void run() {
    const int32_t* positions = scene_.positions.data() + token0_;
    const int32_t* sequences = scene_.sequences.data() + token0_;
    for (int leader = 0; leader < n_tokens_; ++leader) {
      if (!leads_sequence(sequences, leader)) continue;
      const int32_t sequence = sequences[leader];
      const PositionRange any = seen_by_any(positions, sequences, n_tokens_, sequence, scene_.window);
      const PositionRange range = split_of(any, split_, scene_.n_splits);
      if (range.begin >= range.end) continue;
      for (int first = range.begin / kTile * kTile; first < range.end; first += kTile) {
        load(sequence, range, first);
        for (Warp& warp : warps_) attend(warp, sequence, range, first);
      }
    }
  }

  // Calls f(token, head, partial result) for every query row.
  template <class Fn>
  void store(Fn f) const {
    for (size_t w = 0; w < 4; ++w) {
      for (int row = 0; row < 16; ++row) {
        const int flat = row0_ + 16 * static_cast<int>(w) + row;
        if (flat >= n_rows_) continue;
        Partial part{std::vector<float>(static_cast<size_t>(scene_.head_dim_v)), kNothing, 0.0f};
        for (int lane = 0; lane < 32; ++lane) {
          const auto l = static_cast<size_t>(lane);
          for (int i = 0; i < 4; ++i) {
            const Place p = place_in_c(lane, i);
            if (p.row != row) continue;
            for (int tile = 0; tile < kDim / 8; ++tile) {
              const int col = 8 * tile + p.col;
              if (col < scene_.head_dim_v) {
                part.acc[static_cast<size_t>(col)] =
                    warps_[w].o[static_cast<size_t>(tile)][l][static_cast<size_t>(i)];
              }
            }
            if (i % 2 == 0) {
              part.max = warps_[w].max[l][static_cast<size_t>(i / 2)];
              part.sum += warps_[w].sum[l][static_cast<size_t>(i / 2)];
            }
          }
        }
        const QueryRow at = query_row(flat, scene_.group());
        f(at.token, kv_head_ * scene_.group() + at.head, part);
      }
    }
  }

 private:
  struct Warp {
    int row0;
    std::array<Fragments<4>, kDim / 16> q{};
    std::array<Sums, kDim / 8> o{};
    std::array<std::array<float, 2>, 32> max{}, sum{};
  };

  float rounded(float x) const {
    return scene_.k_dtype == DType::BF16 ? bf16_to_fp32(fp32_to_bf16(x)) : fp16_to_fp32(fp32_to_fp16(x));
  }

  Warp make_warp(int w) const {
    Warp warp{row0_ + 16 * w};
    for (int lane = 0; lane < 32; ++lane) {
      const auto l = static_cast<size_t>(lane);
      warp.max[l] = {kNothing, kNothing};
      for (int step = 0; step < kDim / 16; ++step) {
        for (int r = 0; r < 4; ++r) {
          for (int e = 0; e < 2; ++e) {
            const Place p = place_in_a(lane, r, e);
            const int flat = warp.row0 + p.row;
            const int col = 16 * step + p.col;
            if (flat >= n_rows_ || col >= scene_.head_dim_k) continue;
            const QueryRow at = query_row(flat, scene_.group());
            warp.q[static_cast<size_t>(step)][l][static_cast<size_t>(r)][static_cast<size_t>(e)] =
                rounded(scene_.query(at.token, kv_head_ * scene_.group() + at.head)[col] * scene_.scale);
          }
        }
      }
    }
    return warp;
  }

  void load_row(Matrix& to, int row, DType dtype, int head_dim, const uint8_t* from) const {
    for (int chunk = 0; 8 * chunk < head_dim; ++chunk) {
      float x[8] = {};
      if (from) read_eight(dtype, from, chunk, x);
      for (int i = 0; i < 8; ++i) to.at(row, 8 * chunk + i) = rounded(x[i]);
    }
  }

  void load(int sequence, PositionRange range, int first) {
    for (int r = 0; r < kTile; ++r) {
      const bool inside = first + r >= range.begin && first + r < range.end;
      const int64_t row = inside ? scene_.row_of(sequence, first + r, kv_head_) : 0;
      load_row(k_, r, scene_.k_dtype, scene_.head_dim_k, inside ? scene_.key(row) : nullptr);
      load_row(v_, r, scene_.v_dtype, scene_.head_dim_v, inside ? scene_.value(row) : nullptr);
    }
  }

  PositionRange seen(int flat, int sequence, PositionRange range) const {
    if (flat >= n_rows_) return {0, 0};
    const auto token = static_cast<size_t>(query_row(flat, scene_.group()).token);
    if (scene_.sequences[token] != sequence) return {0, 0};
    const PositionRange own = seen_by(scene_.positions[token], scene_.window);
    return {std::max(own.begin, range.begin), std::min(own.end, range.end)};
  }

  void attend(Warp& warp, int sequence, PositionRange range, int first) {
    std::array<Sums, kTile / 8> s{};
    for (int step = 0; step < kDim / 16; ++step) {
      for (int tile = 0; tile < kTile / 8; tile += 2) {
        const Fragments<4> b = load_matrices(k_, 8 * tile, 16 * step, key_row_of, false);
        multiply(s[static_cast<size_t>(tile)], warp.q[static_cast<size_t>(step)], b, 0);
        multiply(s[static_cast<size_t>(tile + 1)], warp.q[static_cast<size_t>(step)], b, 2);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int tile = 0; tile < kTile / 8; ++tile) {
        for (int i = 0; i < 4; ++i) {
          float& x = s[static_cast<size_t>(tile)][static_cast<size_t>(lane)][static_cast<size_t>(i)];
          const Place p = place_in_c(lane, i);
          const PositionRange own = seen(warp.row0 + p.row, sequence, range);
          const int position = first + 8 * tile + p.col;
          if (scene_.softcap > 0) x = scene_.softcap * std::tanh(x / scene_.softcap);
          if (position < own.begin || position >= own.end) x = kNothing;
        }
      }
    }
    soften(warp, s);
    add_values(warp, s);
  }

  void soften(Warp& warp, std::array<Sums, kTile / 8>& s) {
    const auto before = warp.max;
    for (size_t l = 0; l < 32; ++l) {
      for (size_t r = 0; r < 2; ++r) {
        float most = before[l][r];
        for (size_t other = l / 4 * 4; other < l / 4 * 4 + 4;
             ++other) {  // the exchanges with lanes across 1 and 2
          for (const Sums& tile : s) most = std::max({most, tile[other][2 * r], tile[other][2 * r + 1]});
        }
        const float base = finite_max(most), factor = std::exp(before[l][r] - base);
        warp.max[l][r] = most;
        warp.sum[l][r] *= factor;
        for (Sums& o : warp.o) {
          o[l][2 * r] *= factor;
          o[l][2 * r + 1] *= factor;
        }
      }
    }
    for (size_t l = 0; l < 32; ++l) {
      for (Sums& tile : s) {
        for (size_t i = 0; i < 4; ++i) {
          tile[l][i] = std::exp(tile[l][i] - finite_max(warp.max[l][i / 2]));
          warp.sum[l][i / 2] += tile[l][i];
        }
      }
    }
  }

  void add_values(Warp& warp, const std::array<Sums, kTile / 8>& s) {
    for (int step = 0; step < kTile / 16; ++step) {
      Fragments<4> weights;
      for (size_t l = 0; l < 32; ++l) {
        for (int r = 0; r < 4; ++r) {
          for (int e = 0; e < 2; ++e) {
            weights[l][static_cast<size_t>(r)][static_cast<size_t>(e)] =
                rounded(s[static_cast<size_t>(2 * step + weight_tile(r))][l]
                         [static_cast<size_t>(weight_register(r) + e)]);
          }
        }
      }
      for (int tile = 0; tile < kDim / 8; tile += 2) {
        const Fragments<4> b = load_matrices(v_, 16 * step, 8 * tile, value_row_of, true);
        multiply(warp.o[static_cast<size_t>(tile)], weights, b, 0);
        multiply(warp.o[static_cast<size_t>(tile + 1)], weights, b, 2);
      }
    }
  }

  const Scene& scene_;
  int kv_head_;
  int row0_, n_rows_ = 0;
  int split_, token0_ = 0, n_tokens_ = 0;
  Matrix k_, v_;  // zero past the head dims
  std::array<Warp, 4> warps_;
};

// ||got - want|| / ||want|| over all tokens and heads; also checks that every row has a result.
template <int kDim>
double prefill_error(Scene scene) {
  std::mt19937 random(5);
  scene.fill(random);
  const auto n_tokens = static_cast<int64_t>(scene.positions.size());
  std::vector<std::vector<Partial>> parts(static_cast<size_t>(n_tokens * scene.n_head));
  for (int kv_head = 0; kv_head < scene.n_head_kv; ++kv_head) {
    for (int tile = 0; tile < query_tiles(n_tokens, scene.group()); ++tile) {
      for (int split = 0; split < scene.n_splits; ++split) {
        BlockOnHost<kDim> block(scene, kv_head, tile, split);
        block.run();
        block.store([&](int token, int head, const Partial& part) {
          parts[static_cast<size_t>(token * scene.n_head + head)].push_back(part);
        });
      }
    }
  }
  double difference = 0, size = 0;
  for (int token = 0; token < static_cast<int>(n_tokens); ++token) {
    for (int head = 0; head < scene.n_head; ++head) {
      const auto& of_row = parts[static_cast<size_t>(token * scene.n_head + head)];
      EXPECT_EQ(of_row.size(), static_cast<size_t>(scene.n_splits));
      const float sink = scene.has_sinks ? scene.sinks[static_cast<size_t>(head)] : kNothing;
      Partial whole = merged(of_row, static_cast<size_t>(scene.head_dim_v), sink);
      if (scene.has_sinks) whole.sum += std::exp(sink - finite_max(whole.max));
      const std::vector<double> want = scene.expected(token, head);
      for (size_t d = 0; d < want.size(); ++d) {
        difference += std::pow(whole.acc[d] / whole.sum - want[d], 2);
        size += want[d] * want[d];
      }
    }
  }
  return std::sqrt(difference / size);
}

Scene prompt(int first, int n_tokens) {
  Scene scene;
  scene.positions.clear();
  for (int i = 0; i < n_tokens; ++i) scene.positions.push_back(first + i);
  scene.sequences.assign(static_cast<size_t>(n_tokens), 0);
  scene.n_splits = 1;
  return scene;
}

TEST(CudaAttentionPrefill, EveryCacheDtypeIsWithinItsRounding) {
  for (DType dtype : {DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q5_1, DType::IQ4_NL}) {
    Scene scene = prompt(30, 40);
    scene.k_dtype = scene.v_dtype = dtype;
    EXPECT_LT(prefill_error<64>(scene), dtype == DType::BF16 ? 8e-3 : 1e-3) << dtype_name(dtype);
  }
}

TEST(CudaAttentionPrefill, HeadsAndGroupsOfAllShapes) {
  Scene scene = prompt(0, 20);
  scene.n_head = 6;
  scene.head_dim_k = 8;
  scene.head_dim_v = 40;
  EXPECT_LT(prefill_error<64>(scene), 1e-3);
  scene.n_head = 2;
  scene.head_dim_k = 72;
  scene.head_dim_v = 128;
  scene.block_size = 16;
  EXPECT_LT(prefill_error<128>(scene), 1e-3);
  scene.n_head = 14;
  scene.head_dim_k = 192;
  scene.head_dim_v = 128;
  EXPECT_LT(prefill_error<256>(scene), 1e-3);
}

TEST(CudaAttentionPrefill, WindowsCapsSinksSplitsAndSequences) {
  Scene scene = prompt(100, 24);
  scene.window = 40;
  scene.block_size = 8;
  EXPECT_LT(prefill_error<64>(scene), 1e-3);
  scene.softcap = 3.0f;
  scene.has_sinks = true;
  scene.n_splits = 3;
  EXPECT_LT(prefill_error<64>(scene), 1e-3);
  scene.window = 0;
  for (size_t t = 0; t < scene.sequences.size(); ++t) scene.sequences[t] = t % 5 == 0 ? 2 : t < 12 ? 1 : 0;
  EXPECT_LT(prefill_error<64>(scene), 1e-3);
}

}  // namespace
}  // namespace tandem::cuda
