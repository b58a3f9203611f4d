// Attention of many queries with AVX-512 BF16 and with AMX, whose scores are products of integers and whose weights are bf16:
// their rounding, and numbers that integers do not have.
#include <cmath>
#include <limits>

#include "cpu/bf16/row_codes.h"
#include "ops/many_queries.h"

#define TANDEM_ISA avx512_amx
#include "cpu/amx/attention_pack.h"
#undef TANDEM_ISA

namespace tandem::cpu {
namespace {

using test::Attended;
using test::Head;
using test::kBlock;
using test::Random;

class AttentionPairs : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (best_isa() < GetParam()) GTEST_SKIP() << "this machine has no " << isa_name(GetParam());
  }
  Attended attend(const Head& head, int64_t kv_begin = 0, int64_t kv_end = INT64_MAX) const {
    return test::attend(GetParam(), head, kv_begin, kv_end);
  }
  Random random_;
};
INSTANTIATE_TEST_SUITE_P(Levels, AttentionPairs, testing::Values(Isa::avx512_bf16, Isa::avx512_amx),
                         [](const auto& level) { return std::string(isa_name(level.param)); });

class RowCodes : public testing::Test {
 protected:
  void SetUp() override {
    if (best_isa() < Isa::avx512_bf16) GTEST_SKIP() << "this machine has no AVX-512 BF16";
  }
  Random random_;
};

// The deviation of a product's rounding that bf16/row_codes.h states, relative to the norms of both rows.
constexpr double kDeviation = 1.25e-5;

struct Codes {
  int64_t ld;
  std::vector<int16_t> codes;  // [16, ld]
  std::vector<float> units;

  explicit Codes(const std::vector<float>& rows) : ld(static_cast<int64_t>(rows.size()) / 16), units(16) {
    const test::AlignedBytes to(rows.size() * sizeof(int16_t));
    avx512_bf16::encode_rows(rows.data(), ld, to.p, units.data());
    codes.resize(rows.size());
    std::memcpy(codes.data(), to.p, rows.size() * sizeof(int16_t));
  }
};

// Errors of the products of all pairs of rows of codes, [16, ld] each.
struct ProductErrors {
  double deviation = 0, worst = 0;
};
ProductErrors product_errors(const std::vector<float>& a, const std::vector<float>& b) {
  const Codes x(a), y(b);
  ProductErrors errors;
  for (size_t i = 0; i < 256; ++i) {
    const size_t ld = static_cast<size_t>(x.ld), r = i / 16 * ld, t = i % 16 * ld;
    int64_t sum = 0;
    double exact = 0, a_square = 0, b_square = 0;
    for (size_t d = 0; d < ld; ++d) {
      sum += int64_t{x.codes[r + d]} * y.codes[t + d];
      exact += static_cast<double>(a[r + d]) * b[t + d];
      a_square += static_cast<double>(a[r + d]) * a[r + d];
      b_square += static_cast<double>(b[t + d]) * b[t + d];
    }
    EXPECT_LE(std::abs(sum), std::numeric_limits<int32_t>::max());
    const double got = static_cast<double>(sum) * x.units[i / 16] * y.units[i % 16];
    const double error = std::abs(got - exact) / std::sqrt(a_square * b_square);
    errors.deviation += error * error / 256;
    errors.worst = std::max(errors.worst, error);
  }
  errors.deviation = std::sqrt(errors.deviation);
  return errors;
}

TEST_F(RowCodes, RoundingOfProducts) {
  for (const int64_t ld : {32, 64, 96, 128, 256, 576}) {
    std::vector<float> a = random_.normals(16 * ld), b = random_.normals(16 * ld, 1e3f);
    const auto expect_small = [&](const char* what) {
      const ProductErrors errors = product_errors(a, b);
      EXPECT_LE(errors.deviation, 1.3 * kDeviation) << ld << what;
      EXPECT_LE(errors.worst, 6 * kDeviation) << ld << what;
    };
    expect_small(" columns");
    // A column far greater than the others, as keys of some models have one.
    const int64_t column = random_.below(ld);
    for (int64_t r = 0; r < 16; ++r) b[static_cast<size_t>(r * ld + column)] *= 200.0f;
    expect_small(" columns, a large one in keys");
    for (int64_t r = 0; r < 16; ++r) a[static_cast<size_t>(r * ld + column)] *= 200.0f;
    expect_small(" columns, a large one in both");
  }
}

