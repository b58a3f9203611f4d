// GPU attention over the hot or the cold cache, against its definition in double precision; and both merged,
// against attention over the whole cache.
#include <limits>
#include <numeric>

#include "device/cache_dtypes.h"
#include "gpu/attention_scene.h"

namespace tandem::gpu_test {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

class GpuAttentionParts : public GpuTest {
 protected:
  // One part alone; the cache holds only its rows.
  void check_part(const AttentionCase& c, KvPart part) {
    SCOPED_TRACE(c.text() + (part == KvPart::cold ? ", cold" : ", hot"));
    OpCase op(random_, c.shape());
    const AttentionScene scene(random_, c, part);
    scene.give(op);
    const std::vector<float> q = random_.normals(c.n_tokens() * c.n_head * c.head_dim_k, 2.0f);
    const std::vector<float> sinks = c.sinks ? random_.normals(c.n_head, 2.0f) : std::vector<float>();
    op.builder.set_layer(0);
    op.finish(op.builder.attention(op.activation(c.n_head * c.head_dim_k, q), c.op(part),
                                   c.sinks ? op.vector(sinks) : nullptr));
    ASSERT_EQ(op.why_unsupported(*device_), "");
    const std::vector<float> out = op.run(*device_, {c.n_tokens(), 1}).front().values;
    const int64_t n_sums = c.n_head * c.head_dim_v, n_cols = n_sums + c.n_head;
    std::vector<float> sums, expected;
    for (int64_t t = 0; t < c.n_tokens(); ++t) {
      const float* row = out.data() + t * n_cols;
      sums.insert(sums.end(), row, row + n_sums);
      for (int64_t h = 0; h < c.n_head; ++h) {
        const double logarithm = attend(c, scene, part, static_cast<size_t>(t), h, q, sinks, expected);
        if (logarithm == kNone) {
          EXPECT_EQ(row[n_sums + h], -INFINITY) << "token " << t << " head " << h;
        } else {
          EXPECT_NEAR(row[n_sums + h], logarithm, c.all_f32() ? 1e-4 : 3e-2)
              << "token " << t << " head " << h;
        }
      }
    }
    EXPECT_LT(relative_error(sums, expected), c.tolerance());
  }

  // Both parts merged in one graph, against the CPU's attention over the whole.
  void check_merged(const AttentionCase& c) {
    SCOPED_TRACE(c.text() + ", merged");
    OpCase parts(random_, c.shape()), whole(random_, c.shape());
    const AttentionScene scene(random_, c);
    scene.give(parts);
    scene.give(whole);
    const std::vector<float> q = random_.normals(c.n_tokens() * c.n_head * c.head_dim_k, 2.0f);
    const std::vector<float> sinks = random_.normals(c.n_head, 2.0f);
    parts.builder.set_layer(0);
    whole.builder.set_layer(0);
    const TensorId x = parts.activation(c.n_head * c.head_dim_k, q);
    const TensorId a =
        parts.builder.attention(x, c.op(KvPart::cold), c.sinks ? parts.vector(sinks) : nullptr);
    const TensorId b = parts.builder.attention(x, c.op(KvPart::hot));
    parts.finish(parts.builder.merge(a, b, {c.n_head, c.head_dim_v}));
    whole.finish(whole.builder.attention(whole.activation(c.n_head * c.head_dim_k, q), c.op(),
                                         c.sinks ? whole.vector(sinks) : nullptr));
    ASSERT_EQ(parts.why_unsupported(*device_), "");
    const StepShape shape{c.n_tokens(), 1};
    EXPECT_LT(relative_error(parts.run(*device_, shape).front().values, whole.reference(shape).values),
              c.tolerance());
  }

  void check(const AttentionCase& c) {
    check_part(c, KvPart::cold);
    check_part(c, KvPart::hot);
    check_merged(c);
  }

