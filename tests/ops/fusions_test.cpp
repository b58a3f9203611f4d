// A dense layer as the CPU device compiles it: with few barriers, and with the same bits as its nodes one by one.
#include <cmath>

#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::OpBench;
using test::Random;

constexpr int64_t kEmbd = 96, kHead = 4, kHeadKv = 2, kHeadDim = 32, kHidden = 160, kBlocks = 8,
                  kBlockSize = 16;
constexpr size_t kFirst = 1;  // after the node that stands for the layer's input

// Attention and feed-forward network, with norms of the heads as some families have them.
class Layer {
 public:
  Layer(Random& random, int64_t n_tokens, bool with_head_norms)
      : bench_(shape_of(n_tokens)), n_tokens_(n_tokens) {
    GraphBuilder& b = bench_.builder;
    const auto matrix = [&](int64_t rows, int64_t cols) {
      return bench_.weight(random.normals(rows * cols, 0.1f), rows);
    };
    const auto vector = [&](int64_t n) { return bench_.weight(random.normals(n), 1); };
    const RopeParams rope{.n_head = kHead, .head_dim = kHeadDim, .n_rot = kHeadDim};
    RopeParams rope_kv = rope;
    rope_kv.n_head = kHeadKv;
    x_ = bench_.activation(kEmbd);
    b.set_layer(0);
    const TensorId normed = b.norm(x_, {.group = kEmbd}, vector(kEmbd));
    TensorId q = b.linear(normed, matrix(kHead * kHeadDim, kEmbd)),
             k = b.linear(normed, matrix(kHeadKv * kHeadDim, kEmbd));
    const TensorId v = b.linear(normed, matrix(kHeadKv * kHeadDim, kEmbd));
    if (with_head_norms) {
      q = b.norm(q, {.group = kHeadDim}, vector(kHeadDim));
      k = b.norm(k, {.group = kHeadDim}, vector(kHeadDim));
    }
    q = b.rope(q, rope);
    k = b.rope(k, rope_kv);
    b.kv_write(k, v);
    const TensorId attended =
        b.attention(q, {kHead, kHeadKv, kHeadDim, kHeadDim, 1 / std::sqrt(1.0f * kHeadDim)});
    const TensorId sum = b.linear(attended, matrix(kEmbd, kHead * kHeadDim), nullptr, x_);
    const TensorId h = b.glu(b.norm(sum, {.group = kEmbd}, vector(kEmbd)), Activation::silu,
                             matrix(kHidden, kEmbd), matrix(kHidden, kEmbd));
    y_ = b.linear(h, matrix(kEmbd, kHidden), nullptr, sum);
    bench_.finish(y_);
    const size_t cache_bytes =
        row_bytes(DType::F16, kHeadDim) * static_cast<size_t>(kHeadKv * kBlocks * kBlockSize);
    k_.resize(cache_bytes);
    v_.resize(cache_bytes);
    bench_.kv.push_back(
        {k_.data(), v_.data(), DType::F16, DType::F16, kHeadKv, kHeadDim, kHeadDim, kBlockSize, kBlocks});
    input_ = random.normals(n_tokens * kEmbd);
  }

  // Runs `n` nodes at a time; returns the sums and the cache.
  std::vector<float> run(int n_threads, size_t n, uint32_t* n_barriers = nullptr) {
    std::ranges::fill(k_, std::byte{0});
    std::ranges::fill(v_, std::byte{0});
    std::ranges::copy(input_, bench_.data(x_));
    for (int32_t t = 0; t < n_tokens_; ++t) {
      bench_.input(Input::positions)[t] = bench_.input(Input::slots)[t] = t;
      bench_.input(Input::sequences)[t] = 0;
    }
    for (int32_t i = 0; i < kBlocks; ++i) bench_.input(Input::block_table)[i] = i;
    uint32_t sum = 0;
    const size_t end = bench_.graph.nodes.size() - 1;
    for (size_t at = kFirst; at < end; at += n) {
      sum += bench_.run_nodes(best_isa(), {n_tokens_, 1}, n_threads, at, std::min(n, end - at));
    }
    if (n_barriers) *n_barriers = sum;
    std::vector<float> all(bench_.data(y_), bench_.data(y_) + n_tokens_ * kEmbd);
    for (const std::byte b : k_) all.push_back(static_cast<float>(b));
    for (const std::byte b : v_) all.push_back(static_cast<float>(b));
    return all;
  }

 private:
  static ShapeClass shape_of(int64_t n_tokens) {
    ShapeClass shape;
    shape.max_tokens = n_tokens;
    shape.max_blocks = kBlocks;
    shape.n_ctx = kBlocks * kBlockSize;
    return shape;
  }

  OpBench bench_;
  int64_t n_tokens_;
  TensorId x_ = kNoTensor, y_ = kNoTensor;
  std::vector<std::byte> k_, v_;
  std::vector<float> input_;
};

TEST(Fusions, HaveTheBitsOfSingleNodes) {
  Random random;
  for (const int64_t n : {1, 2, 7, 100}) {
    for (const bool with_head_norms : {false, true}) {
      SCOPED_TRACE(n);
      Layer layer(random, n, with_head_norms);
      const std::vector<float> one_by_one = layer.run(1, 1);
      for (const float y : one_by_one) ASSERT_TRUE(std::isfinite(y));
      for (const int n_threads : {1, 2, 5})
        EXPECT_EQ(layer.run(n_threads, 100), one_by_one) << n_threads << " threads";
    }
  }
}

// Norm with q, k and v; norms of heads, rotations and the cache; attention; its output; norm with gate and up; down. Each op
// ran alone here, which ends with a barrier of its own.
TEST(Fusions, ATokenOfALayerTakesSixBarriers) {
  Random random;
  for (const bool with_head_norms : {false, true}) {
    Layer layer(random, 1, with_head_norms);
    uint32_t together = 0, one_by_one = 0;
    layer.run(2, 100, &together);
    layer.run(2, 1, &one_by_one);
    EXPECT_EQ(together, 2 * 6u);
    EXPECT_EQ(one_by_one, 2 * (with_head_norms ? 14u : 12u));
  }
}

}  // namespace
}  // namespace tandem::cpu
