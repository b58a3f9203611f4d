// GPU attention of few tokens, packed as rows of tensor cores (ggml-cuda/ops/attention_packed.cu) and in floats.
#include <cstdlib>
#include <numeric>

#include "gpu/attention_scene.h"

namespace tandem::gpu_test {
namespace {

const std::vector<DType> kPackedDtypes = {DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0};

class GpuPackedAttention : public GpuTest {
 protected:
  // An attention op and its inputs.
  struct Op {
    OpCase op;
    StepShape step;
    Op(Random& random, const AttentionCase& c, KvPart part = KvPart::whole) : op(random, c.shape()), step{c.n_tokens(), 1} {
      AttentionScene(random, c, part).give(op);
      op.builder.set_layer(0);
      op.finish(op.builder.attention(op.activation(c.n_head * c.head_dim_k, 2.0f), c.op(part),
                                     c.sinks ? op.vector(random.normals(c.n_head, 2.0f)) : nullptr));
    }
  };

  void check(const AttentionCase& c) {
    SCOPED_TRACE(c.text() + ", blocks of " + std::to_string(c.block_size));
    Op op(random_, c);
    op.op.expect_match(*device_, op.step, c.tolerance());
  }

  int64_t between(int64_t least, int64_t most) { return least + random_.below(most - least + 1); }
};

// Of one head, groups that fill a block's 16 rows or not, and more than that.
TEST_F(GpuPackedAttention, GroupsOfAnySize) {
  for (const DType dtype : kPackedDtypes) {
    for (const int64_t group : some_of<int64_t>({1, 7, 16, 2, 3, 12, 5, 17, 8, 40, 4, 33}, 2)) {
      AttentionCase c;
      c.k_dtype = c.v_dtype = dtype;
      c.n_head_kv = between(1, 2);
      c.n_head = group * c.n_head_kv;
      c.head_dim_k = c.head_dim_v = random_.below(2) ? 64 : 128;
      c.lengths = {between(1, 400)};
      check(c);
    }
  }
}

// Of the tokens that would fit into a block some are of other sequences. As many tokens as take this kernel.
TEST_F(GpuPackedAttention, TokensOfSeveralSequences) {
  for (const DType dtype : kPackedDtypes) {
    for (const std::vector<int64_t>& n_queries :
         some_of<std::vector<int64_t>>({{2}, {1, 3}, {2, 1, 1}, {4}, {1, 1}, {2, 2}, {1, 1, 1, 1, 1, 1, 1}}, 2)) {
      AttentionCase c;
      c.k_dtype = c.v_dtype = dtype;
      c.n_head = 2 * between(1, 9);
      c.n_queries = n_queries;
      c.lengths.clear();
      for (const int64_t n : n_queries) c.lengths.push_back(n + random_.below(300));
      check(c);
    }
  }
}

// The tokens of a sequence need not be neighbours.
TEST_F(GpuPackedAttention, TokensInAnyOrder) {
  for (const DType dtype : kPackedDtypes) {
    AttentionCase c;
    c.k_dtype = c.v_dtype = dtype;
    c.n_head = 2 * between(1, 4);
    c.lengths = {between(2, 300), between(1, 300), between(1, 300)};
    c.n_queries = {2, 1, 1};  // more tokens take the other kernel
    SCOPED_TRACE(c.text());
    Op op(random_, c);
    std::vector<size_t> order(static_cast<size_t>(c.n_tokens()));
    std::iota(order.begin(), order.end(), size_t{0});
    random_.shuffle(order);
    for (const Input input : {Input::positions, Input::far_positions, Input::sequences}) {
      const std::vector<int32_t> before = op.op.input(input);
      std::vector<int32_t> after;
      for (const size_t i : order) after.push_back(before[i]);
      op.op.set_input(input, after);
    }
    op.op.expect_match(*device_, op.step, c.tolerance());
  }
}

TEST_F(GpuPackedAttention, HeadsAndBlocksOfAnySize) {
  struct Heads {
    DType dtype;
    int64_t k, v;
  };
  for (const Heads& h : some_of<Heads>({{DType::F16, 8, 8},
                                        {DType::F16, 72, 128},
                                        {DType::BF16, 40, 24},
                                        {DType::F16, 128, 64},
                                        {DType::Q8_0, 32, 96},
                                        {DType::BF16, 112, 120},
                                        {DType::Q4_0, 96, 32},
                                        {DType::F16, 80, 80},
                                        {DType::Q4_0, 64, 128},
                                        {DType::Q8_0, 128, 64}},
                                       1)) {
    for (const int64_t block_size : some_of<int64_t>({16, 32, 48, 64}, 2)) {
      AttentionCase c;
      c.k_dtype = c.v_dtype = h.dtype;
      c.head_dim_k = h.k;
      c.head_dim_v = h.v;
      c.block_size = block_size;
      c.lengths = {between(3, 300)};
      c.n_queries = {between(1, 3)};
      check(c);
    }
  }
}

TEST_F(GpuPackedAttention, WindowsCapsAndSinks) {
  for (const DType dtype : kPackedDtypes) {
    for (const int64_t window : {0, 1, 17, 130}) {
      AttentionCase c;
      c.k_dtype = c.v_dtype = dtype;
      c.window = window;
      c.softcap = random_.below(2) ? 20.0f : 0.0f;
      c.sinks = random_.below(2) != 0;
      c.lengths = {between(4, 400), between(1, 90)};
      c.n_queries = {between(1, 3), 1};
      check(c);
    }
  }
}

// The parts of a split cache, with an odd number of heads (each row of results then has as many logarithms behind it).
TEST_F(GpuPackedAttention, PartsOfASplitCache) {
  for (const DType dtype : kPackedDtypes) {
    AttentionCase c;
    c.k_dtype = c.v_dtype = dtype;
    c.n_head = 5;
    c.n_head_kv = 1;
    c.lengths = {200, 40};
    c.n_queries = {2, 1};
    c.hot_from = {96, 32};
    for (const KvPart part : {KvPart::cold, KvPart::hot}) {
      SCOPED_TRACE(c.text());
      Op op(random_, c, part);
      op.op.expect_match(*device_, op.step, c.tolerance());
    }
  }
}

// Queries that the kernel before has just written.
TEST_F(GpuPackedAttention, QueriesOfAProduct) {
  for (const DType dtype : kPackedDtypes) {
    AttentionCase c;
    c.k_dtype = c.v_dtype = dtype;
    c.n_head = 8;
    c.lengths = {between(1, 300), between(1, 300)};
    c.n_queries = {1, 1};
    SCOPED_TRACE(c.text());
    OpCase op(random_, c.shape());
    AttentionScene(random_, c).give(op);
    op.builder.set_layer(0);
    const TensorId q = op.builder.linear(op.activation(256), op.matrix(DType::F16, c.n_head * c.head_dim_k, 256));
    op.finish(op.builder.attention(q, c.op()));
    op.expect_match(*device_, {c.n_tokens(), 1}, c.tolerance());
  }
}

// That both kernels are there: they round differently, and each repeats itself.
TEST_F(GpuPackedAttention, InFloatsIfWanted) {
  if (device_->info().backend == "SIM") GTEST_SKIP() << "the simulated device has the CPU's kernels";
  for (const DType dtype : kPackedDtypes) {
    AttentionCase c;
    c.k_dtype = c.v_dtype = dtype;
    c.lengths = {300};
    SCOPED_TRACE(c.text());
    Op op(random_, c);
    const std::vector<float> packed = op.op.run(*device_, op.step).front().values;
    setenv("TANDEM_CUDA_ATTENTION", "floats", 1);
    const std::vector<float> floats = op.op.run(*device_, op.step).front().values;
    unsetenv("TANDEM_CUDA_ATTENTION");
    EXPECT_NE(packed, floats);
    EXPECT_EQ(packed, op.op.run(*device_, op.step).front().values);
    EXPECT_LT(relative_error(packed, floats), c.tolerance());
  }
}

}  // namespace
}  // namespace tandem::gpu_test
