// The arithmetic of the CUDA attention kernels, on the host: the positions of a split, reading rows of every
// cache dtype, how lanes share them, merging partial sums; and the whole decode kernel, lane by lane, against
// a reference in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "device/cache_dtypes.h"
#include "ggml-cuda/attention_index.h"
#include "ggml-cuda/attention_unpack.h"
#include "ggml-cuda/ops/kv_rows.h"
#include "gguf/quants.h"
#include "unit/cuda_attention_scene.h"

namespace tandem::cuda {
namespace {

using namespace attention_test;

TEST(CudaAttentionIndex, SplitsCoverWhatATokenSeesOnceAndInOrder) {
  for (int window : {0, 1, 5, 64, 100, 4096}) {
    for (int n_splits : {1, 2, 3, 33, 128}) {
      for (int position : {0, 1, 15, 16, 63, 64, 65, 127, 500, 2047, 2048, 131071}) {
        const PositionRange seen = seen_by(position, window);
        EXPECT_EQ(seen.end, position + 1);
        EXPECT_EQ(seen.begin, window == 0 ? 0 : std::max(0, position + 1 - window));
        int next = seen.begin, longest = 0, shortest = 1 << 30;
        for (int split = 0; split < n_splits; ++split) {
          const PositionRange range = split_of(seen, split, n_splits);
          EXPECT_LE(range.begin, range.end);
          if (range.begin == range.end) continue;
          EXPECT_EQ(range.begin, next);
          EXPECT_TRUE(split == 0 || range.begin % kSplitUnit == 0);
          next = range.end;
          longest = std::max(longest, range.end - range.begin);
          if (range.end != seen.end && split > 0) shortest = std::min(shortest, range.end - range.begin);
        }
        EXPECT_EQ(next, seen.end);
        if (shortest < 1 << 30) {
          EXPECT_EQ(shortest, longest);
        }
        EXPECT_LE(longest, (seen.end - seen.begin) / n_splits + 2 * kSplitUnit);
      }
    }
  }
}

TEST(CudaAttentionIndex, PartsCoverWhatATokenSeesOnce) {
  for (int window : {0, 1, 20, 64, 4096}) {
    for (int from : {0, 16, 64, 96, 2048}) {
      for (int position : {0, 15, 63, 64, 100, 2047, 2048, 5000}) {
        const PositionRange seen = seen_by(position, window);
        EXPECT_EQ(seen_of_part(seen, CachePart::whole, from).begin, seen.begin);
        EXPECT_EQ(seen_of_part(seen, CachePart::whole, from).end, seen.end);
        const PositionRange cold = seen_of_part(seen, CachePart::cold, from),
                            hot = seen_of_part(seen, CachePart::hot, from);
        for (int p = 0; p < position + 100; ++p) {
          const bool is_seen = p >= seen.begin && p < seen.end;
          EXPECT_EQ(p >= cold.begin && p < cold.end, is_seen && p < from) << p;
          EXPECT_EQ(p - from >= hot.begin && p - from < hot.end, is_seen && p >= from) << p;
        }
      }
    }
  }
}

TEST(CudaAttentionIndex, ThePositionsOfALongContextDoNotOverflow) {
  const PositionRange seen = seen_by(std::numeric_limits<int>::max() - 128, 0);
  EXPECT_EQ(split_of(seen, 127, 128).end, seen.end);
}

TEST(CudaAttentionIndex, SplitCountFillsTheGpuWithoutSplinters) {
  EXPECT_EQ(split_count(132, 8, 131072, 64), 33);
  EXPECT_EQ(split_count(132, 8, 131072, 64, 3), 49);
  EXPECT_EQ(split_count(132, 8, 512, 64), 8);
  EXPECT_EQ(split_count(132, 1, 131072, 64), kMaxSplits);
  EXPECT_EQ(split_count(132, 100000, 131072, 64), 1);
  EXPECT_EQ(split_count(132, 0, 1, 64), 1);
}

TEST(CudaAttentionIndex, TheSplitsInUseAreThoseWithPositions) {
  for (const int window : {0, 1, 63, 64, 100, 5000}) {
    for (const int position : {0, 1, 63, 64, 127, 128, 1000, 4095, 4096, 33000}) {
      for (const int n_splits : {1, 2, 7, 33, 49, 128}) {
        const PositionRange seen = seen_by(position, window);
        const int n = splits_in_use(seen, n_splits);
        for (int split = 0; split < n_splits; ++split) {
          const PositionRange range = split_of(seen, split, n_splits);
          EXPECT_EQ(range.begin < range.end, split < n) << window << ' ' << position << ' ' << n_splits << ' ' << split;
        }
      }
    }
  }
  EXPECT_EQ(splits_in_use({0, 0}, 33), 1);
}

TEST(CudaAttentionIndex, RowsAreThoseThatKvWriteWrites) {
  for (int n_head_kv : {1, 3, 8}) {
    for (int block_size : {1, 16, 32}) {
      for (int slot = 0; slot < 4 * block_size; ++slot) {
        for (int head = 0; head < n_head_kv; ++head) {
          EXPECT_EQ(block_row(slot / block_size, head, slot % block_size, n_head_kv, block_size),
                    kv_row(slot, head, n_head_kv, block_size));
        }
      }
    }
  }
}

TEST(CudaAttentionUnpack, RowsAreReadAsTheFormatDefines) {
  std::mt19937 random(11);
  for (DType dtype : kCacheDTypes) {
    const int n = 256;
    std::vector<float> x = normals(random, n), want(n);
    alignas(16) uint8_t row[4 * n];
    quantize_row(dtype, x.data(), reinterpret_cast<std::byte*>(row), n);
    dequantize_row(dtype, reinterpret_cast<std::byte*>(row), want.data(), n);
    for (int chunk = 0; chunk < n / 8; ++chunk) {
      float got[8];
      read_eight(dtype, row, chunk, got);
      for (int i = 0; i < 8; ++i) {
        EXPECT_EQ(got[i], want[static_cast<size_t>(8 * chunk + i)])
            << dtype_name(dtype) << " " << chunk << " " << i;
        EXPECT_EQ(read_one(dtype, row, 8 * chunk + i), got[i]);
      }
    }
  }
}

template <class Map>
void check_lane_map(int n_lanes, int n_heads) {
  std::set<std::pair<int, int>> pieces;  // (row, chunk)
  std::set<std::pair<int, int>> scores;  // (row, head)
  for (int pass = 0; pass < Map::kPasses; ++pass) {
    for (int lane = 0; lane < 32; ++lane) {
      EXPECT_TRUE(pieces.insert({Map::row_of(lane, pass), Map::chunk_of(lane)}).second);
      if (Map::is_first_copy(lane)) {
        EXPECT_TRUE(scores.insert({Map::row_of(lane, pass), Map::head_of(lane)}).second);
      }
    }
  }
  EXPECT_EQ(pieces.size(), static_cast<size_t>(kDecodeTile * n_lanes));
  EXPECT_EQ(scores.size(), static_cast<size_t>(kDecodeTile * n_heads));
}

// Each element is the one of the format, rounded to a half float.
template <class Halves>
void expect_halves(DType dtype) {
  constexpr int64_t kCols = 128;
  std::mt19937 rng(std::random_device{}());
  for (const float deviation : {1e-4f, 1.0f, 1000.0f}) {
    std::normal_distribution<float> normal(0.0f, deviation);
    std::vector<float> x(kCols);
    for (float& v : x) v = normal(rng);
    x[rng() % kCols] = 127.0f * deviation;
    std::vector<std::byte> row(row_bytes(dtype, kCols));
    quantize_row(dtype, x.data(), row.data(), kCols);
    dequantize_row(dtype, row.data(), x.data(), kCols);
    std::vector<int> n_written(kCols);
    for (int unit = 0; unit < kCols / Halves::kElements; ++unit) {
      uint32_t pairs[Halves::kEights][4];
      Halves::unpack(reinterpret_cast<const uint8_t*>(row.data()), unit, pairs);
      for (int eight = 0; eight < Halves::kEights; ++eight) {
        for (int i = 0; i < 8; ++i) {
          const auto column = static_cast<size_t>(Halves::column_of(unit, eight) + i);
          EXPECT_EQ(pairs[eight][i / 2] >> 16 * (i % 2) & 0xffff, fp32_to_fp16(x[column]))
              << dtype_name(dtype) << " column " << column;
          ++n_written[column];
        }
      }
    }
    EXPECT_EQ(n_written, std::vector<int>(kCols, 1)) << dtype_name(dtype);
  }
}

TEST(CudaAttentionUnpack, HalvesAreTheRoundedElements) {
  expect_halves<HalvesOfQ8_0>(DType::Q8_0);
  expect_halves<HalvesOfQ4_0>(DType::Q4_0);
}

TEST(CudaAttentionLanes, ATileIsReadOnceAndEveryScoreStoredOnce) {
  check_lane_map<LaneMap<8, 1>>(8, 1);
  check_lane_map<LaneMap<8, 4>>(8, 4);
  check_lane_map<LaneMap<8, 8>>(8, 8);
  check_lane_map<LaneMap<16, 4>>(16, 4);
  check_lane_map<LaneMap<16, 8>>(16, 8);
  check_lane_map<LaneMap<32, 1>>(32, 1);
  check_lane_map<LaneMap<32, 8>>(32, 8);
}

// One warp of attention_decode.cuh, with its lanes in an array; exchanges read the previous state of the
// lanes.
template <int kLanes, int kHeads>
struct WarpOnHost {
  using Map = LaneMap<kLanes, kHeads>;
  struct Lane {
    float q[kHeads][8] = {}, acc[kHeads][8] = {};
    float max = kNothing, sum = 0.0f;
  };
  const Scene& scene;
  int token, kv_head, head0, n_heads;
  PositionRange range;
  std::vector<Lane> lanes{32};