// Rows whose products are as great as they can be: all columns alike, whose roundings add up, and one alone.
TEST_F(RowCodes, SumsDoNotOverflow) {
  for (const int64_t ld : {32, 128, 576, 2048}) {
    const size_t n = static_cast<size_t>(16 * ld);
    const ProductErrors alike = product_errors(std::vector<float>(n, 7.25f), std::vector<float>(n, -3.5f));
    EXPECT_LE(alike.worst, std::sqrt(static_cast<double>(ld)) / 32767 + 1e-6) << ld;
    std::vector<float> one(n);
    for (size_t r = 0; r < 16; ++r) one[r * static_cast<size_t>(ld) + 5] = r % 2 ? 3e4f : -1e-3f;
    EXPECT_LE(product_errors(one, one).worst, 1e-6) << ld;
  }
}

TEST_F(RowCodes, UnitsOfRowsThatHaveNone) {
  std::vector<float> rows = random_.normals(16 * 64);
  std::fill(rows.begin(), rows.begin() + 64, 0.0f);
  std::fill(rows.begin() + 64, rows.begin() + 128, 1e-30f);  // its norm underflows
  rows[2 * 64 + 7] = std::nanf("");
  rows[3 * 64 + 63] = INFINITY;
  rows[4 * 64] = -INFINITY;
  const Codes codes(rows);
  EXPECT_EQ(codes.units[0], 0.0f);
  EXPECT_LE(codes.units[1], 1e-20f);
  for (size_t r = 2; r < 16; ++r) EXPECT_EQ(std::isnan(codes.units[r]), r < 5) << r;
}

TEST_P(AttentionPairs, QueriesOfZerosTakeTheMean) {
  Head head(random_, 64, 16, 150, 40);
  head.round_to_halves();
  std::fill(head.q.begin(), head.q.end(), 0.0f);
  for (int32_t& position : head.positions) position = 149;
  const Attended got = attend(head);
  for (size_t i = 0; i < head.n_queries(); ++i) {
    EXPECT_EQ(got.max[i], 0.0f);
    EXPECT_EQ(got.sum[i], 150.0f);
    for (int64_t d = 0; d < 16; ++d) {
      double want = 0;
      for (int64_t p = 0; p < 150; ++p) want += head.value(p)[d];
      EXPECT_NEAR(got.acc[i * 16 + static_cast<size_t>(d)], want, 150 * 0x1p-8);
    }
  }
}

// A position alone is not off by the rounding of its weight.
TEST_P(AttentionPairs, APositionWithAllTheWeightGivesItsValue) {
  Head head(random_, 80, 40, 300, 200);
  head.window = 1;
  for (float& x : head.v) x = bf16_to_fp32(fp32_to_bf16(x));
  head.round_to_halves();  // a value near 0 has fewer bits in F16 than in BF16
  const Attended got = attend(head);
  for (size_t i = 0; i < head.n_queries(); ++i) {
    for (int64_t d = 0; d < 40; ++d) {
      EXPECT_FLOAT_EQ(got.acc[i * 40 + static_cast<size_t>(d)] / got.sum[i],
                      head.value(head.positions[i])[d]);
    }
  }
}

// The same weights are rounded in the same way, whatever else a call sees.
TEST_P(AttentionPairs, PartsAddUpToTheWhole) {
  for (int round = 0; round < 20; ++round) {
    const int64_t n = 40 + random_.below(500);
    Head head(random_, 64, 24, n, 24 + random_.below(100));
    for (float& x : head.q) x *= 3.0f;
    for (int32_t& position : head.positions) position = static_cast<int32_t>(n - 1 - random_.below(8));
    const int64_t cut = random_.below((n - 8) / kBlock) * kBlock;
    const Attended whole = attend(head), old = attend(head, 0, cut), recent = attend(head, cut);
    for (size_t i = 0; i < head.n_queries(); ++i) {
      const double top = std::max(old.max[i], recent.max[i]);
      const double a = std::exp(old.max[i] - top), b = std::exp(recent.max[i] - top);
      const double sum = a * old.sum[i] + b * recent.sum[i];
      for (size_t d = i * 24; d < (i + 1) * 24; ++d) {
        EXPECT_NEAR((a * old.acc[d] + b * recent.acc[d]) / sum, whole.acc[d] / whole.sum[i], 2e-5)
            << cut << " of " << n;
      }
    }
  }
}

