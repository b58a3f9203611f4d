// Row-wise GPU ops against the scalar reference.
#include <bit>
#include <cmath>

#include "gguf/quants.h"
#include "gpu/harness.h"

namespace tandem::gpu_test {
namespace {

class GpuRows : public GpuTest {};

ShapeClass tokens(int64_t n) {
  ShapeClass shape;
  shape.max_tokens = n;
  shape.max_outputs = n;
  return shape;
}

std::vector<float> shifted(std::vector<float> x, float by) {
  for (float& v : x) v += by;
  return x;
}

TEST_F(GpuRows, EmbedReadsEveryDtype) {
  for (DType dtype : quantizable_dtypes()) {
    SCOPED_TRACE(dtype_name(dtype));
    for (int64_t n_cols : {256, 768, 1280}) {
      const int64_t n = 5, n_vocab = 37;
      OpCase c(random_, tokens(n));
      std::vector<int32_t> ids(n);
      for (int32_t& id : ids) id = static_cast<int32_t>(random_.below(n_vocab));
      ids[0] = static_cast<int32_t>(n_vocab - 1);
      c.set_input(Input::ids, ids);
      c.finish(c.builder.embed(c.matrix(dtype, n_vocab, n_cols), 1.5f));
      c.expect_match(*device_, {n, 1}, 1e-6);
    }
  }
}

TEST_F(GpuRows, NormOfRowsAndHeads) {
  struct Size {
    int64_t group, n_groups, n;
  };
  const Size sizes[] = {{1, 1, 1},    {3, 5, 2},    {32, 4, 3},    {64, 32, 7},  {100, 3, 2},  {127, 1, 1},
                        {128, 8, 33}, {512, 2, 3},  {513, 1, 2},   {576, 1, 5},  {1000, 1, 3}, {2048, 1, 9},
                        {4096, 1, 1}, {8192, 2, 2}, {11007, 1, 2}, {16384, 1, 1}};
  for (const Size& size : sizes) {
    for (NormKind kind : {NormKind::rms, NormKind::layer}) {
      for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
        for (bool bias : {false, true}) {
          SCOPED_TRACE(std::to_string(size.group) + (kind == NormKind::rms ? " rms " : " layer ") +
                       std::string(dtype_name(dtype)) + (bias ? " bias" : ""));
          OpCase c(random_, tokens(size.n));
          const int64_t n_cols = size.group * size.n_groups;
          const TensorId x = c.activation(n_cols, shifted(random_.normals(size.n * n_cols), 1.5f));
          const Weight* w = c.vector(shifted(random_.normals(size.group, 0.1f), 1.0f), dtype);
          const Weight* b = bias ? c.vector(random_.normals(size.group), dtype) : nullptr;
          c.finish(c.builder.norm(x, {kind, 1e-5f, size.group}, w, b));
          c.expect_match(*device_, {size.n, 1}, kRow);
        }
      }
    }
  }
}

void check_rope(Random& random, Device& device, const RopeParams& op, bool factors, int64_t n) {
  OpCase c(random, tokens(n));
  std::vector<int32_t> positions(static_cast<size_t>(n));
  for (int32_t& p : positions) p = static_cast<int32_t>(random.below(1 << 20));
  positions[0] = static_cast<int32_t>(random.below(3));
  c.set_input(Input::positions, positions);
  std::vector<float> factor(static_cast<size_t>(op.n_rot / 2));
  for (float& f : factor) f = 1.0f + 7.0f * std::fabs(random.normal());
  c.finish(c.builder.rope(c.activation(op.n_head * op.head_dim), op, factors ? c.vector(factor) : nullptr));
  c.expect_match(device, {n, 1}, 1e-6);
}

TEST_F(GpuRows, RopeOfBothStylesAtAnyPosition) {
  struct Size {
    int64_t n_head, head_dim, n_rot, n;
  };
  const Size sizes[] = {{1, 2, 2, 1},      {3, 8, 8, 2},     {8, 64, 64, 5},   {9, 80, 20, 3},
                        {32, 128, 128, 4}, {40, 96, 64, 17}, {2, 256, 256, 1}, {1, 512, 512, 2}};
  for (const Size& size : sizes) {
    for (RopeStyle style : {RopeStyle::pair, RopeStyle::half}) {
      for (bool factors : {false, true}) {
        SCOPED_TRACE(std::to_string(size.n_head) + " heads of " + std::to_string(size.head_dim) +
                     (style == RopeStyle::pair ? " pair" : " half") + (factors ? " factors" : ""));
        RopeParams op{style, size.n_head, size.head_dim, size.n_rot};
        check_rope(random_, *device_, op, factors, size.n);
        op.first = size.head_dim - size.n_rot;  // 0 where all are rotated
        if (size.n_rot == size.head_dim) {
          op.temperature_scale = 0.1f;
          op.temperature_length = 8192;
        }
        op.freq_base = 500000.0f;
        op.freq_scale = 0.25f;
        op.ext_factor = 1.0f;
        op.n_ctx_orig = 4096;
        check_rope(random_, *device_, op, factors, size.n);
      }
    }
  }
}

// A layer of cache for some tokens, filled with a pattern, and KV slots for them in any order.
struct CacheSize {
  int64_t n_head_kv, head_dim_k, head_dim_v, block_size, n;
};
void give_cache(Random& random, OpCase& c, const CacheSize& size, DType k, DType v) {
  KvLayer layer{nullptr,
                nullptr,
                k,
                v,
                size.n_head_kv,
                size.head_dim_k,
                size.head_dim_v,
                size.block_size,
                2 + size.n / size.block_size};
  const auto n_slots = static_cast<size_t>(layer.n_blocks * size.block_size);
  const auto rows = n_slots * static_cast<size_t>(size.n_head_kv);
  c.set_cache(layer, {std::vector<std::byte>(rows * row_bytes(k, size.head_dim_k), std::byte{0x25}),
                      std::vector<std::byte>(rows * row_bytes(v, size.head_dim_v), std::byte{0x25})});
  std::vector<int32_t> slots(n_slots);
  for (size_t i = 0; i < n_slots; ++i) slots[i] = static_cast<int32_t>(i);
  random.shuffle(slots);
  slots.resize(static_cast<size_t>(size.n));
  c.set_input(Input::slots, slots);
  c.builder.set_layer(0);
}

// Compares every byte of the cache: the written slots, and that no other byte changed.
TEST_F(GpuRows, KvWriteStoresTheFormatsBytes) {
  constexpr DType kDtypes[] = {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0};
  for (const CacheSize& size : {CacheSize{1, 32, 64, 1, 1},
                                {2, 64, 64, 16, 7},
                                {8, 128, 128, 32, 1},
                                {3, 192, 128, 32, 33},
                                {1, 576, 0, 32, 9},
                                {5, 96, 32, 8, 20}}) {
    for (DType k : kDtypes) {
      for (DType v : {DType::F16, DType::Q8_0, k}) {
        SCOPED_TRACE(std::string(dtype_name(k)) + " " + std::string(dtype_name(v)) + " " +
                     std::to_string(size.head_dim_k));
        OpCase c(random_, tokens(size.n));
        give_cache(random_, c, size, k, v);
        std::vector<float> keys = random_.normals(size.n * size.n_head_kv * size.head_dim_k, 3.0f);
        for (size_t i = 0; i < 32; ++i) keys[i] = 0.0f;
        keys[keys.size() - 1] = -keys[keys.size() - 2];
        const TensorId tk = c.activation(size.n_head_kv * size.head_dim_k, keys);
        const bool has_values = size.head_dim_v > 0;
        c.builder.kv_write(tk, has_values ? c.activation(size.n_head_kv * size.head_dim_v) : kNoTensor);
        c.finish(tk);
        ASSERT_EQ(c.why_unsupported(*device_), "");
        const StepShape shape{size.n, 1};
        EXPECT_TRUE(c.run(*device_, shape).front().cache == c.reference(shape).cache);
      }
    }
  }
}

TEST_F(GpuRows, HadamardRotatesRuns) {
  struct Size {
    int64_t n_cols, width, n;
  };
  for (const Size& size : {Size{16, 16, 1},
                           {80, 16, 5},
                           {3 * 96, 32, 7},
                           {64, 64, 1},
                           {8 * 128, 128, 33},
                           {2 * 256, 256, 3},
                           {3 * 512, 512, 2}}) {
    OpCase c(random_, tokens(size.n));
    const TensorId x = c.activation(size.n_cols);
    c.finish(c.builder.hadamard(x, size.width));
    ASSERT_EQ(c.why_unsupported(*device_), "");
    const StepShape shape{size.n, 1};
    EXPECT_EQ(c.run(*device_, shape).front().values, c.reference(shape).values)
        << size.n_cols << " " << size.width;
  }
}

// Rotations followed by the cache write are one launch, with the same bits as the separate ops in an order
// that keeps them apart.
TEST_F(GpuRows, RopeOfQueriesAndKeysWithTheirCache) {
  struct Heads {
    int64_t n_head, n_head_kv, head_dim, n_rot, head_dim_v, n;
  };
  enum class Rotated { none, keys, values, both };
  struct Case : Heads {
    Rotated rotated;
    enum class Norms { none, of_all, of_each } norms = Norms::none;  // of heads, by one weight or one of each
  };
  std::vector<Case> cases;
  for (const Heads& h : {Heads{4, 2, 32, 32, 32, 1},
                         {32, 8, 128, 128, 128, 1},
                         {9, 3, 64, 64, 64, 5},
                         {28, 20, 96, 64, 64, 3},
                         {1, 1, 256, 256, 256, 40}}) {
    cases.push_back({h, Rotated::none});
    cases.push_back({h, Rotated::both});
  }
  cases.push_back({{9, 3, 64, 64, 32, 5}, Rotated::keys});
  cases.push_back({{32, 8, 128, 128, 128, 1}, Rotated::none, Case::Norms::of_all});
  cases.push_back({{9, 3, 64, 64, 64, 5}, Rotated::both, Case::Norms::of_each});
  cases.push_back({{28, 20, 96, 64, 64, 3}, Rotated::none, Case::Norms::of_all});
  cases.push_back({{1, 1, 256, 256, 256, 40}, Rotated::values, Case::Norms::of_all});
  cases.push_back({{9, 3, 64, 64, 32, 5}, Rotated::values});
  for (const Case& h : cases) {
    const bool keys_too = h.rotated == Rotated::keys || h.rotated == Rotated::both;
    const bool values_too = h.rotated == Rotated::values || h.rotated == Rotated::both;
    const int64_t k_width = keys_too ? hadamard_width(h.head_dim) : 0;
    const int64_t v_width = values_too ? hadamard_width(h.head_dim_v) : 0;
    for (DType dtype : {DType::F32, DType::F16, DType::Q8_0, DType::Q4_0}) {
      for (RopeStyle style : {RopeStyle::pair, RopeStyle::half}) {
        SCOPED_TRACE(std::to_string(h.n_head) + "/" + std::to_string(h.n_head_kv) + " heads of " +
                     std::to_string(h.head_dim) + " " + std::string(dtype_name(dtype)) +
                     (style == RopeStyle::pair ? " pair" : " half") + (keys_too ? " keys" : "") +
                     (values_too ? " values rotated" : "") + (h.norms != Case::Norms::none ? " normalized" : ""));
        OpCase weights(random_, tokens(1));
        const auto norm_weight = [&](int64_t n_heads) {
          if (h.norms == Case::Norms::none) return static_cast<const Weight*>(nullptr);
          return weights.matrix(DType::F32, h.norms == Case::Norms::of_each ? n_heads : 1, h.head_dim, 1, 1.0f);
        };
        const Weight *q_weight = norm_weight(h.n_head), *k_weight = norm_weight(h.n_head_kv);
        const std::vector<float> q = random_.normals(h.n * h.n_head * h.head_dim),
                                 k = random_.normals(h.n * h.n_head_kv * h.head_dim),
                                 v = random_.normals(h.n * h.n_head_kv * h.head_dim_v);
        std::vector<int32_t> positions(static_cast<size_t>(h.n));
        for (int32_t& p : positions) p = static_cast<int32_t>(random_.below(100000));
        const auto build = [&](OpCase& c, bool together) {
          give_cache(random_, c, {h.n_head_kv, h.head_dim, h.head_dim_v, 16, h.n}, dtype, dtype);
          c.set_input(Input::positions, positions);
          const TensorId tq = c.activation(h.n_head * h.head_dim, q),
                         tk = c.activation(h.n_head_kv * h.head_dim, k),
                         tv = c.activation(h.n_head_kv * h.head_dim_v, v);
          const RopeParams q_op{style, h.n_head, h.head_dim, h.n_rot},
              k_op{style, h.n_head_kv, h.head_dim, h.n_rot};
          const auto norm = [&](TensorId x, const Weight* weight) {
            return weight ? c.builder.norm(x, {NormKind::rms, 1e-5f, h.head_dim}, weight) : x;
          };
          const auto turn = [&] { return c.builder.hadamard(c.builder.rope(norm(tq, q_weight), q_op), k_width); };
          TensorId turned = together ? turn() : kNoTensor;
          const TensorId keys = c.builder.hadamard(c.builder.rope(norm(tk, k_weight), k_op), k_width);
          c.builder.kv_write(keys, c.builder.hadamard(tv, v_width));
          if (!together) turned = turn();
          c.finish(turned);
        };
        OpCase together(random_, tokens(h.n)), apart(random_, tokens(h.n));
        build(together, true);
        build(apart, false);
        apart.set_input(Input::slots, together.input(Input::slots));
        const StepShape shape{h.n, 1};
        ASSERT_EQ(together.why_unsupported(*device_), "");
        const OpResult one = together.run(*device_, shape).front(),
                       three = apart.run(*device_, shape).front();
        EXPECT_EQ(one.values, three.values);
        EXPECT_TRUE(one.cache == three.cache);
        const OpResult expected = together.reference(shape);
        EXPECT_LT(relative_error(one.values, expected.values), 1e-6);
        EXPECT_TRUE(one.cache.v == expected.cache.v);
        const std::vector<float> keys = floats_of(dtype, one.cache.k),
                                 wanted = floats_of(dtype, expected.cache.k);
        if (dtype == DType::F32) {
          EXPECT_LT(relative_error(keys, wanted), 1e-6);
        } else {  // a cosine that differs in its last bit may round a key to the neighbouring level, now and
                  // then, and a block's f16 scale likewise, which moves all its keys by 2^-10 of themselves
          const float by_scale = dtype_info(dtype).block_elements > 1 ? 0x1.02p-10f : 0.0f;
          size_t n_different = 0;
          for (size_t i = 0; i < keys.size(); ++i)
            n_different += std::abs(keys[i] - wanted[i]) > by_scale * std::abs(wanted[i]);
          EXPECT_LE(n_different, 2 + keys.size() / 500);
        }
      }
    }
  }
}

TEST_F(GpuRows, MoeRouteChoosesTheSameExperts) {
  struct Size {
    int64_t n_expert, n_used, n_group, n_group_used, n;
  };
  for (const Size& size : {Size{4, 2, 1, 1, 1},
                           {8, 2, 1, 1, 5},
                           {60, 4, 1, 1, 3},
                           {64, 6, 8, 3, 9},
                           {128, 8, 1, 1, 4},
                           {256, 8, 8, 4, 17},
                           {384, 8, 1, 1, 2},
                           {5, 5, 1, 1, 2},
                           {40, 40, 1, 1, 2}}) {
    for (MoeScoring scoring : {MoeScoring::softmax, MoeScoring::sigmoid}) {
      for (bool bias : {false, true}) {
        SCOPED_TRACE(std::to_string(size.n_expert) + " experts" +
                     (scoring == MoeScoring::softmax ? " softmax" : " sigmoid") + (bias ? " bias" : ""));
        OpCase c(random_, tokens(size.n));
        MoeRouteParams op;
        op.n_expert = size.n_expert;
        op.n_used = size.n_used;
        op.scoring = scoring;
        op.normalize = bias;
        op.scale = 2.5f;
        op.n_group = size.n_group;
        op.n_group_used = size.n_group_used;
        op.group_rank = bias ? MoeGroupRank::two_best : MoeGroupRank::best;
        std::vector<float> logits = random_.normals(size.n * size.n_expert, 2.0f);
        logits[1] = logits[0];  // a tie: the first one wins
        const TensorId x = c.activation(size.n_expert, logits);
        c.finish(c.builder.moe_route(x, op, bias ? c.vector(random_.normals(size.n_expert, 0.2f)) : nullptr,
                                     size.n % 2 == 1 ? c.vector(random_.normals(size.n_expert)) : nullptr));
        if (scoring == MoeScoring::sigmoid && size.n_expert > 4) {  // ids of some of the experts
          for (Node& node : c.graph_to_change().nodes) {
            auto* route = std::get_if<MoeRouteOp>(&node.op);
            if (!route) continue;
            route->first = size.n_expert / 4;
            route->n_here = size.n_expert / 2;
          }
        }
        ASSERT_EQ(c.why_unsupported(*device_), "");
        const StepShape shape{size.n, 1};
        const std::vector<float> out = c.run(*device_, shape).front().values,
                                 expected = c.reference(shape).values;
        for (int64_t t = 0; t < size.n; ++t) {
          for (int64_t i = 0; i < size.n_used; ++i) {
            const auto at = static_cast<size_t>(t * 2 * size.n_used + i),
                       weight = at + static_cast<size_t>(size.n_used);
            EXPECT_EQ(std::bit_cast<int32_t>(out[at]), std::bit_cast<int32_t>(expected[at])) << "token " << t;
            EXPECT_NEAR(out[weight], expected[weight], 1e-5 * std::fabs(expected[weight]) + 1e-7);
          }
        }
      }
    }
  }
}

TEST_F(GpuRows, AddScaleSoftcapAndGather) {
  for (int64_t n_cols : {1, 3, 4, 31, 257, 1000, 4096}) {
    for (int64_t n : {1, 2, 3, 50}) {
      SCOPED_TRACE(std::to_string(n) + " x " + std::to_string(n_cols));
      {
        OpCase c(random_, tokens(n));
        c.finish(c.builder.add(c.activation(n_cols), c.activation(n_cols)));
        c.expect_match(*device_, {n, 1}, 1e-7);
      }
      for (bool gated : {false, true}) {
        OpCase c(random_, tokens(n));
        const TensorId a = c.activation(n_cols), b = c.activation(n_cols);
        c.finish(c.builder.add(a, b, 0.22f, gated ? c.activation(1, 3.0f) : kNoTensor));
        c.expect_match(*device_, {n, 1}, 1e-6);
      }
      {
        OpCase c(random_, tokens(n));
        c.finish(c.builder.scale(c.activation(n_cols), -0.3f));
        c.expect_match(*device_, {n, 1}, 1e-7);
      }
      {
        OpCase c(random_, tokens(n));
        c.finish(c.builder.softcap(c.activation(n_cols, 40.0f), 30.0f));
        c.expect_match(*device_, {n, 1}, kRow);
      }
      OpCase c(random_, tokens(n));
      std::vector<int32_t> outputs(static_cast<size_t>(n));
      for (int32_t& o : outputs) o = static_cast<int32_t>(random_.below(n));
      c.set_input(Input::outputs, outputs);
      c.finish(c.builder.gather_outputs(c.activation(n_cols)));
      c.expect_match(*device_, {n, (n + 1) / 2}, 1e-7);
    }
  }
}

TEST_F(GpuRows, JoinConcatenatesColumns) {
  struct Size {
    int64_t left, right, n;
  };
  for (const Size& size :
       {Size{1, 1, 1}, {7, 300, 2}, {256, 256, 1}, {3000, 1096, 5}, {4095, 1, 3}, {64, 8192, 50}}) {
    for (bool residual : {false, true}) {
      SCOPED_TRACE(std::to_string(size.n) + " x " + std::to_string(size.left) + " + " +
                   std::to_string(size.right));
      OpCase c(random_, tokens(size.n));
      const TensorId a = c.activation(size.left), b = c.activation(size.right);
      c.finish(c.builder.join(a, b, residual ? c.activation(size.left + size.right) : kNoTensor));
      c.expect_match(*device_, {size.n, 1}, 1e-7);
    }
  }
}

// Logarithms of ordinary sums, of sums that dwarf the other's, and of an empty part or two.
TEST_F(GpuRows, MergeWeightsThePartsByTheirSums) {
  struct Size {
    int64_t n_head, head_dim, n;
  };
  for (const Size& size : {Size{1, 1, 1}, {32, 128, 1}, {5, 80, 9}, {3, 20, 33}, {16, 512, 4}}) {
    SCOPED_TRACE(std::to_string(size.n) + " x " + std::to_string(size.n_head) + " heads of " +
                 std::to_string(size.head_dim));
    const int64_t n_sums = size.n_head * size.head_dim, n_cols = n_sums + size.n_head;
    std::vector<float> parts[2];
    for (std::vector<float>& part : parts) {
      part = random_.normals(size.n * n_cols);
      for (int64_t row = 0; row < size.n; ++row) {
        for (int64_t h = 0; h < size.n_head; ++h) {
          float* of_head = part.data() + row * n_cols + h * size.head_dim;
          float& logarithm = part[static_cast<size_t>(row * n_cols + n_sums + h)];
          logarithm = random_.normal(random_.below(2) == 0 ? 3.0f : 200.0f);
          if (random_.below(4) != 0) continue;
          logarithm = -INFINITY;
          std::fill(of_head, of_head + size.head_dim, 0.0f);
        }
      }
    }
    OpCase c(random_, tokens(size.n));
    const TensorId a = c.activation(n_cols, parts[0]), b = c.activation(n_cols, parts[1]);
    c.finish(c.builder.merge(a, b, {size.n_head, size.head_dim}));
    c.expect_match(*device_, {size.n, 1}, kRow);
    const OpResult out = c.run(*device_, {size.n, 1}).front();
    for (float x : out.values) ASSERT_TRUE(std::isfinite(x));
  }
}

// A step may have no outputs: no launch, no failure.
TEST_F(GpuRows, ZeroOutputsAreNoError) {
  OpCase c(random_, tokens(3));
  const TensorId rows = c.builder.gather_outputs(c.activation(64));
  const TensorId normed = c.builder.norm(rows, {NormKind::rms, 1e-5f, 64}, c.vector(random_.normals(64)));
  c.finish(c.builder.softcap(c.builder.scale(c.builder.add(normed, rows), 2.0f), 5.0f));
  ASSERT_EQ(c.why_unsupported(*device_), "");
  EXPECT_TRUE(c.run(*device_, {3, 0}).front().values.empty());
  c.expect_match(*device_, {3, 2}, kRow);
}

}  // namespace
}  // namespace tandem::gpu_test
