// Attention of many queries with AVX-512 BF16, whose scores are products of 16-bit integers and whose weights are bf16:
// their rounding, and numbers that integers do not have.
#include <cmath>
#include <limits>

#include "cpu/bf16/row_codes.h"
#include "gguf/quants.h"
#include "ops/row_harness.h"
#include "support/linear_problem.h"

namespace tandem::cpu {
namespace {

using test::Random;

constexpr int64_t kBlock = 16;

// A head's cache in F16, in order of position, and queries.
struct Head {
  int64_t dim_k, dim_v, n_positions;
  std::vector<float> k, v, q;  // [n_positions, dim_k], [n_positions, dim_v], [n_queries, dim_k]
  std::vector<int32_t> positions;
  int64_t window = 0;

  Head(Random& random, int64_t hd_k, int64_t hd_v, int64_t n, int64_t n_queries)
      : dim_k(hd_k),
        dim_v(hd_v),
        n_positions(n),
        k(random.normals(n * hd_k)),
        v(random.normals(n * hd_v)),
        q(random.normals(n_queries * hd_k)) {
    for (int64_t i = 0; i < n_queries; ++i) positions.push_back(static_cast<int32_t>(random.below(n)));
  }

  size_t n_queries() const { return positions.size(); }
  float* key(int64_t i) { return k.data() + i * dim_k; }
  float* value(int64_t i) { return v.data() + i * dim_v; }
  float* query(size_t i) { return q.data() + i * static_cast<size_t>(dim_k); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(dim_k)); }
  void round_to_halves() {
    for (auto* rows : {&k, &v}) {
      for (float& x : *rows) x = fp16_to_fp32(fp32_to_fp16(x));
    }
  }
};

struct Attended {
  std::vector<float> acc, sum, max;
};

Attended attend(const Head& head, int64_t kv_begin = 0, int64_t kv_end = INT64_MAX) {
  const int64_t n_blocks = (head.n_positions + kBlock - 1) / kBlock;
  const auto halves = [&](const std::vector<float>& rows, int64_t dim) {
    std::vector<fp16_t> to(static_cast<size_t>(n_blocks * kBlock * dim), 0xffff);
    for (size_t i = 0; i < rows.size(); ++i) to[i] = fp32_to_fp16(rows[i]);
    return to;
  };
  const std::vector<fp16_t> k = halves(head.k, head.dim_k), v = halves(head.v, head.dim_v);
  std::vector<int32_t> table;
  for (int64_t i = 0; i < n_blocks; ++i) table.push_back(static_cast<int32_t>(i));
  std::vector<const float*> rows;
  for (size_t i = 0; i < head.n_queries(); ++i)
    rows.push_back(head.q.data() + i * static_cast<size_t>(head.dim_k));
  Attended to{std::vector<float>(head.n_queries() * static_cast<size_t>(head.dim_v)),
              std::vector<float>(head.n_queries()), std::vector<float>(head.n_queries())};
  AttentionCall call;
  call.k_dtype = call.v_dtype = DType::F16;
  call.head_dim_k = head.dim_k, call.head_dim_v = head.dim_v;
  call.block_size = kBlock;
  call.k = reinterpret_cast<const std::byte*>(k.data()),
  call.v = reinterpret_cast<const std::byte*>(v.data());
  call.k_block_stride = static_cast<size_t>(kBlock * head.dim_k) * sizeof(fp16_t);
  call.v_block_stride = static_cast<size_t>(kBlock * head.dim_v) * sizeof(fp16_t);
  call.block_table = table.data();
  call.scale = head.scale();
  call.window = head.window;
  call.n_queries = static_cast<int64_t>(head.n_queries());
  call.q = rows.data(), call.positions = head.positions.data();
  call.kv_begin = kv_begin, call.kv_end = std::min(kv_end, head.n_positions);
  call.acc = to.acc.data(), call.sum = to.sum.data(), call.max = to.max.data();
  EXPECT_TRUE(avx512_bf16::takes(call));
  const AttentionKernels& kernels = avx512_bf16::attention_kernels();
  const test::AlignedBytes scratch(kernels.scratch_bytes(call));
  std::memset(scratch.p, 0xff, kernels.scratch_bytes(call));
  kernels.attend(call, scratch.p);
  return to;
}

class AttentionPairs : public testing::Test {
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
struct Errors {
  double deviation = 0, worst = 0;
};
Errors errors_of(const std::vector<float>& a, const std::vector<float>& b) {
  const Codes x(a), y(b);
  Errors errors;
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

TEST_F(AttentionPairs, RoundingOfProductsOfCodes) {
  for (const int64_t ld : {32, 64, 96, 128, 256, 576}) {
    std::vector<float> a = random_.normals(16 * ld), b = random_.normals(16 * ld, 1e3f);
    const auto expect_small = [&](const char* what) {
      const Errors errors = errors_of(a, b);
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
TEST_F(AttentionPairs, SumsOfCodesDoNotOverflow) {
  for (const int64_t ld : {32, 128, 576, 2048}) {
    const size_t n = static_cast<size_t>(16 * ld);
    const Errors alike = errors_of(std::vector<float>(n, 7.25f), std::vector<float>(n, -3.5f));
    EXPECT_LE(alike.worst, std::sqrt(static_cast<double>(ld)) / 32767 + 1e-6) << ld;
    std::vector<float> one(n);
    for (size_t r = 0; r < 16; ++r) one[r * static_cast<size_t>(ld) + 5] = r % 2 ? 3e4f : -1e-3f;
    EXPECT_LE(errors_of(one, one).worst, 1e-6) << ld;
  }
}

TEST_F(AttentionPairs, UnitsOfRowsThatHaveNone) {
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

TEST_F(AttentionPairs, QueriesOfZerosTakeTheMean) {
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
TEST_F(AttentionPairs, APositionWithAllTheWeightGivesItsValue) {
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
TEST_F(AttentionPairs, PartsAddUpToTheWhole) {
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
TEST_F(AttentionPairs, AKeyThatIsNoNumberShowsWhereItIsSeen) {
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

TEST_F(AttentionPairs, AQueryThatIsNoNumberShowsInItsRowAlone) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    Head head(random_, 64, 16, 200, 100);
    head.round_to_halves();
    const size_t at = static_cast<size_t>(random_.below(100));
    head.query(at)[random_.below(64)] = bad;
    const Attended got = attend(head);
    for (size_t i = 0; i < head.n_queries(); ++i) EXPECT_EQ(std::isnan(got.acc[i * 16]), i == at) << bad;
  }
}

}  // namespace
}  // namespace tandem::cpu