  void load_q() {
    for (int l = 0; l < 32; ++l) {
      for (int h = 0; h < n_heads; ++h) {
        for (int i = 0; i < 8; ++i) {
          const int d = 8 * Map::chunk_of(l) + i;
          if (d < scene.head_dim_k)
            lanes[static_cast<size_t>(l)].q[h][i] = scene.query(token, head0 + h)[d] * scene.scale;
        }
      }
    }
  }

  static void exchange(std::vector<float>& x, int mask) {
    const std::vector<float> before = x;
    for (size_t l = 0; l < 32; ++l) x[l] += before[l ^ static_cast<size_t>(mask)];
  }

  static std::vector<float> sum_heads(std::vector<std::array<float, kHeads>> v) {
    for (int step = 0; step < Map::kSteps; ++step) {
      const int half = Map::heads_before(step) / 2, mask = Map::mask_of(step);
      const auto before = v;
      for (int l = 0; l < 32; ++l) {
        const int own = (l & mask) ? half : 0;  // which half this lane keeps: the other sends the same
        for (int i = 0; i < half; ++i) {
          v[static_cast<size_t>(l)][static_cast<size_t>(i)] =
              before[static_cast<size_t>(l)][static_cast<size_t>(i + own)] +
              before[static_cast<size_t>(l ^ mask)][static_cast<size_t>(i + own)];
        }
      }
    }
    std::vector<float> x(32);
    for (size_t l = 0; l < 32; ++l) x[l] = v[l][0];
    for (int mask = Map::kCopies / 2; mask > 0; mask /= 2) exchange(x, mask);
    return x;
  }

