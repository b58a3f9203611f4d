// The arithmetic of the CUDA device's row ops, on the host: KV slots, cache quantization, angles, and the
// ring buffer of the copies.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <numbers>
#include <random>
#include <set>

#include "ggml-cuda/ops/kv_rows.h"
#include "ggml-cuda/ops/rope_angle.h"
#include "ggml-cuda/ring.h"
#include "gguf/blocks.h"
#include "gguf/quants.h"

namespace tandem::cuda {
namespace {

TEST(CudaKvRows, EverySlotOfEveryHeadHasARowOfItsOwn) {
  for (int64_t n_head_kv : {1, 2, 3, 8}) {
    for (int64_t block_size : {1, 16, 32}) {
      const int64_t n_blocks = 5, n_rows = n_blocks * block_size * n_head_kv;
      std::set<int64_t> rows;
      for (int64_t slot = 0; slot < n_blocks * block_size; ++slot) {
        for (int64_t head = 0; head < n_head_kv; ++head) {
          const int64_t row = kv_row(slot, head, n_head_kv, block_size);
          EXPECT_TRUE(row >= 0 && row < n_rows);
          rows.insert(row);
          if (slot % block_size != 0) {  // the rows of a head within a block are contiguous
            EXPECT_EQ(row, kv_row(slot - 1, head, n_head_kv, block_size) + 1);
          }
        }
      }
      EXPECT_EQ(static_cast<int64_t>(rows.size()), n_rows);
    }
  }
}

// A block as written by a warp of kv_write: lane i has element i.
float largest_of_lanes(const float* x) {
  uint32_t most = 0;
  const auto bits = [&](int lane) {
    const float magnitude = std::fabs(x[lane]);
    return magnitude > 0.0f ? std::bit_cast<uint32_t>(magnitude) : 0u;
  };
  for (int lane = 0; lane < QK; ++lane) most = std::max(most, bits(lane));
  for (int lane = 0; lane < QK; ++lane) {
    if (bits(lane) == most) return most == 0 ? 0.0f : x[lane];
  }
  return 0.0f;
}

BlockQ8_0 q8_0_of_lanes(const float* x) {
  BlockQ8_0 block;
  const float d = q8_0_scale(largest_of_lanes(x));
  for (int lane = 0; lane < QK; ++lane)
    block.qs[lane] = static_cast<int8_t>(q8_0_level(x[lane], inverse_or_zero(d)));
  block.d = scale_to_half(d);
  return block;
}

BlockQ4_0 q4_0_of_lanes(const float* x) {
  BlockQ4_0 block;
  const float d = q4_0_scale(largest_of_lanes(x));
  const auto level = [&](int lane) { return q4_0_level(x[lane], inverse_or_zero(d)); };
  for (int lane = 0; lane < QK / 2; ++lane)
    block.qs[lane] = static_cast<uint8_t>(level(lane) | level(lane + QK / 2) << 4);
  block.d = scale_to_half(d);
  return block;
}

// What a warp votes and sums up, of the levels of its lanes.
void pack_levels(const int* level, uint8_t* qs, uint8_t* qh) {
  for (int lane = 0; lane < QK / 2; ++lane)
    qs[lane] = static_cast<uint8_t>((level[lane] & 15) | (level[lane + QK / 2] & 15) << 4);
  if (!qh) return;
  uint32_t bits = 0;
  for (int lane = 0; lane < QK; ++lane) bits |= static_cast<uint32_t>(level[lane] >> 4 & 1) << lane;
  std::memcpy(qh, &bits, sizeof bits);
}

BlockQ5_0 q5_0_of_lanes(const float* x) {
  BlockQ5_0 block;
  const float d = q5_0_scale(largest_of_lanes(x));
  int level[QK];
  for (int lane = 0; lane < QK; ++lane) level[lane] = q5_0_level(x[lane], inverse_or_zero(d));
  pack_levels(level, block.qs, block.qh);
  block.d = scale_to_half(d);
  return block;
}

float least_of_lanes(const float* x) {
  float least = x[0];
  for (int lane = 1; lane < QK; ++lane) least = x[lane] < least ? x[lane] : least;
  return least;
}

template <class Block>
Block affine_of_lanes(const float* x, int max) {
  Block block;
  std::vector<float> negative(x, x + QK);
  for (float& v : negative) v = -v;
  const float low = least_of_lanes(x), high = -least_of_lanes(negative.data());
  const float d = affine_scale(low, high, max);
  int level[QK];
  for (int lane = 0; lane < QK; ++lane) level[lane] = affine_level(x[lane], low, inverse_or_zero(d), max);
  uint8_t* fifth_bits = nullptr;
  if constexpr (requires { block.qh; }) fifth_bits = block.qh;
  pack_levels(level, block.qs, fifth_bits);
  block.d = scale_to_half(d);
  block.m = scale_to_half(low);
  return block;
}

BlockIQ4_NL iq4_nl_of_lanes(const float* x) {
  BlockIQ4_NL block;
  const float inverse = inverse_or_zero(largest_of_lanes(x));
  Iq4Terms sum{0.0f, 0.0f};
  for (int lane = 0; lane < QK; ++lane) {
    const Iq4Terms terms = iq4_terms(x[lane], mul_rn(x[lane], inverse));
    sum.xl = add_rn(sum.xl, terms.xl);
    sum.ll = add_rn(sum.ll, terms.ll);
  }
  block.d = scale_to_half(sum.ll > 0.0f ? sum.xl / sum.ll : 0.0f);
  int level[QK];
  for (int lane = 0; lane < QK; ++lane)
    level[lane] = iq4_nearest(mul_rn(x[lane], inverse_or_zero(half_to_float(block.d))));
  pack_levels(level, block.qs, nullptr);
  return block;
}

template <class Block>
void expect_as_stored_by_the_host(const std::vector<float>& x, const Block& own) {
  Block host;
  quantize_cache_row(Block::kDType, x.data(), &host, QK);
  EXPECT_EQ(std::memcmp(&host, &own, sizeof host), 0) << dtype_name(Block::kDType);
}

std::vector<std::vector<float>> awkward_blocks() {
  std::mt19937 rng(std::random_device{}());
  std::vector<std::vector<float>> blocks;
  for (int i = 0; i < 2000; ++i) {
    std::normal_distribution<float> normal(0.0f, std::ldexp(1.0f, static_cast<int>(rng() % 60) - 40));
    std::vector<float> x(QK);
    for (float& v : x) v = normal(rng);
    if (i % 7 == 0) x[rng() % QK] = -x[rng() % QK];  // equal magnitudes
    if (i % 11 == 0) x[rng() % QK] = std::nanf("");
    if (i % 13 == 0) x[rng() % QK] = -INFINITY;
    if (i % 17 == 0) std::fill(x.begin(), x.end(), i % 2 ? -0.0f : 0.0f);
    if (i % 19 == 0)
      for (float& v : x) v = std::round(v) / 2;  // ties of rounding
    if (i % 23 == 0)
      for (float& v : x) v *= 1e-38f;  // inverse of the scale overflows
    blocks.push_back(std::move(x));
  }
  return blocks;
}

TEST(CudaKvRows, BlocksAreThoseOfTheFormatBitForBit) {
  for (const std::vector<float>& x : awkward_blocks()) {
    expect_as_stored_by_the_host(x, q8_0_of_lanes(x.data()));
    expect_as_stored_by_the_host(x, q4_0_of_lanes(x.data()));
    expect_as_stored_by_the_host(x, q5_0_of_lanes(x.data()));
    expect_as_stored_by_the_host(x, affine_of_lanes<BlockQ4_1>(x.data(), 15));
    expect_as_stored_by_the_host(x, affine_of_lanes<BlockQ5_1>(x.data(), 31));
    expect_as_stored_by_the_host(x, iq4_nl_of_lanes(x.data()));
  }
}

TEST(CudaRope, AnglesAreRightAtAnyPosition) {
  std::mt19937 rng(std::random_device{}());
  for (int i = 0; i < 20000; ++i) {
    const int32_t position = static_cast<int32_t>(rng() >> (8 + rng() % 24));
    const double frequency = std::pow(10000.0, -static_cast<double>(rng() % 1000) / 1000.0);
    const float fraction = fraction_of_turn(frequency / (2 * std::numbers::pi), position);
    EXPECT_LE(std::fabs(fraction), 0.5f);
    const double angle = 2 * std::numbers::pi * static_cast<double>(fraction);
    EXPECT_NEAR(std::cos(angle), std::cos(position * frequency), 3e-7) << position << " " << frequency;
    EXPECT_NEAR(std::sin(angle), std::sin(position * frequency), 3e-7) << position << " " << frequency;
  }
}

// Pieces taken at random never overlap a held one, are aligned, and are granted as soon as there is room.
TEST(CudaRing, PiecesDoNotOverlapAndRoomIsUsedAgain) {
  std::mt19937 rng(std::random_device{}());
  constexpr size_t kBytes = 4096, kAlignment = 64;
  Ring<int> ring(kBytes, kAlignment);
  std::deque<Ring<int>::Piece> held;
  int number = 0;
  for (int i = 0; i < 20000; ++i) {
    const size_t n = 1 + rng() % (i % 10 == 0 ? kBytes : 700);
    Ring<int>::Piece* piece = ring.take(n);
    while (!piece) {
      ASSERT_FALSE(held.empty());  // an empty ring has room for all
      EXPECT_EQ(ring.oldest().payload, held.front().payload);
      ring.release_oldest();
      held.pop_front();
      piece = ring.take(n);
    }
    piece->payload = number++;
    EXPECT_EQ(piece->end - piece->begin, n);
    EXPECT_EQ(piece->begin % kAlignment, 0u);
    EXPECT_LE(piece->end, kBytes);
    for (const auto& other : held) EXPECT_TRUE(piece->end <= other.begin || other.end <= piece->begin);
    held.push_back(*piece);
    if (rng() % 3 == 0) {
      ring.release_oldest();
      held.pop_front();
    }
  }
  EXPECT_EQ(ring.empty(), held.empty());
}

}  // namespace
}  // namespace tandem::cuda