// Integers have neither NaN nor infinity, so a key that has one must show in its scores, and only there.
TEST_P(AttentionPairs, AKeyThatIsNoNumberShowsWhereItIsSeen) {
  for (const float bad : {std::nanf(""), -std::nanf(""), INFINITY, -INFINITY}) {
    Head head(random_, 64, 16, 200, 100);
    head.round_to_halves();
    const int64_t at = random_.below(200);
    head.key(at)[random_.below(64)] = bad;
    const Attended got = attend(head);
    for (size_t i = 0; i < head.n_queries(); ++i) {
      EXPECT_EQ(std::isnan(got.sum[i]), head.positions[i] >= at) << bad << " at " << at;
      EXPECT_EQ(std::isnan(got.acc[i * 16 + 3]), head.positions[i] >= at) << bad << " at " << at;
    }
  }
}

TEST_P(AttentionPairs, AQueryThatIsNoNumberShowsInItsRowAlone) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    Head head(random_, 64, 16, 200, 100);
    head.round_to_halves();
    const size_t at = static_cast<size_t>(random_.below(100));
    head.query(at)[random_.below(64)] = bad;
    const Attended got = attend(head);
    for (size_t i = 0; i < head.n_queries(); ++i) EXPECT_EQ(std::isnan(got.acc[i * 16]), i == at) << bad;
  }
}

// The weights' maximum is that of a few positions, or of earlier ones, and is raised where later scores are far above it.
TEST_P(AttentionPairs, LaterScoresMayBeFarAboveTheFirst) {
  for (const float height : {10.0f, 30.0f, 60.0f, 200.0f, 3000.0f}) {
    for (const int64_t at : {20, 140, 300, 590}) {
      Head head(random_, 64, 16, 600, 50);
      for (int32_t& position : head.positions) position = 595 + static_cast<int32_t>(random_.below(5));
      head.round_to_halves();
      // All queries alike in a column that one key has.
      for (size_t i = 0; i < head.n_queries(); ++i) head.query(i)[7] = 4.0f;
      head.key(at)[7] = bf16_to_fp32(fp32_to_bf16(height / head.scale() / 4.0f));
      for (float& x : head.v) x = bf16_to_fp32(fp32_to_bf16(x));
      head.round_to_halves();
      const Attended got = attend(head);
      const Attended want = test::attend(Isa::scalar, head);
      for (size_t i = 0; i < want.acc.size(); ++i) {
        EXPECT_NEAR(got.acc[i] / got.sum[i / 16], want.acc[i] / want.sum[i / 16], 3e-2)
            << height << " at " << at;
      }
      for (size_t i = 0; i < head.n_queries(); ++i) {
        const double log_sum = std::log(want.sum[i]) + want.max[i];
        EXPECT_NEAR(std::log(got.sum[i]) + got.max[i], log_sum, 5e-3 + 3e-4 * std::abs(log_sum));
      }
    }
  }
}

// Windows of queries that begin in the middle of a panel, where scores of earlier positions say nothing of theirs.
TEST_P(AttentionPairs, ScoresFarBelowThoseOfPositionsThatAreHidden) {
  Head head(random_, 64, 16, 600, 50);
  head.window = 100;
  for (int32_t& position : head.positions) position = 400 + static_cast<int32_t>(random_.below(200));
  for (size_t i = 0; i < head.n_queries(); ++i) head.query(i)[7] = 40.0f;
  for (int64_t i = 0; i < 300; ++i) head.key(i)[7] = 100.0f;
  for (int64_t i = 300; i < 600; ++i) head.key(i)[7] = -100.0f;
  head.round_to_halves();
  const Attended got = attend(head), want = test::attend(Isa::scalar, head);
  for (size_t i = 0; i < want.acc.size(); ++i)
    EXPECT_NEAR(got.acc[i] / got.sum[i / 16], want.acc[i] / want.sum[i / 16], 5e-2);
}

