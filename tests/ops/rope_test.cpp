// RoPE against double precision: the kernels' cosines and sines up to distant positions, and the op with
// every kind of scaling against an independent implementation of the papers' formulas.
#include <cmath>

#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::OpBench;
using test::Random;

TEST(Rope, DistantRotationsAreAccurate) {
  Random random;
  for (Isa isa : supported_isas()) {
    for (int64_t n : {1, 3, 4, 7, 8, 9, 32, 37, 64, 128}) {
      std::vector<double> frequency;
      for (int64_t i = 0; i < n; ++i)
        frequency.push_back(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(n)));
      for (int64_t position : {int64_t{0}, int64_t{1}, random.below(4096), int64_t{131071},
                               random.below(131072), int64_t{10000000}}) {
        std::vector<float> cos(static_cast<size_t>(n) + 1, 9.0f), sin(static_cast<size_t>(n) + 1, 9.0f);
        test::rows_of(isa).rotations(frequency.data(), static_cast<double>(position), 1.0f, cos.data(),
                                     sin.data(), n);
        for (size_t i = 0; i < frequency.size(); ++i) {
          const double angle = static_cast<double>(position) * frequency[i];
          ASSERT_NEAR(cos[i], std::cos(angle), 1e-7)
              << isa_name(isa) << " position " << position << " pair " << i;
          ASSERT_NEAR(sin[i], std::sin(angle), 1e-7)
              << isa_name(isa) << " position " << position << " pair " << i;
        }
        ASSERT_EQ(cos.back(), 9.0f);
        ASSERT_EQ(sin.back(), 9.0f);
      }
    }
  }
}

// All quadrants and their borders.
TEST(Rope, RotationsInEveryQuadrant) {
  for (Isa isa : supported_isas()) {
    for (int i = -64; i <= 64; ++i) {
      for (double off : {-1e-9, 0.0, 1e-9, 0.3}) {
        const double frequency = i * (M_PI / 4) + off;
        float cos = 0, sin = 0;
        test::rows_of(isa).rotations(&frequency, 1.0, 2.0f, &cos, &sin, 1);
        ASSERT_NEAR(cos, 2 * std::cos(frequency), 2e-7) << isa_name(isa) << " " << i << " " << off;
        ASSERT_NEAR(sin, 2 * std::sin(frequency), 2e-7) << isa_name(isa) << " " << i << " " << off;
      }
    }
  }
}

// The expected result for one head x, in double precision.
std::vector<double> rotated(const RopeParams& op, const std::vector<float>& factors, int64_t position,
                            const float* x) {
  std::vector<double> y(x, x + op.head_dim);
  x += op.first;
  const int64_t half = op.n_rot / 2;
  const auto turns_at = [&](double pair) {  // full turns of a pair within the original context
    return op.n_ctx_orig * std::pow(op.freq_base, -2 * pair / static_cast<double>(op.n_rot)) / (2 * M_PI);
  };
  // The pair indices with beta_fast and beta_slow turns, possibly rounded outward to whole pairs.
  const auto crossing = [&](double turns) {
    double low = -1e4, high = 1e4;  // turns_at falls
    for (int i = 0; i < 200; ++i) (turns_at((low + high) / 2) > turns ? low : high) = (low + high) / 2;
    return low;
  };
  double temperature = 1;
  if (op.temperature_scale != 0) {
    temperature +=
        op.temperature_scale *
        std::log(1 + std::floor(static_cast<double>(position) / static_cast<double>(op.temperature_length)));
  }
  for (int64_t i = 0; i < half; ++i) {
    const double plain = static_cast<double>(position) *
                         std::pow(static_cast<double>(op.freq_base),
                                  -2.0 * static_cast<double>(i) / static_cast<double>(op.n_rot)) /
                         (factors.empty() ? 1.0 : factors[static_cast<size_t>(i)]);
    double angle = plain * op.freq_scale, size = temperature * op.attn_factor;
    if (op.ext_factor != 0) {
      const double first = crossing(op.beta_fast), last = crossing(op.beta_slow);
      const double fast = std::max(0.0, op.yarn_truncate ? std::floor(first) : first);
      const double slow = std::min(op.n_rot - 1.0, op.yarn_truncate ? std::ceil(last) : last);
      double share = i <= fast ? 1 : i >= slow ? 0 : (slow - static_cast<double>(i)) / (slow - fast);
      share *= op.ext_factor;
      angle = angle * (1 - share) + plain * share;
      size *= 0.1 * std::log(1 / op.freq_scale) + 1;
    }
    const int64_t a = op.style == RopeStyle::pair ? 2 * i : i,
                  b = op.style == RopeStyle::pair ? 2 * i + 1 : i + half;
    y[static_cast<size_t>(op.first + a)] = size * (x[a] * std::cos(angle) - x[b] * std::sin(angle));
    y[static_cast<size_t>(op.first + b)] = size * (x[a] * std::sin(angle) + x[b] * std::cos(angle));
  }
  return y;
}

