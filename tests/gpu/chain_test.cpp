// Chains (ggml-cuda/chain.h): the products of one token in one launch.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>

#include "gpu/attention_scene.h"

namespace tandem::gpu_test {
namespace {

// The parameter: what TANDEM_CUDA_CHAINS asks for.
class GpuChain : public GpuTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    setenv("TANDEM_CUDA_CHAINS", "0", 1);
    GpuTest::SetUp();
    plain_ = std::move(device_);
    setenv("TANDEM_CUDA_CHAINS", GetParam(), 1);
    if (!IsSkipped()) device_ = make_other();
  }
  void TearDown() override {
    unsetenv("TANDEM_CUDA_CHAINS");
    GpuTest::TearDown();
  }

  static std::unique_ptr<Device> make_other() {
    std::string why;
    return make_device_under_test(why);
  }

  static ShapeClass one_token() {
    ShapeClass shape;
    shape.max_tokens = 4;
    shape.max_outputs = 1;
    return shape;
  }

  struct Layer {
    DType dtype = DType::Q4_K;
    DType down = DType::Q4_K, v = DType::Q4_K;
    int64_t n_embd = 512, n_ff = 1024, n_kv = 256;
    NormKind norm = NormKind::rms;
    bool bias = false;
    Activation activation = Activation::silu;
  };

  // From the attention's result to the next layer's queries, keys and values; the sum of all of these.
  TensorId layer(OpCase& c, const Layer& l) {
    const auto bias = [&](int64_t n) { return l.bias ? c.vector(random_.normals(n)) : nullptr; };
    const auto weight = [&](int64_t n) { return c.vector(random_.normals(n, 0.3f), l.bias ? DType::F16 : DType::F32); };
    const auto matrix = [&](DType dtype, int64_t m, int64_t k) { return c.matrix(dtype, m, k, 1, 1.0f / std::sqrt(static_cast<float>(k))); };
    GraphBuilder& b = c.builder;
    const TensorId attention = c.activation(l.n_embd), residual = c.activation(l.n_embd);
    const TensorId h = b.linear(attention, matrix(l.dtype, l.n_embd, l.n_embd), bias(l.n_embd), residual);
    const TensorId normed = b.norm(h, {l.norm, 1e-5f, l.n_embd}, weight(l.n_embd), bias(l.n_embd));
    const TensorId ff = b.glu(normed, l.activation, matrix(l.dtype, l.n_ff, l.n_embd), matrix(l.dtype, l.n_ff, l.n_embd),
                              bias(l.n_ff), bias(l.n_ff));
    const TensorId out = b.linear(ff, matrix(l.down, l.n_embd, l.n_ff), bias(l.n_embd), h);
    const TensorId next = b.norm(out, {l.norm, 1e-5f, l.n_embd}, weight(l.n_embd), bias(l.n_embd));
    const TensorId q = b.linear(next, matrix(l.dtype, l.n_kv, l.n_embd), bias(l.n_kv));
    const TensorId k = b.linear(next, matrix(l.dtype, l.n_kv, l.n_embd), bias(l.n_kv));
    const TensorId v = b.linear(next, matrix(l.v, l.n_kv, l.n_embd), bias(l.n_kv));
    return b.add(b.add(q, k), v);
  }

  // On the CPU, and on this device without chains, which rounds what it multiplies in the same way: the sums alone are in another
  // order, which moves a byte of an input now and then. Every run of a chain gives the same.
  void expect_match(const OpCase& c, const std::vector<int64_t>& n_tokens = {1, 3}) {
    for (const int64_t n : n_tokens) c.expect_match(*device_, {n, 1}, kChained, OpCase::Rounding::allowed);
    const std::vector<OpResult> runs = c.run(*device_, {1, 1}, 3);  // launched, then recorded and replayed
    for (const OpResult& run : runs) EXPECT_EQ(run.values, runs[0].values);
    EXPECT_LT(relative_error(runs[0].values, c.run(*plain_, {1, 1})[0].values), 5e-3);
  }
  void expect_layer(const Layer& l) {
    SCOPED_TRACE(std::string(dtype_name(l.dtype)) + " " + std::string(dtype_name(l.down)) + " " + std::to_string(l.n_embd) + " " +
                 std::to_string(l.n_ff) + " " + std::to_string(l.n_kv) + (l.bias ? " bias" : ""));
    OpCase c(random_, one_token());
    c.finish(layer(c, l));
    expect_match(c);
  }

  static constexpr double kChained = 2e-2;  // inputs of five products rounded, one after the other
  std::unique_ptr<Device> plain_;
};

TEST_P(GpuChain, LayersOfEveryDtype) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::F32,
                            DType::Q3_K, DType::IQ4_NL}) {
    Layer l;
    if (on_short_list()) l.n_ff = 512;
    l.dtype = l.down = l.v = dtype;
    expect_layer(l);
  }
}