  void tile(int first) {
    const int64_t row0 = scene.row_of(scene.sequences[static_cast<size_t>(token)], first, kv_head);
    float s[32][Map::kPasses], weights[kDecodeTile][kHeads] = {};
    for (int pass = 0; pass < Map::kPasses; ++pass) {
      std::vector<std::array<float, kHeads>> dot(32);
      for (int l = 0; l < 32; ++l) {
        float x[8] = {};
        if (8 * Map::chunk_of(l) < scene.head_dim_k) {
          read_eight(scene.k_dtype, scene.key(row0 + Map::row_of(l, pass)), Map::chunk_of(l), x);
        }
        for (int h = 0; h < kHeads; ++h) {
          float& sum = dot[static_cast<size_t>(l)][static_cast<size_t>(h)];
          for (int i = 0; i < 8; ++i) sum += lanes[static_cast<size_t>(l)].q[h][i] * x[i];
        }
      }
      const std::vector<float> total = sum_heads(dot);
      for (int l = 0; l < 32; ++l) {
        const int position = first + Map::row_of(l, pass);
        const float t = total[static_cast<size_t>(l)];
        const float c = scene.softcap > 0 ? scene.softcap * std::tanh(t / scene.softcap) : t;
        s[l][pass] = position >= range.begin && position < range.end ? c : kNothing;
      }
    }
    std::vector<float> most(32);
    for (size_t l = 0; l < 32; ++l) {
      most[l] = lanes[l].max;
      for (float x : s[l]) most[l] = std::fmax(most[l], x);
    }
    for (int mask = kLanes; mask < 32; mask *= 2) {
      const std::vector<float> before = most;
      for (size_t l = 0; l < 32; ++l) most[l] = std::fmax(most[l], before[l ^ static_cast<size_t>(mask)]);
    }
    float factors[kHeads] = {};
    for (int l = 0; l < 32; ++l) {
      Lane& lane = lanes[static_cast<size_t>(l)];
      const float base = finite_max(most[static_cast<size_t>(l)]), factor = std::exp(lane.max - base);
      lane.max = most[static_cast<size_t>(l)];
      lane.sum *= factor;
      for (int pass = 0; pass < Map::kPasses; ++pass) {
        const float weight = std::exp(s[l][pass] - base);
        lane.sum += weight;
        if (Map::is_first_copy(l)) weights[Map::row_of(l, pass)][Map::head_of(l)] = weight;
      }
      if (Map::is_first_copy(l) && l < kLanes) factors[Map::head_of(l)] = factor;
    }
    for (int l = 0; l < 32; ++l) {
      Lane& lane = lanes[static_cast<size_t>(l)];
      for (int h = 0; h < kHeads; ++h) {
        for (float& a : lane.acc[h]) a *= factors[h];
      }
      if (8 * Map::chunk_of(l) >= scene.head_dim_v) continue;
      for (int pass = 0; pass < Map::kPasses; ++pass) {
        const int row = Map::row_of(l, pass);
        if (first + row < range.begin || first + row >= range.end) continue;
        float x[8];
        read_eight(scene.v_dtype, scene.value(row0 + row), Map::chunk_of(l), x);
        for (int h = 0; h < kHeads; ++h) {
          for (int i = 0; i < 8; ++i) lane.acc[h][i] += weights[row][h] * x[i];
        }
      }
    }
  }