 private:
  // Appends the result of a token's head over the part; returns the logarithm of the sum.
  static double attend(const AttentionCase& c, const AttentionScene& scene, KvPart part, size_t token,
                       int64_t head, const std::vector<float>& q, const std::vector<float>& sinks,
                       std::vector<float>& to) {
    const size_t sequence = scene.sequence(token);
    const int64_t last = scene.position(token), kv_head = head / (c.n_head / c.n_head_kv);
    const float* mine = q.data() + (static_cast<int64_t>(token) * c.n_head + head) * c.head_dim_k;
    double total = c.sinks ? std::exp(static_cast<double>(sinks[static_cast<size_t>(head)])) : 0.0;
    std::vector<double> sum(static_cast<size_t>(c.head_dim_v), 0.0);
    for (int64_t p = c.window > 0 ? std::max<int64_t>(0, last - c.window + 1) : 0; p <= last; ++p) {
      if (!c.is_in(part, sequence, p)) continue;
      const std::vector<float> k = scene.key(sequence, p, kv_head), v = scene.value(sequence, p, kv_head);
      double score =
          std::inner_product(k.begin(), k.end(), mine, 0.0) / std::sqrt(static_cast<double>(c.head_dim_k));
      if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
      total += std::exp(score);
      for (size_t d = 0; d < sum.size(); ++d) sum[d] += std::exp(score) * v[d];
    }
    for (const double x : sum) to.push_back(static_cast<float>(total > 0 ? x / total : 0.0));
    return total > 0 ? std::log(total) : kNone;
  }
};

// Starts of the hot cache: everything is hot, some of it, only the newest token's block, nothing yet.
TEST_F(GpuAttentionParts, EveryCacheDtypeAndStart) {
  for (DType dtype : kCacheDTypes) {
    for (int64_t from : some_of<int64_t>({0, 64, 160, 96, 192}, 2)) {
      for (int64_t n : {1, 40}) {
        AttentionCase c;
        c.k_dtype = c.v_dtype = dtype;
        c.lengths = {173};
        c.n_queries = {n};
        c.hot_from = {from};
        check(c);
      }
    }
  }
}

TEST_F(GpuAttentionParts, LongOnesInManySplits) {
  for (int64_t n : some_of<int64_t>({1, 70}, 1)) {
    for (int64_t from : some_of<int64_t>({1024, 32, 2016}, 2)) {
      AttentionCase c;
      c.lengths = {2048};
      c.n_queries = {n};
      c.hot_from = {from};
      check(c);
    }
  }
}

// Odd numbers of heads, whose logarithms put rows at odd addresses, and shapes that only the simple kernel
// supports.
TEST_F(GpuAttentionParts, HeadsOfManyShapes) {
  for (const AttentionCase& heads : {AttentionCase{1, 1, 32, 32},
                                     {9, 3, 64, 64},
                                     {5, 1, 80, 80},
                                     {32, 8, 128, 128},
                                     {16, 1, 576, 512},
                                     {3, 3, 12, 20}}) {
    for (int64_t n : {1, 50}) {
      AttentionCase c = heads;
      c.lengths = {177};
      c.n_queries = {n};
      c.hot_from = {128};
      check(c);
    }
  }
}

// The rows of latent attention; the last shape is for the simple kernel.
TEST_F(GpuAttentionParts, ValuesInKeys) {
  struct Heads {
    int64_t n_head, k, v;
  };
  for (const Heads& h : {Heads{20, 576, 512}, {5, 288, 256}, {4, 96, 64}, {3, 17, 9}}) {
    for (DType dtype : {DType::F16, DType::F32}) {
      for (int64_t n : {1, 40}) {
        AttentionCase c;
        c.values_in_keys = true;
        c.n_head = h.n_head;
        c.n_head_kv = 1;
        c.head_dim_k = h.k;
        c.head_dim_v = h.v;
        c.k_dtype = dtype;
        c.lengths = {177};
        c.n_queries = {n};
        c.hot_from = {128};
        c.window = random_.below(2) ? 1 + random_.below(150) : 0;
        c.softcap = random_.below(2) ? 20.0f : 0.0f;
        c.sinks = random_.below(2) != 0;
        check(c);
      }
    }
  }
}

TEST_F(GpuAttentionParts, WindowSoftcapAndSinks) {
  for (int64_t window : {0, 1, 16, 100}) {
    for (bool sinks : {false, true}) {
      for (int64_t n : {1, 40}) {
        AttentionCase c;
        c.window = window;
        c.softcap = sinks ? 0.0f : 20.0f;
        c.sinks = sinks;
        c.lengths = {333};
        c.n_queries = {n};
        c.hot_from = {288};
        check(c);
      }
    }
  }
}

TEST_F(GpuAttentionParts, SeveralSequencesWithDifferentStarts) {
  for (int64_t block_size : {8, 16, 32, 64}) {
    AttentionCase c;
    c.block_size = block_size;
    c.lengths = {77, 1, 300, 32};
    c.hot_from = {64, 0, 192, 64};
    c.n_queries = {1, 1, 1, 1};
    check(c);
    c.n_queries = {5, 1, 70, 32};
    check(c);
  }
}

// A step of one token is recorded; the start of the hot cache is input data.
TEST_F(GpuAttentionParts, ReplayedStepsEqualLaunchedOnes) {
  AttentionCase c;
  c.lengths = {200};
  c.hot_from = {128};
  OpCase op(random_, c.shape());
  AttentionScene(random_, c).give(op);
  op.builder.set_layer(0);
  const TensorId x = op.activation(c.n_head * c.head_dim_k);
  const TensorId a = op.builder.attention(x, c.op(KvPart::cold)),
                 b = op.builder.attention(x, c.op(KvPart::hot));
  op.finish(op.builder.merge(a, b, {c.n_head, c.head_dim_v}));
  const std::vector<OpResult> runs = op.run(*device_, {1, 1}, 4);
  for (const OpResult& run : runs) EXPECT_EQ(run.values, runs.front().values);
}

}  // namespace
}  // namespace tandem::gpu_test