void check_rope(Random& random, RopeParams op, const std::vector<float>& factors, int64_t n) {
  const int64_t n_cols = op.n_head * op.head_dim;
  OpBench bench({n, 1, 1, 1});
  const TensorId x = bench.activation(n_cols);
  const TensorId y = bench.builder.rope(x, op, factors.empty() ? nullptr : bench.weight(factors));
  bench.finish(y);
  const std::vector<float> values = random.normals(n * n_cols);
  std::vector<int64_t> positions;
  for (int64_t t = 0; t < n; ++t) {
    positions.push_back(t < 2 ? t * 131071 : random.below(131072));
    bench.input(Input::positions)[t] = static_cast<int32_t>(positions.back());
  }
  for (Isa isa : supported_isas()) {
    std::vector<float> first;
    for (int threads = 1; threads <= 4; ++threads) {
      std::copy(values.begin(), values.end(), bench.data(x));
      bench.run(isa, {n, 0}, threads);
      const std::vector<float> got(bench.data(y), bench.data(y) + values.size());
      if (threads == 1) first = got;
      ASSERT_EQ(std::memcmp(first.data(), got.data(), got.size() * sizeof(float)), 0)
          << isa_name(isa) << threads;
    }
    for (int64_t i = 0; i < n * op.n_head; ++i) {
      const std::vector<double> want = rotated(op, factors, positions[static_cast<size_t>(i / op.n_head)],
                                               values.data() + i * op.head_dim);
      for (size_t d = 0; d < want.size(); ++d) {
        ASSERT_NEAR(first[static_cast<size_t>(i * op.head_dim) + d], want[d], 3e-6)
            << isa_name(isa) << " token " << i / op.n_head << " column " << d;
      }
    }
  }
}

RopeParams rope_op(RopeStyle style, int64_t n_head, int64_t head_dim, int64_t n_rot) {
  RopeParams op;
  op.style = style;
  op.n_head = n_head;
  op.head_dim = head_dim;
  op.n_rot = n_rot;
  return op;
}

TEST(Rope, BothStylesAndAwkwardSizes) {
  Random random;
  for (RopeStyle style : {RopeStyle::pair, RopeStyle::half}) {
    for (int64_t head_dim : {8, 18, 64, 80, 96, 128}) {
      for (int64_t n_rot : {int64_t{2}, head_dim / 4 * 2, head_dim}) {
        check_rope(random, rope_op(style, 3, head_dim, n_rot), {}, 1 + random.below(40));
        if (HasFatalFailure()) return;
        RopeParams last_columns = rope_op(style, 3, head_dim, n_rot);
        last_columns.first = head_dim - n_rot;
        check_rope(random, last_columns, {}, 1 + random.below(40));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Rope, LinearScalingFactorsAndBase) {
  Random random;
  RopeParams op = rope_op(RopeStyle::half, 2, 128, 128);
  op.freq_base = 500000.0f;
  op.freq_scale = 0.25f;
  op.attn_factor = 1.19f;
  std::vector<float> factors;
  for (int i = 0; i < 64; ++i) factors.push_back(1.0f + static_cast<float>(i) / 8);
  check_rope(random, op, {}, 9);
  check_rope(random, op, factors, 9);
}

TEST(Rope, Yarn) {
  Random random;
  RopeParams op = rope_op(RopeStyle::half, 2, 128, 128);
  op.ext_factor = 1.0f;
  op.freq_scale = 1.0f / 16;
  op.n_ctx_orig = 4096;
  check_rope(random, op, {}, 9);
  op.style = RopeStyle::pair;
  op.freq_base = 1000000.0f;
  op.freq_scale = 0.25f;
  op.n_ctx_orig = 32768;
  op.attn_factor = 0.8f;
  op.ext_factor = 0.6f;
  op.beta_fast = 16.0f;
  op.beta_slow = 2.0f;
  check_rope(random, op, {}, 9);
  op.yarn_truncate = false;
  check_rope(random, op, {}, 9);
}

TEST(Rope, TemperatureOfQueries) {
  Random random;
  RopeParams op = rope_op(RopeStyle::pair, 2, 64, 64);
  op.temperature_scale = 0.1f;
  op.temperature_length = 8192;
  check_rope(random, op, {}, 20);
}

// Known answer: base 10000, 2 pairs, position 1: angles 1 and 0.01.
TEST(Rope, KnownAnswer) {
  OpBench bench({1, 1, 1, 1});
  const TensorId x = bench.activation(4);
  const TensorId y = bench.builder.rope(x, rope_op(RopeStyle::pair, 1, 4, 4));
  bench.finish(y);
  const float values[] = {1, 0, 0, 1};
  std::copy(std::begin(values), std::end(values), bench.data(x));
  bench.input(Input::positions)[0] = 1;
  bench.run(Isa::scalar, {1, 0});
  EXPECT_FLOAT_EQ(bench.data(y)[0], 0.54030231f);
  EXPECT_FLOAT_EQ(bench.data(y)[1], 0.84147098f);
  EXPECT_FLOAT_EQ(bench.data(y)[2], -0.0099998333f);
  EXPECT_FLOAT_EQ(bench.data(y)[3], 0.99995f);
}

}  // namespace
}  // namespace tandem::cpu