  // The warp's result for a head.
  Partial left(int head) const {
    Partial part{std::vector<float>(static_cast<size_t>(scene.head_dim_v)), kNothing, 0.0f};
    for (int l = 0; l < 32; ++l) {
      const Lane& lane = lanes[static_cast<size_t>(l)];
      for (int i = 0; i < 8; ++i) {
        const int d = 8 * Map::chunk_of(l) + i;
        if (d < scene.head_dim_v) part.acc[static_cast<size_t>(d)] += lane.acc[head][i];
      }
      if (!Map::is_first_copy(l) || Map::head_of(l) != head) continue;
      EXPECT_TRUE(part.max == kNothing || part.max == lane.max);  // the lanes of all rows agree
      part.max = lane.max;
      part.sum += lane.sum;
    }
    return part;
  }
};

// A block of the kernel: the partial results of n_heads heads over one split.
template <int kLanes, int kHeads>
std::vector<Partial> block_on_host(const Scene& scene, int token, int kv_head, int part, int split) {
  const int head0 = kv_head * scene.group() + part * kHeads,
            n_heads = std::min(kHeads, scene.group() - part * kHeads);
  const PositionRange range =
      split_of(seen_by(scene.positions[static_cast<size_t>(token)], scene.window), split, scene.n_splits);
  std::vector<std::vector<Partial>> left(static_cast<size_t>(n_heads));
  for (int w = 0; w < scene.n_warps && range.begin < range.end; ++w) {
    WarpOnHost<kLanes, kHeads> warp{scene, token, kv_head, head0, n_heads, range};
    warp.load_q();
    const int end_tile = (range.end + kDecodeTile - 1) / kDecodeTile;
    for (int t = range.begin / kDecodeTile + w; t < end_tile; t += scene.n_warps) warp.tile(t * kDecodeTile);
    for (int h = 0; h < n_heads; ++h) left[static_cast<size_t>(h)].push_back(warp.left(h));
  }
  std::vector<Partial> heads;
  for (const auto& parts : left)
    heads.push_back(merged(parts, static_cast<size_t>(scene.head_dim_v), kNothing));
  return heads;
}

template <int kLanes, int kHeads>
void check_decode(Scene scene, const char* what) {
  std::mt19937 random(7);
  scene.fill(random);
  const int n_parts = (scene.group() + kHeads - 1) / kHeads;
  for (int token = 0; token < static_cast<int>(scene.positions.size()); ++token) {
    for (int slot = 0; slot < scene.n_head_kv * n_parts; ++slot) {
      std::vector<std::vector<Partial>> splits;
      for (int split = 0; split < scene.n_splits; ++split) {
        splits.push_back(block_on_host<kLanes, kHeads>(scene, token, slot / n_parts, slot % n_parts, split));
      }
      for (size_t h = 0; h < splits[0].size(); ++h) {
        const int head = slot / n_parts * scene.group() + slot % n_parts * kHeads + static_cast<int>(h);
        std::vector<Partial> parts;
        for (const auto& split : splits) parts.push_back(split[h]);
        const float sink = scene.has_sinks ? scene.sinks[static_cast<size_t>(head)] : kNothing;
        Partial whole = merged(parts, static_cast<size_t>(scene.head_dim_v), sink);
        if (scene.has_sinks) whole.sum += std::exp(sink - finite_max(whole.max));
        const std::vector<double> want = scene.expected(token, head);
        for (size_t d = 0; d < want.size(); ++d) {
          ASSERT_NEAR(whole.acc[d] / whole.sum, want[d], 2e-5)
              << what << " token " << token << " head " << head << " " << d;
        }
      }
    }
  }
}

TEST(CudaAttentionDecode, EveryCacheDtypeEqualsTheReference) {
  for (DType dtype : kCacheDTypes) {
    Scene scene;
    scene.k_dtype = scene.v_dtype = dtype;
    check_decode<8, 4>(scene, dtype_name(dtype).data());
  }
  Scene mixed;
  mixed.k_dtype = DType::Q8_0;
  mixed.v_dtype = DType::F16;
  check_decode<8, 4>(mixed, "mixed");
}

TEST(CudaAttentionDecode, HeadsOfAllShapesEqualTheReference) {
  Scene scene;
  scene.head_dim_k = scene.head_dim_v = 8;
  check_decode<8, 4>(scene, "tiny heads");
  scene.head_dim_k = 80;
  scene.head_dim_v = 96;
  check_decode<16, 4>(scene, "heads of 80 and 96");
  scene.n_head = 14;  // groups of 7
  check_decode<16, 8>(scene, "group of 7");
  scene.n_head = 24;  // groups of 12: passes of 8 and 4
  check_decode<16, 8>(scene, "group of 12");
  scene.n_head = scene.n_head_kv;
  check_decode<16, 1>(scene, "group of 1");
  scene.head_dim_k = 256;
  scene.head_dim_v = 192;
  scene.n_warps = 2;
  check_decode<32, 8>(scene, "heads of 256 and 192");
}

TEST(CudaAttentionDecode, WindowsCapsSinksAndSequencesEqualTheReference) {
  Scene scene;
  scene.positions = {150, 3, 0, 149};
  scene.sequences = {1, 0, 2, 1};
  check_decode<8, 4>(scene, "sequences");
  scene.window = 37;
  check_decode<8, 4>(scene, "window");
  scene.softcap = 3.0f;
  scene.has_sinks = true;
  check_decode<8, 4>(scene, "softcap and sinks");
  scene.n_splits = 33;
  check_decode<8, 8>(scene, "more splits than units");
  scene.positions = {700};
  scene.sequences = {0};
  scene.window = 0;
  scene.n_splits = 3;
  scene.block_size = 16;
  check_decode<8, 4>(scene, "long");
}

TEST(CudaAttentionMerge, PartsMergeToTheWholeWhateverTheirMaxima) {
  std::mt19937 random(3);
  for (float spread : {1.0f, 30.0f, 200.0f}) {
    const std::vector<float> scores = normals(random, 300, spread), values = normals(random, 300);
    std::vector<Partial> parts;
    for (size_t begin = 0; begin < 300; begin += 75) {
      Partial part{{0.0f}, kNothing, 0.0f};
      for (size_t i = begin; i < begin + 75; ++i) part.max = std::max(part.max, scores[i]);
      for (size_t i = begin; i < begin + 75; ++i) {
        part.sum += std::exp(scores[i] - part.max);
        part.acc[0] += std::exp(scores[i] - part.max) * values[i];
      }
      parts.push_back(part);
      parts.push_back({{std::nanf("")}, kNothing, 0.0f});  // nothing seen, its sums unwritten
    }
    const Partial whole = merged(parts, 1, kNothing);
    double m = kNothing, sum = 0, acc = 0;
    for (float s : scores) m = std::max(m, static_cast<double>(s));
    for (size_t i = 0; i < 300; ++i) {
      sum += std::exp(scores[i] - m);
      acc += std::exp(scores[i] - m) * values[i];
    }
    EXPECT_NEAR(whole.acc[0] / whole.sum, acc / sum, 1e-5);
  }
}

TEST(CudaAttentionMerge, OnlyNaNIsPassedOn) {
  const Partial nan{{std::nanf("")}, kNothing, std::nanf("")};
  EXPECT_TRUE(std::isnan(merged({nan, {{1.0f}, 0.0f, 1.0f}}, 1, kNothing).acc[0]));
  EXPECT_TRUE(std::isnan(merged({nan}, 1, kNothing).sum));
  EXPECT_EQ(merged({{{1.0f}, kNothing, 0.0f}}, 1, kNothing).sum, 0.0f);
}

}  // namespace
}  // namespace tandem::cuda