TEST_P(GpuChain, MixturesOfDtypes) {
  struct Mixture {
    DType most, down, v;
  };
  for (const Mixture& m : {Mixture{DType::Q4_K, DType::Q6_K, DType::Q6_K}, {DType::Q4_K, DType::Q4_K, DType::Q6_K},
                           {DType::Q5_K, DType::Q6_K, DType::Q5_K}, {DType::Q4_K, DType::Q5_K, DType::Q6_K},  // no kernel has all three
                           {DType::Q4_0, DType::Q8_0, DType::Q4_0}, {DType::F16, DType::Q4_K, DType::F16}}) {
    Layer l;
    l.dtype = m.most, l.down = m.down, l.v = m.v;
    if (on_short_list()) l.n_ff = 512;
    expect_layer(l);
  }
}

TEST_P(GpuChain, AwkwardSizes) {
  struct Size {
    int64_t n_embd, n_ff, n_kv;
  };
  const std::vector<Size> sizes{{256, 256, 1}, {1536, 512, 7}, {768, 1280, 33}, {512, 2560, 131}, {256, 14336, 5}};
  size_t i = 0;
  for (const DType dtype : {DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::F16, DType::Q5_K}) {
    for (size_t j = 0; j < sizes.size(); ++j) {
      if (on_short_list() && j != i % sizes.size()) continue;  // each size once
      Layer l;
      l.dtype = l.down = l.v = dtype;
      l.n_embd = sizes[j].n_embd, l.n_ff = sizes[j].n_ff, l.n_kv = sizes[j].n_kv;
      expect_layer(l);
    }
    ++i;
  }
}

TEST_P(GpuChain, RandomSizes) {
  for (int i = 0; i < (on_short_list() ? 4 : 40); ++i) {
    Layer l;
    l.dtype = l.down = l.v = std::vector{DType::Q4_K, DType::Q4_0, DType::BF16, DType::Q5_K}[random_.below(4)];
    const int64_t unit = l.dtype == DType::BF16 ? 8 : 256;
    l.n_embd = unit * static_cast<int64_t>(1 + random_.below((on_short_list() ? 800 : 5000) / static_cast<uint64_t>(unit)));
    l.n_ff = unit * static_cast<int64_t>(1 + random_.below((on_short_list() ? 1500 : 15000) / static_cast<uint64_t>(unit)));
    l.n_kv = static_cast<int64_t>(1 + random_.below(100));
    l.bias = i % 2;
    expect_layer(l);
  }
}

TEST_P(GpuChain, BiasesNormsAndActivations) {
  for (const DType dtype : some_of<DType>({DType::Q4_K, DType::F16}, 2)) {
    for (const Activation activation : {Activation::silu, Activation::gelu_tanh, Activation::relu2, Activation::swiglu_oai}) {
      Layer l;
      l.dtype = l.down = l.v = dtype;
      l.bias = true;
      l.norm = activation == Activation::silu ? NormKind::rms : NormKind::layer;
      l.activation = activation;
      if (on_short_list()) l.n_embd = 256, l.n_ff = 512;
      expect_layer(l);
    }
  }
}

// Without residuals: what a norm reads is free when its product is stored, and may be where that goes.
TEST_P(GpuChain, ResultsInThePlaceOfWhatANormHasRead) {
  OpCase c(random_, one_token());
  TensorId x = c.activation(512);
  for (int i = 0; i < 8; ++i) {
    x = c.builder.linear(c.builder.norm(x, {NormKind::rms, 1e-5f, 512}, c.vector(std::vector<float>(512, 1.0f))), c.matrix(DType::Q8_0, 512, 512));
  }
  c.finish(x);
  expect_match(c);
}

// What a norm makes is read behind the chain too: as floats by an op without products, as bytes by a product that cannot be in it.
TEST_P(GpuChain, OpsBehindAChainReadWhatItMakes) {
  for (const DType dtype : {DType::Q4_K, DType::Q8_0}) {
    OpCase c(random_, one_token());
    GraphBuilder& b = c.builder;
    const TensorId x = c.activation(512);
    const TensorId h = b.linear(x, c.matrix(dtype, 512, 512), nullptr, x);
    const TensorId normed = b.norm(h, {NormKind::rms, 1e-5f, 512}, c.vector(std::vector<float>(512, 1.0f)));
    const TensorId y = b.linear(normed, c.matrix(dtype, 512, 512));
    const TensorId other = b.linear(normed, c.matrix(dtype == DType::Q4_K ? DType::Q3_K : DType::IQ4_NL, 512, 512));
    c.finish(b.add(b.add(y, normed), other));
    expect_match(c);
  }
}

