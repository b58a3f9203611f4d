// GPU attention against the scalar reference: every cache dtype, one query and many, several sequences.
#include "device/cache_dtypes.h"
#include "gpu/attention_scene.h"

namespace tandem::gpu_test {
namespace {

class GpuAttention : public GpuTest {
 protected:
  void check(const AttentionCase& c) {
    SCOPED_TRACE(c.text());
    OpCase op(random_, c.shape());
    AttentionScene(random_, c).give(op);
    op.builder.set_layer(0);
    op.finish(op.builder.attention(op.activation(c.n_head * c.head_dim_k, 2.0f), c.op(),
                                   c.sinks ? op.vector(random_.normals(c.n_head, 2.0f)) : nullptr));
    op.expect_match(*device_, {c.n_tokens(), 1}, c.tolerance());
  }
};

TEST_F(GpuAttention, EveryCacheDtypeAndLengthOfOneQuery) {
  for (DType dtype : kCacheDTypes) {
    for (int64_t length : some_of<int64_t>({1, 31, 33, 2, 257, 32, 1000, 100, 4099}, 2)) {
      AttentionCase c;
      c.k_dtype = c.v_dtype = dtype;
      c.lengths = {length};
      check(c);
    }
  }
}

TEST_F(GpuAttention, EveryCacheDtypeAndNumberOfQueries) {
  for (DType dtype : kCacheDTypes) {
    using Size = std::pair<int64_t, int64_t>;
    for (const auto& [length, n] :
         some_of<Size>({{5, 5}, {2, 2}, {300, 65}, {64, 64}, {70, 3}, {130, 130}, {513, 17}}, 2)) {
      AttentionCase c;
      c.k_dtype = c.v_dtype = dtype;
      c.lengths = {length};
      c.n_queries = {n};
      check(c);
    }
  }
}

// Plans share a kernel and its limit of shared memory. A later one that needs less must not lower it.
TEST_F(GpuAttention, PlansOfOneKernelThatNeedDifferentSharedMemory) {
  for (const int64_t n : {1, 40}) {
    const auto make = [&](const AttentionCase& c, OpCase& op) {
      AttentionScene(random_, c).give(op);
      op.builder.set_layer(0);
      op.finish(op.builder.attention(op.activation(c.n_head * c.head_dim_k, 2.0f), c.op()));
    };
    AttentionCase large, small;
    large.lengths = small.lengths = {300};
    large.n_queries = small.n_queries = {n};
    large.head_dim_k = large.head_dim_v = 128;
    small.head_dim_k = small.head_dim_v = 72;
    if (n ==
        1) {  // one kernel reads all mixtures of types; the small plan takes fewer bytes, with twice the warps
      large.k_dtype = large.v_dtype = small.k_dtype = DType::F32;
      small.v_dtype = DType::F16;
    }
    OpCase large_op(random_, large.shape()), small_op(random_, small.shape());
    make(large, large_op);
    make(small, small_op);
    const StepShape shape{n, 1};
    const std::vector<float> reference = large_op.reference(shape).values;
    const auto plan_small = [&] { small_op.run(*device_, shape); };
    for (const OpResult& result : large_op.run(*device_, shape, 2, plan_small))
      EXPECT_LT(relative_error(result.values, reference), kRounded) << n << " queries";
  }
}

// The product behind attention reads bytes, which the merge of the splits makes where the heads' size allows it.
TEST_F(GpuAttention, ProductsOfItsResult) {
  for (const int64_t head_dim : {32, 64, 128, 256, 80}) {
    for (const int64_t n : {1, 3}) {
      AttentionCase c;
      c.n_head = 8;
      c.n_head_kv = 2;
      c.head_dim_k = c.head_dim_v = head_dim;
      c.lengths = {200, 70, 1};
      c.n_queries = {n == 1 ? 1 : 2, 1, 1};
      c.sinks = n == 3;
      SCOPED_TRACE(c.text());
      for (const DType dtype : {DType::Q4_K, DType::Q8_0}) {
        const int64_t cols = c.n_head * head_dim;
        if (cols % dtype_info(dtype).block_elements != 0) continue;
        OpCase op(random_, c.shape());
        AttentionScene(random_, c).give(op);
        op.builder.set_layer(0);
        const TensorId y =
            op.builder.attention(op.activation(cols, 2.0f), c.op(),
                                 c.sinks ? op.vector(random_.normals(c.n_head, 2.0f)) : nullptr);
        op.finish(op.builder.linear(y, op.matrix(dtype, 48, cols)));
        op.expect_match(*device_, {c.n_tokens(), 1}, kRounded, OpCase::Rounding::allowed);
      }
    }
  }
}

TEST_F(GpuAttention, MixedCacheDtypes) {
  for (DType k : {DType::F16, DType::Q8_0}) {
    for (DType v : {DType::F16, DType::BF16, DType::Q4_0}) {
      for (int64_t n : {1, 33}) {
        AttentionCase c;
        c.k_dtype = k;
        c.v_dtype = v;
        c.lengths = {150};
        c.n_queries = {n};
        check(c);
      }
    }
  }
}

TEST_F(GpuAttention, HeadsOfManyShapes) {
  for (const AttentionCase& heads : {AttentionCase{1, 1, 32, 32},
                                     {8, 8, 64, 64},
                                     {32, 8, 128, 128},
                                     {28, 4, 128, 128},
                                     {9, 3, 64, 64},
                                     {24, 3, 96, 96},
                                     {5, 1, 80, 80},
                                     {8, 4, 256, 256},
                                     {4, 2, 192, 128},
                                     {16, 1, 576, 512},
                                     {8, 8, 8, 8}}) {
    for (int64_t n : some_of<int64_t>({1, 4, 50}, 2)) {
      AttentionCase c = heads;
      c.lengths = {177};
      c.n_queries = {n};
      check(c);
    }
  }
}

TEST_F(GpuAttention, ValuesInKeys) {
  struct Heads {
    int64_t n_head, k, v;
  };
  for (const Heads& h :
       some_of<Heads>({{20, 576, 512}, {5, 48, 32}, {4, 96, 64}, {3, 17, 9}, {37, 304, 264}}, 4)) {
    for (DType dtype : kCacheDTypes) {
      if (h.k % dtype_info(dtype).block_elements != 0) continue;
      for (int64_t n : some_of<int64_t>({1, 4, 50}, 2)) {
        AttentionCase c;
        c.values_in_keys = true;
        c.n_head = h.n_head;
        c.n_head_kv = 1;
        c.head_dim_k = h.k;
        c.head_dim_v = h.v;
        c.k_dtype = dtype;
        c.lengths = {177};
        c.n_queries = {n};
        check(c);
      }
    }
  }
}

TEST_F(GpuAttention, ValuesInKeysWithWindowSoftcapAndSinks) {
  for (int64_t head_dim : some_of<int64_t>({512, 64, 9}, 1)) {
    for (int64_t window : {0, 50}) {
      for (float softcap : {0.0f, 20.0f}) {
        AttentionCase c;
        c.values_in_keys = true;
        c.n_head = 5;
        c.n_head_kv = 1;
        c.head_dim_k = head_dim + 8;
        c.head_dim_v = head_dim;
        c.window = window;
        c.softcap = softcap;
        c.sinks = random_.below(2) != 0;
        c.lengths = {133, 20};
        c.n_queries = {random_.below(2) ? 1 : 40, 3};
        check(c);
      }
    }
  }
}

TEST_F(GpuAttention, WindowSoftcapAndSinks) {
  for (int64_t window : {0, 1, 16, 100}) {
    for (float softcap : {0.0f, 20.0f}) {
      for (bool sinks : {false, true}) {
        for (int64_t n : {1, 40}) {
          AttentionCase c;
          c.window = window;
          c.softcap = softcap;
          c.sinks = sinks;
          c.lengths = {333};
          c.n_queries = {n};
          check(c);
        }
      }
    }
  }
}

// Enough query rows for blocks of 128, the last of which are not full.
TEST_F(GpuAttention, PromptsOfManyRows) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::Q8_0}) {
    for (const int64_t head_dim : {128, 64, 72, 120, 8}) {
      if (head_dim % dtype_info(dtype).block_elements != 0) continue;
      AttentionCase c;
      c.k_dtype = c.v_dtype = dtype;
      c.head_dim_k = head_dim;
      c.head_dim_v = random_.below(2) ? head_dim : 64;
      c.n_head_kv = 1;
      c.n_head = 1 + random_.below(5);
      c.block_size = random_.below(2) ? 48 : 32;
      c.window = random_.below(3) ? 0 : 40;
      c.softcap = random_.below(3) ? 0.0f : 20.0f;
      c.sinks = random_.below(2) != 0;
      const int64_t n = 257 / c.n_head + 1 + random_.below(90);
      c.lengths = {n + random_.below(200), 60};
      c.n_queries = {n, 1 + random_.below(50)};
      check(c);
    }
  }
}

TEST_F(GpuAttention, SeveralSequencesAtOnce) {
  for (int64_t block_size : {8, 16, 32, 64}) {
    AttentionCase c;
    c.block_size = block_size;
    c.lengths = {77, 1, 300, 32};
    c.n_queries = {1, 1, 1, 1};
    check(c);
    c.n_queries = {5, 1, 70, 32};
    check(c);
  }
}

}  // namespace
}  // namespace tandem::gpu_test
