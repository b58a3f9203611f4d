// Attention of many queries with AVX-512 BF16, whose scores are products of 16-bit integers: the rounding of scores, and
// numbers that integers do not have.
#include <cmath>
#include <limits>

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

Attended attend(const Head& head) {
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
  call.kv_end = head.n_positions;
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

// The deviation of a score's rounding that bf16/row_codes.h states, relative to the norms of query and key.
constexpr double kDeviation = 1.25e-5;

// What errors of scores may be, relative to the norms of query and key.
struct Limits {
  double deviation = 1.3 * kDeviation, most = 6 * kDeviation;  // of 100 samples or more
};

// Each query sees one position, whose score is then the maximum.
void expect_exact_scores(Head& head, const std::string& what, const Limits& limits = {}) {
  head.round_to_halves();
  head.window = 1;
  const Attended got = attend(head);
  double squares = 0, worst = 0;
  for (size_t i = 0; i < head.n_queries(); ++i) {
    const float *q = head.query(i), *k = head.key(head.positions[i]);
    double score = 0, q_square = 0, k_square = 0;
    for (int64_t d = 0; d < head.dim_k; ++d) {
      score += static_cast<double>(q[d]) * k[d];
      q_square += static_cast<double>(q[d]) * q[d];
      k_square += static_cast<double>(k[d]) * k[d];
    }
    const double error = std::abs(got.max[i] / head.scale() - score) / std::sqrt(q_square * k_square);
    squares += error * error;
    worst = std::max(worst, error);
    EXPECT_EQ(got.sum[i], 1.0f) << what;
    const float* value = head.value(head.positions[i]);
    for (int64_t d = 0; d < head.dim_v; ++d) {
      EXPECT_NEAR(got.acc[i * static_cast<size_t>(head.dim_v) + static_cast<size_t>(d)], value[d],
                  0x1p-8f * std::abs(value[d]))
          << what;
    }
  }
  EXPECT_LE(std::sqrt(squares / static_cast<double>(head.n_queries())), limits.deviation) << what;
  EXPECT_LE(worst, limits.most) << what;
}

TEST_F(AttentionPairs, RoundingOfScores) {
  for (const int64_t dim_k : {17, 64, 80, 96, 128, 256, 576}) {
    for (const int64_t n_queries : {100, 256, 251}) {
      const std::string what = format("{} queries of {} columns", n_queries, dim_k);
      Head head(random_, dim_k, 40, 300, n_queries);
      expect_exact_scores(head, what);
      // A column far greater than the others, as some models have in keys.
      const int64_t column = random_.below(dim_k);
      for (int64_t i = 0; i < head.n_positions; ++i) head.key(i)[column] *= 200.0f;
      expect_exact_scores(head, what + " with a large column of keys");
      for (size_t i = 0; i < head.n_queries(); ++i) head.query(i)[column] *= 200.0f;
      expect_exact_scores(head, what + " with a large column of both");
    }
  }
}

// Rows that are as long as codes can be: all columns alike, whose roundings add up, or one alone.
TEST_F(AttentionPairs, SumsOfCodesDoNotOverflow) {
  for (const int64_t dim : {1, 2, 32, 128, 512}) {
    Head head(random_, dim, 16, 64, 64);
    for (float& x : head.k) x = -3.5f;
    for (float& x : head.q) x = 7.25f;
    const double all_alike = std::sqrt(static_cast<double>(dim)) / 32767 + 1e-7;
    expect_exact_scores(head, format("{} equal columns", dim), {all_alike, all_alike});
    for (float& x : head.k) x = 0.0f;
    for (float& x : head.q) x = 0.0f;
    for (int64_t i = 0; i < head.n_positions; ++i) head.key(i)[dim / 2] = 3e4f;
    for (size_t i = 0; i < head.n_queries(); ++i) head.query(i)[dim / 2] = -1e4f;
    expect_exact_scores(head, format("one of {} columns", dim));
  }
}

TEST_F(AttentionPairs, RowsOfZerosAndTinyNumbers) {
  for (const float size : {0.0f, 1e-30f}) {
    Head head(random_, 64, 16, 150, 40);
    head.round_to_halves();
    for (size_t i = 0; i < head.n_queries(); ++i) {
      head.positions[i] = 149;
      for (int64_t d = 0; d < 64; ++d) head.query(i)[d] *= size;
    }
    const Attended got = attend(head);
    for (size_t i = 0; i < head.n_queries(); ++i) {
      EXPECT_NEAR(got.max[i], 0.0f, 1e-20f);
      EXPECT_FLOAT_EQ(got.sum[i], 150.0f);
      for (int64_t d = 0; d < 16; ++d) {
        double want = 0;
        for (int64_t p = 0; p < 150; ++p) want += head.value(p)[d];
        EXPECT_NEAR(got.acc[i * 16 + static_cast<size_t>(d)], want, 150 * 0x1p-8);
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