// Every block stores a part of what the norm makes, and adds other parts of it.
TEST_P(GpuChain, WhatANormMakesIsAResidual) {
  const int64_t n = 2048;
  OpCase c(random_, one_token());
  GraphBuilder& b = c.builder;
  const TensorId x = c.activation(n);
  const TensorId h = b.linear(x, c.matrix(DType::Q8_0, n, n), nullptr, x);
  const TensorId y = b.norm(h, {NormKind::rms, 1e-5f, n}, c.vector(std::vector<float>(static_cast<size_t>(n), 1.0f)));
  c.finish(b.linear(y, c.matrix(DType::Q8_0, n, n), nullptr, y));
  expect_match(c);
}

// More products than one chain has room for.
TEST_P(GpuChain, LongRunsOfProducts) {
  OpCase c(random_, one_token());
  TensorId x = c.activation(256);
  for (int i = 0; i < 15; ++i) x = c.builder.linear(x, c.matrix(DType::Q8_0, 256, 256), nullptr, i % 3 == 1 ? x : kNoTensor);
  c.finish(x);
  expect_match(c);
}

// From the norm before attention to its output: two chains, and what is between them. The cache has the rows of kernels of their own, and no others.
TEST_P(GpuChain, RotationAndAttention) {
  struct Case {
    int64_t n_head, n_head_kv, head_dim, length;
    int64_t window = 0;
    float softcap = 0.0f;
    bool sinks = false;
    DType cache = DType::F16;
    int64_t n_rot = 0;  // all
    bool bias = false;
    int64_t head_dim_v = 0;  // as of keys
  };
  std::vector<Case> cases{{8, 2, 32, 1},   {4, 4, 64, 40},   {2, 1, 128, 700},        {8, 1, 64, 129},          {6, 2, 128, 65},
                          {8, 2, 64, 333}, {5, 1, 96, 200},  {8, 2, 64, 500, 100},    {4, 2, 64, 90, 0, 10.0f}, {4, 2, 128, 260, 0, 0.0f, true},
                          {4, 2, 64, 100, 0, 0.0f, false, DType::Q8_0}, {4, 2, 256, 70},
                          {4, 2, 64, 90, 0, 0.0f, false, DType::F16, 32}, {8, 2, 128, 33, 0, 0.0f, false, DType::BF16, 0, true},
                          {3, 1, 96, 50, 0, 0.0f, false, DType::F32, 48, true}, {4, 2, 64, 77, 0, 0.0f, false, DType::F16, 0, false, 32}};
  if (!on_short_list()) cases.insert(cases.end(), {{32, 8, 128, 5000}, {32, 8, 128, 16384}, {64, 8, 128, 3000}, {32, 4, 64, 2048}});
  for (const Case& h : cases) {
    for (const DType dtype : {DType::Q4_K, DType::F16}) {
      AttentionCase a;
      const int64_t head_dim_v = h.head_dim_v > 0 ? h.head_dim_v : h.head_dim;
      a.n_head = h.n_head, a.n_head_kv = h.n_head_kv, a.head_dim_k = h.head_dim, a.head_dim_v = head_dim_v;
      a.lengths = {h.length};
      a.window = h.window, a.softcap = h.softcap, a.sinks = h.sinks;
      a.k_dtype = a.v_dtype = h.cache;
      SCOPED_TRACE(a.text() + ' ' + std::string(dtype_name(dtype)));
      ShapeClass shape = a.shape();
      shape.max_outputs = 1;
      OpCase c(random_, shape);
      const AttentionScene scene(random_, a);
      scene.give(c);
      c.set_input(Input::slots, {scene.slot(0, h.length - 1)});
      const int64_t n_embd = 512, n_q = h.n_head * h.head_dim, n_kv = h.n_head_kv * h.head_dim,
                    n_v = h.n_head_kv * head_dim_v, n_y = h.n_head * head_dim_v;
      GraphBuilder& b = c.builder;
      b.set_layer(0);
      const auto matrix = [&](int64_t m, int64_t k) { return c.matrix(dtype, m, k, 1, 1.0f / std::sqrt(static_cast<float>(k))); };
      const TensorId x = c.activation(n_embd);
      const TensorId y = b.norm(x, {NormKind::rms, 1e-5f, n_embd}, c.vector(std::vector<float>(static_cast<size_t>(n_embd), 1.0f)));
      const auto product = [&](int64_t n) { return b.linear(y, matrix(n, n_embd), h.bias ? c.vector(random_.normals(n)) : nullptr); };
      TensorId q = kNoTensor, v = kNoTensor;
      const bool values_first = h.length % 2 == 1;
      if (values_first) v = product(n_v);
      q = product(n_q);
      const TensorId k = product(n_kv);
      if (!values_first) v = product(n_v);
      const int64_t n_rot = h.n_rot > 0 ? h.n_rot : h.head_dim;
      const RopeStyle style = (dtype == DType::F16) == (h.length % 3 != 0) ? RopeStyle::half : RopeStyle::pair;
      const TensorId turned = b.rope(q, {style, h.n_head, h.head_dim, n_rot});
      b.kv_write(b.rope(k, {style, h.n_head_kv, h.head_dim, n_rot}), v);
      const Weight* sinks = h.sinks ? c.vector(random_.normals(h.n_head)) : nullptr;
      const TensorId attended = b.attention(turned, a.op(), sinks);
      c.finish(n_y % 256 == 0 || dtype == DType::F16 ? b.linear(attended, matrix(n_embd, n_y), nullptr, x) : attended);
      expect_match(c, {1});
      const OpResult chained = c.run(*device_, {1, 1})[0], apart = c.run(*plain_, {1, 1})[0];
      for (const bool values : {false, true}) {
        const std::vector<float> rows = floats_of(h.cache, values ? chained.cache.v : chained.cache.k),
                                 wanted = floats_of(h.cache, values ? apart.cache.v : apart.cache.k);
        size_t n_written = 0;
        for (size_t i = 0; i < rows.size(); ++i) {
          ASSERT_EQ(std::isnan(rows[i]), std::isnan(wanted[i])) << i;
          if (std::isnan(rows[i])) continue;
          n_written += rows[i] != wanted[i];
          ASSERT_NEAR(rows[i], wanted[i], 0.05f) << i << (values ? " of values" : " of keys");
        }
        EXPECT_LE(n_written, static_cast<size_t>(values ? n_v : n_kv));  // of one token, a bit off at most
      }
    }
  }
}