// Rows of codes whose sums of products are as great as they can be.
TEST_P(AttentionPairs, KeysAndQueriesWhoseColumnsAreAllAlike) {
  for (const int64_t head_dim : {64, 128, 256, 576, 1024}) {
    Head head(random_, head_dim, 16, 150, 40);
    for (float& x : head.q) x = 0.25f;
    for (int64_t i = 0; i < 150; ++i) {
      std::fill_n(head.key(i), head_dim, static_cast<float>(i % 7 - 3) / 8.0f);
    }
    head.round_to_halves();
    const Attended got = attend(head), want = test::attend(Isa::scalar, head);
    for (size_t i = 0; i < want.acc.size(); ++i) {
      EXPECT_NEAR(got.acc[i] / got.sum[i / 16], want.acc[i] / want.sum[i / 16], 2e-2) << head_dim;
    }
  }
}

class TileCodes : public testing::Test {
 protected:
  void SetUp() override {
    if (best_isa() < Isa::avx512_amx) GTEST_SKIP() << "this machine has no AMX";
  }
  // Errors of products without those of low bytes, relative to the norms of both rows.
  ProductErrors product_errors(const std::vector<float>& a, const std::vector<float>& b) const {
    const int64_t ld = static_cast<int64_t>(a.size()) / 16;
    const test::AlignedBytes x(a.size() * 2), y(a.size() * 2);
    float x_units[16], y_units[16];
    avx512_amx::encode_rows(a.data(), ld, ld, x.p, x_units);
    avx512_amx::encode_rows(b.data(), ld, ld, y.p, y_units);
    ProductErrors errors;
    for (int64_t i = 0; i < 256; ++i) {
      const int64_t r = i / 16, t = i % 16;
      int64_t high = 0, middle = 0;
      double exact = 0, a_square = 0, b_square = 0;
      for (int64_t d = 0; d < ld; ++d) {
        const auto code = [&](const test::AlignedBytes& of, int64_t row, int64_t plane) {
          return static_cast<int64_t>(
              static_cast<int8_t>(of.p[d / 64 * 2048 + plane * 1024 + row * 64 + d % 64]));
        };
        high += code(x, r, 0) * code(y, t, 0);
        middle += code(x, r, 0) * code(y, t, 1) + code(x, r, 1) * code(y, t, 0);
        const double p = a[static_cast<size_t>(r * ld + d)], q = b[static_cast<size_t>(t * ld + d)];
        exact += p * q;
        a_square += p * p;
        b_square += q * q;
      }
      EXPECT_LE(std::abs(256 * high + middle), std::numeric_limits<int32_t>::max()) << ld;
      const double got = 256.0 * static_cast<double>(256 * high + middle) * x_units[r] * y_units[t];
      const double error = std::abs(got - exact) / std::sqrt(a_square * b_square);
      errors.deviation += error * error / 256;
      errors.worst = std::max(errors.worst, error);
    }
    errors.deviation = std::sqrt(errors.deviation);
    return errors;
  }
  Random random_;
};

// The deviations that amx/attention.cpp states.
TEST_F(TileCodes, RoundingOfProducts) {
  for (const int64_t ld : {64, 128, 256, 576}) {
    std::vector<float> a = random_.normals(16 * ld), b = random_.normals(16 * ld, 1e3f);
    EXPECT_LE(product_errors(a, b).deviation, 8e-6) << ld;
    const int64_t column = random_.below(ld);
    for (int64_t r = 0; r < 16; ++r) b[static_cast<size_t>(r * ld + column)] *= 200.0f;
    EXPECT_LE(product_errors(a, b).deviation, 4e-5) << ld;
    for (int64_t r = 0; r < 16; ++r) a[static_cast<size_t>(r * ld + column)] *= 200.0f;
    EXPECT_LE(product_errors(a, b).deviation, 8e-5 * std::sqrt(static_cast<double>(ld) / 128)) << ld;
  }
}

TEST_F(TileCodes, SumsDoNotOverflow) {
  for (const int64_t ld : {64, 128, 576, 2048}) {
    const size_t n = static_cast<size_t>(16 * ld);
    EXPECT_LE(product_errors(std::vector<float>(n, 7.25f), std::vector<float>(n, -3.5f)).worst, 1e-4) << ld;
    EXPECT_LE(product_errors(std::vector<float>(n, 0.5f), std::vector<float>(n, 0.5f)).worst, 1e-4) << ld;
  }
}

}  // namespace
}  // namespace tandem::cpu
