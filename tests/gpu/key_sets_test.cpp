// Caches with each key twice (graph/self_extend.h) on a GPU: near positions by one set of keys, far ones by the other, and what
// stores them, against the scalar reference.
#include "device/cache_dtypes.h"
#include "gpu/attention_scene.h"

namespace tandem::gpu_test {
namespace {

class GpuKeySets : public GpuTest {
 protected:
  // Attention to the newest `lag` positions by the first set, merged with that to the others by the second.
  void check(AttentionCase c) {
    c.n_key_sets = 2;
    SCOPED_TRACE(c.text() + ", far after " + std::to_string(c.lag));
    OpCase op(random_, c.shape());
    const AttentionScene scene(random_, c);  // the table of open blocks is its own
    scene.give(op);
    op.builder.set_layer(0);
    AttentionParams near = c.op();
    near.gives_logarithms = true;
    AttentionParams far = near;
    near.window = c.lag;
    far.key_set = 1;
    const int64_t n_cols = c.n_head * c.head_dim_k;
    const Weight* sinks = c.sinks ? op.vector(random_.normals(c.n_head, 2.0f)) : nullptr;
    const TensorId a = op.builder.attention(op.activation(n_cols, 2.0f), near, sinks);
    const TensorId b = op.builder.attention(op.activation(n_cols, 2.0f), far, nullptr, Input::far_positions);
    op.finish(op.builder.merge(a, b, {c.n_head, c.head_dim_v}));
    op.expect_match(*device_, {c.n_tokens(), 1}, c.all_f32() ? kF32 : kRounded);
  }
};

TEST_F(GpuKeySets, EveryCacheDtype) {
  std::vector<DType> dtypes(std::begin(kCacheDTypes), std::end(kCacheDTypes));
  dtypes.insert(dtypes.end(), {DType::KIVI4, DType::KIVI2});
  for (const DType dtype : dtypes) {
    using Size = std::pair<int64_t, int64_t>;  // positions, queries; some see nothing far
    for (const auto& [length, n] :
         some_of<Size>({{300, 65}, {100, 1}, {31, 31}, {33, 1}, {97, 97}, {1000, 3}, {1, 1}, {30, 5}}, 2)) {
      AttentionCase c;
      c.k_dtype = c.v_dtype = dtype;
      c.lengths = {length};
      c.n_queries = {n};
      c.lag = 24;
      check(c);
    }
  }
}

TEST_F(GpuKeySets, HeadsOfManyShapes) {
  for (const AttentionCase& heads : {AttentionCase{1, 1, 32, 32},
                                     {32, 8, 128, 128},
                                     {9, 3, 64, 64},
                                     {5, 1, 80, 80},
                                     {8, 4, 256, 256},
                                     {4, 2, 12, 20}}) {
    for (const int64_t n : some_of<int64_t>({1, 50, 4}, 2)) {
      AttentionCase c = heads;
      c.lengths = {177};
      c.n_queries = {n};
      c.lag = 130;
      c.softcap = n == 1 ? 0.0f : 20.0f;
      check(c);
    }
  }
}

TEST_F(GpuKeySets, SeveralSequences) {
  for (const int64_t n : {1, 40}) {
    AttentionCase c;
    c.lengths = {50, 230, 41, 99};
    c.n_queries = {n, n, n, 2 * n};
    c.lag = 64;
    c.sinks = n == 1;
    check(c);
  }
}

// Every byte of the cache.
TEST_F(GpuKeySets, KeysAreStoredSetAfterSet) {
  for (const DType k : {DType::F16, DType::F32, DType::Q8_0, DType::Q4_0, DType::KIVI4}) {
    for (const DType v : {DType::F16, DType::Q8_0}) {
      for (const int64_t n : {1, 21}) {
        const int64_t n_head = 1 + random_.below(4), hd_k = 64, hd_v = 96;
        SCOPED_TRACE(std::string(dtype_name(k)) + "/" + std::string(dtype_name(v)) + " " + std::to_string(n) +
                     " tokens");
        KvLayer layer{nullptr, nullptr, k, v, n_head, hd_k, hd_v, 32, 3};
        layer.n_key_sets = 2;
        const std::vector<int32_t> open_of{1, 0, 2};
        if (is_kivi(k)) layer.n_open = 3;
        if (is_kivi(k)) layer.open_of = open_of.data();
        CacheBytes bytes;
        bytes.k.assign(row_bytes(k, 3 * 32 * 2 * n_head * hd_k), std::byte{0x25});
        bytes.v.assign(row_bytes(v, 3 * 32 * n_head * hd_v), std::byte{0x25});
        if (is_kivi(k))
          bytes.k_open.assign(row_bytes(DType::F16, 3 * 32 * 2 * n_head * hd_k), std::byte{0x25});
        std::vector<int32_t> slots;
        for (int32_t i = 0; i < 96; ++i) slots.push_back(i);
        random_.shuffle(slots);
        slots.resize(static_cast<size_t>(n));
        ShapeClass shape;
        shape.max_tokens = n;
        OpCase c(random_, shape);
        c.set_cache(layer, bytes);
        c.set_input(Input::slots, slots);
        c.builder.set_layer(0);
        const TensorId first = c.activation(n_head * hd_k), second = c.activation(n_head * hd_k);
        c.builder.kv_write(c.builder.join(first, second), c.activation(n_head * hd_v));
        c.finish(first);
        ASSERT_EQ(c.why_unsupported(*device_), "");
        const CacheBytes got = c.run(*device_, {n, 1}).front().cache, wanted = c.reference({n, 1}).cache;
        EXPECT_TRUE(got == wanted);
        EXPECT_FALSE(got == bytes);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_test