// A stage has a fourth product beside queries, keys and values: they are rotated behind the chain.
TEST_P(GpuChain, RotationBesideAnotherProduct) {
  AttentionCase a;
  a.lengths = {33};
  ShapeClass shape = a.shape();
  shape.max_outputs = 1;
  OpCase c(random_, shape);
  const AttentionScene scene(random_, a);
  scene.give(c);
  c.set_input(Input::slots, {scene.slot(0, 32)});
  GraphBuilder& b = c.builder;
  b.set_layer(0);
  const int64_t n_q = a.n_head * a.head_dim_k, n_kv = a.n_head_kv * a.head_dim_k;
  const TensorId x = c.activation(512);
  const auto product = [&](int64_t n) { return b.linear(x, c.matrix(DType::Q4_K, n, 512)); };
  const TensorId q = product(n_q), k = product(n_kv), v = product(n_kv), gate = product(n_q);
  const TensorId turned = b.rope(q, {RopeStyle::pair, a.n_head, a.head_dim_k, a.head_dim_k});
  b.kv_write(b.rope(k, {RopeStyle::pair, a.n_head_kv, a.head_dim_k, a.head_dim_k}), v);
  c.finish(b.add(b.attention(turned, a.op()), gate));
  expect_match(c, {1});
}

// All blocks of a chain must run at once: those of two sessions must not wait for each other, each with a part of the GPU.
TEST_P(GpuChain, SessionsAtOnce) {
  const std::unique_ptr<Device> other = make_other();
  Layer l;
  if (on_short_list()) l.n_ff = 512;
  OpCase first(random_, one_token()), second(random_, one_token());
  first.finish(layer(first, l));
  second.finish(layer(second, l));
  const int n_runs = on_short_list() ? 5 : 1000;
  std::vector<OpResult> results[2];
  std::thread beside([&] { results[1] = second.run(*other, {1, 1}, n_runs); });
  results[0] = first.run(*device_, {1, 1}, n_runs);
  beside.join();
  for (const std::vector<OpResult>& of : results) {
    ASSERT_EQ(of.size(), static_cast<size_t>(n_runs));
    for (const OpResult& run : of) ASSERT_EQ(run.values, of[0].values);
  }
}

// A row that is not finite stays so, and the next step is a new one.
TEST_P(GpuChain, ValuesThatAreNotFinite) {
  for (const DType dtype : {DType::Q4_K, DType::F16}) {
    OpCase c(random_, one_token());
    std::vector<float> values = random_.normals(4 * 512);
    values[77] = std::numeric_limits<float>::quiet_NaN();
    const TensorId x = c.activation(512, values);
    c.finish(c.builder.linear(c.builder.norm(x, {NormKind::rms, 1e-5f, 512}, c.vector(std::vector<float>(512, 1.0f))), c.matrix(dtype, 64, 512)));
    const std::vector<float> result = c.run(*device_, {1, 1})[0].values;
    EXPECT_EQ(result.size(), 64u);
    for (const float y : result) EXPECT_TRUE(std::isnan(y));
  }
}

INSTANTIATE_TEST_SUITE_P(Products, GpuChain, testing::Values("pairs", "tiles"), [](const auto& chosen) { return std::string(chosen.param); });

}  // namespace
}  // namespace tandem::gpu_test
