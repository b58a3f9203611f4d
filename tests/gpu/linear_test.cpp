// GPU matrix products against the scalar reference: every dtype, one token and many, awkward sizes.
#include <bit>

#include "gpu/harness.h"

namespace tandem::gpu_test {
namespace {

class GpuLinear : public GpuTest {
 protected:
  static ShapeClass tokens(int64_t n) {
    ShapeClass shape;
    shape.max_tokens = n;
    shape.max_outputs = n;
    return shape;
  }
  static double tolerance(DType dtype) { return dtype == DType::F32 ? kF32 : kRounded; }

  // The multiple of the dtype's block next to n.
  static int64_t columns(DType dtype, int64_t n) {
    const int64_t block = dtype_info(dtype).block_elements;
    return std::max(block, n / block * block);
  }

  // One capacity, several steps: an executable serves every step of its shape class.
  void check(const OpCase& c, const std::vector<int64_t>& steps, DType dtype) {
    for (int64_t n : steps) c.expect_match(*device_, {n, 1}, tolerance(dtype), OpCase::Rounding::allowed);
  }
};

TEST_F(GpuLinear, EveryDtypeAndNumberOfTokens) {
  for (DType dtype : quantizable_dtypes()) {
    using Size = std::pair<int64_t, int64_t>;
    for (const auto& [m, k] : some_of<Size>({{1, 32}, {131, 512}, {7, 96}, {64, 256}, {300, 1280}}, 2)) {
      const int64_t n_cols = columns(dtype, k);
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(m) + " x " + std::to_string(n_cols));
      OpCase c(random_, tokens(130));
      c.finish(c.builder.linear(c.activation(n_cols), c.matrix(dtype, m, n_cols)));
      check(c,
            m > 200 ? some_of<int64_t>({1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65, 130}, 11)
                    : some_of<int64_t>({1, 3, 2, 5, 4, 9, 8, 17, 16, 65, 33, 130, 64}, 2),
            dtype);
    }
  }
}

TEST_F(GpuLinear, LongRowsAndManyRows) {
  for (DType dtype : products_dtypes()) {
    SCOPED_TRACE(dtype_name(dtype));
    {
      OpCase c(random_, tokens(9));
      const int64_t k = columns(dtype, 14336);
      c.finish(c.builder.linear(c.activation(k), c.matrix(dtype, 17, k)));
      check(c, some_of<int64_t>({1, 4, 9}, 2), dtype);
    }
    OpCase c(random_, tokens(3));
    const int64_t k = columns(dtype, 256);
    c.finish(c.builder.linear(c.activation(k), c.matrix(dtype, on_short_list() ? 1003 : 5003, k)));
    check(c, some_of<int64_t>({1, 3}, 2), dtype);
  }
}

// Prompts beyond what the integer kernel is for, on GPUs that have faster units: with quantized weights by cuBLAS and by wgmma.h.
class GpuLongPrompts : public GpuLinear, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    GpuLinear::SetUp();
    setenv("TANDEM_CUDA_WGMMA", GetParam() == std::string("wgmma") ? "1" : "0", 1);
  }
  void TearDown() override {
    unsetenv("TANDEM_CUDA_WGMMA");
    GpuLinear::TearDown();
  }
};
INSTANTIATE_TEST_SUITE_P(Products, GpuLongPrompts, testing::Values("cublas", "wgmma"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(GpuLongPrompts, OfEveryDtype) {
  for (DType dtype : quantizable_dtypes()) {
    SCOPED_TRACE(dtype_name(dtype));
    OpCase c(random_, tokens(600));
    const int64_t k = columns(dtype, 512), m = 70;
    const TensorId x = c.activation(k), r = c.activation(m);
    c.finish(c.builder.linear(x, c.matrix(dtype, m, k), c.vector(random_.normals(m)), r));
    check(c, on_short_list() ? std::vector<int64_t>{193} : std::vector<int64_t>{192, 193, 512, 600}, dtype);
  }
}

TEST_P(GpuLongPrompts, ThroughGatedUnits) {
  for (DType dtype : {DType::Q4_K, DType::Q8_0, DType::F16, DType::TQ1_0}) {
    for (const bool bias : {false, true}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (bias ? " bias" : ""));
      OpCase c(random_, tokens(520));
      const int64_t k = columns(dtype, 256), m = 96;
      const Weight* gate = c.matrix(dtype, m, k);
      // Gate and up matrix of different dtypes too, where one of them is quantized and the other is not.
      const Weight* up = c.matrix(bias && dtype == DType::Q4_K ? DType::F16 : dtype, m, k);
      c.finish(c.builder.glu(c.activation(k), Activation::silu, gate, up,
                             bias ? c.vector(random_.normals(m)) : nullptr,
                             bias ? c.vector(random_.normals(m)) : nullptr));
      check(c, some_of<int64_t>({200, 520}, 2), dtype);
    }
  }
}

TEST_P(GpuLongPrompts, OfSeveralProductsOfOneInput) {
  OpCase c(random_, tokens(200));
  const TensorId x = c.activation(512);
  const TensorId q = c.builder.linear(x, c.matrix(DType::Q4_K, 96, 512));
  const TensorId k = c.builder.linear(x, c.matrix(DType::Q6_K, 96, 512), c.vector(random_.normals(96)));
  const TensorId v = c.builder.linear(x, c.matrix(DType::BF16, 96, 512));
  const TensorId f = c.builder.linear(x, c.matrix(DType::F32, 96, 512));
  c.finish(c.builder.add(c.builder.add(q, k), c.builder.add(v, f)));
  check(c, {200}, DType::Q4_K);
}

// What is added to a product in its place.
TEST_P(GpuLongPrompts, AddedToTheResidual) {
  for (DType dtype : {DType::Q4_K, DType::IQ4_NL, DType::F16}) {
    SCOPED_TRACE(dtype_name(dtype));
    OpCase c(random_, tokens(200));
    const TensorId r = c.builder.scale(c.activation(64), 2.0f);
    c.finish(c.builder.linear(c.activation(256), c.matrix(dtype, 64, 256), nullptr, r));
    check(c, {200}, dtype);
  }
}

// Rows, columns and tokens that fill the tiles of wgmma.h and that do not: 128 rows, 128 or 256 tokens, stages of 64 columns.
TEST_P(GpuLongPrompts, OfAwkwardSizes) {
  struct Size {
    int64_t m, k, n;
  };
  for (DType dtype : {DType::Q4_0, DType::Q8_0, DType::Q6_K, DType::IQ4_NL}) {
    for (const Size& size : some_of<Size>({{129, 32, 257},
                                           {1, 96, 256},
                                           {127, 160, 384},
                                           {300, 512, 513},
                                           {128, 64, 193},
                                           {8, 1056, 700},
                                           {1030, 256, 385},
                                           {9, 32, 4300}},
                                          3)) {
      const int64_t k = columns(dtype, size.k);
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(size.m) + " x " + std::to_string(k) +
                   ", " + std::to_string(size.n));
      OpCase c(random_, tokens(size.n));
      c.finish(
          c.builder.linear(c.activation(k), c.matrix(dtype, size.m, k), c.vector(random_.normals(size.m))));
      check(c, {size.n}, dtype);
    }
  }
}

// Norms and gated units give their products 16-bit floats in long prompts, and floats too where something else reads them.
TEST_P(GpuLongPrompts, HandedOn) {
  struct Case {
    DType dtype, down;
    bool read_elsewhere = false;
  };
  for (const Case& l : {Case{DType::Q4_K, DType::Q6_K},
                        {DType::Q4_K, DType::Q4_K, true},
                        {DType::Q8_0, DType::Q8_0},
                        {DType::F16, DType::F16},
                        {DType::F16, DType::F16, true},
                        {DType::BF16, DType::BF16},
                        {DType::F16, DType::Q4_K},
                        {DType::BF16, DType::Q8_0},
                        {DType::Q4_K, DType::F32},
                        {DType::IQ4_NL, DType::IQ4_NL}}) {
    SCOPED_TRACE(std::string(dtype_name(l.dtype)) + ' ' + std::string(dtype_name(l.down)) +
                 (l.read_elsewhere ? " read elsewhere" : ""));
    constexpr int64_t d = 512;
    OpCase c(random_, tokens(300));
    GraphBuilder& b = c.builder;
    const TensorId x = c.activation(d, 3.0f);
    const TensorId normed = b.norm(x, {NormKind::rms, 1e-5f, d}, c.vector(random_.normals(d)));
    const TensorId q = b.linear(normed, c.matrix(l.dtype, d, d)),
                   k = b.linear(normed, c.matrix(l.dtype, d, d));
    const TensorId hidden = b.glu(normed, Activation::silu, c.matrix(l.dtype, d, d), c.matrix(l.dtype, d, d));
    TensorId y = b.add(b.linear(hidden, c.matrix(l.down, d, d), nullptr, q), k);
    if (l.read_elsewhere) y = b.add(b.add(y, hidden), normed);
    c.finish(y);
    for (const int64_t n : some_of<int64_t>({300, 9, 8, 192, 193}, 3))
      c.expect_match(*device_, {n, 1}, 3 * kRounded, OpCase::Rounding::allowed);
  }
}

// Panels of 64 MiB; the software GPU has others (emulated/tests).
TEST_F(GpuLinear, MatricesOfSeveralPanels) {
  if (on_short_list()) GTEST_SKIP() << "takes seconds for a dtype";
  OpCase c(random_, tokens(200));
  c.finish(c.builder.linear(c.activation(4096), c.matrix(DType::Q4_0, 9000, 4096)));
  check(c, {200}, DType::Q4_0);
}

TEST_F(GpuLinear, BiasAndResidual) {
  for (DType dtype : products_dtypes()) {
    for (const bool bias : {false, true}) {
      for (const bool residual : {false, true}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + (bias ? " bias" : "") + (residual ? " residual" : ""));
        OpCase c(random_, tokens(40));
        const int64_t k = columns(dtype, 512), m = 70;
        const TensorId x = c.activation(k), r = residual ? c.activation(m) : kNoTensor;
        c.finish(
            c.builder.linear(x, c.matrix(dtype, m, k), bias ? c.vector(random_.normals(m)) : nullptr, r));
        check(c, {1, 6, 40}, dtype);
      }
    }
  }
}

// Heads with matrices of their own; the last columns of each head stay.
TEST_F(GpuLinear, HeadLinear) {
  struct Size {
    int64_t n_head, m, k, n_kept;
  };
  for (DType dtype : products_dtypes()) {
    for (const Size& size :
         some_of<Size>({{5, 131, 96, 16}, {16, 512, 128, 64}, {3, 20, 256, 0}, {1, 1, 32, 3}}, 2)) {
      const int64_t k = columns(dtype, size.k);
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(size.n_head) + " heads");
      OpCase c(random_, tokens(300));
      c.finish(c.builder.head_linear(c.activation(size.n_head * (k + size.n_kept)),
                                     c.matrix(dtype, size.m, k, size.n_head)));
      check(c, some_of<int64_t>({1, 5, 8, 40, 9, 256, 259, 300}, 3), dtype);
    }
  }
}

// Consecutive products of the same input are one launch.
TEST_F(GpuLinear, GroupsOfOneInput) {
  for (DType dtype : products_dtypes()) {
    SCOPED_TRACE(dtype_name(dtype));
    OpCase c(random_, tokens(21));
    const int64_t k = columns(dtype, 512);
    const TensorId x = c.activation(k);
    const TensorId q = c.builder.linear(x, c.matrix(dtype, 96, k));
    const TensorId g = c.builder.linear(x, c.matrix(DType::Q8_0, 96, k), c.vector(random_.normals(96)));
    const TensorId f = c.builder.linear(x, c.matrix(DType::F32, 96, k));
    c.finish(c.builder.add(c.builder.add(q, g), f));
    check(c, {1, 5, 21}, DType::Q8_0);
  }
}

TEST_F(GpuLinear, TheHeadReadsOnlyOutputRows) {
  for (DType dtype : {DType::F32, DType::F16, DType::Q4_0, DType::Q6_K}) {
    SCOPED_TRACE(dtype_name(dtype));
    OpCase c(random_, tokens(20));
    c.set_input(Input::outputs, {19, 3, 3, 0, 7, 19, 18, 2, 1});
    const TensorId rows = c.builder.gather_outputs(c.activation(512));
    c.finish(c.builder.linear(rows, c.matrix(dtype, 1001, 512)));
    for (int64_t n_outputs : {0, 1, 5, 9}) {
      c.expect_match(*device_, {20, n_outputs}, tolerance(dtype), OpCase::Rounding::allowed);
    }
  }
}

TEST_F(GpuLinear, GluOfEveryDtypeAndActivation) {
  for (DType dtype : products_dtypes()) {
    for (Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                                  Activation::relu2, Activation::swiglu_oai}) {
      const bool bias = activation == Activation::gelu;
      if (on_short_list() && activation != Activation::silu && dtype != DType::F16 && dtype != DType::Q4_K)
        continue;
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " activation " +
                   std::to_string(static_cast<int>(activation)));
      OpCase c(random_, tokens(35));
      const int64_t k = columns(dtype, 768), m = 150;
      c.finish(c.builder.glu(c.activation(k, activation == Activation::swiglu_oai ? 3.0f : 1.0f), activation,
                             c.matrix(dtype, m, k), c.matrix(dtype, m, k),
                             bias ? c.vector(random_.normals(m)) : nullptr,
                             bias ? c.vector(random_.normals(m)) : nullptr));
      check(c, some_of<int64_t>({1, 3, 16, 35}, activation == Activation::silu ? 1 : 3), dtype);
    }
  }
}

// Bytes that the op before a product makes: norms of whole rows, and gated units. Results must be those of ops that make
// none, which n = 9 shows.
TEST_F(GpuLinear, ProductsOfNormsAndGatedUnits) {
  for (DType dtype : {DType::Q4_K, DType::Q8_0, DType::F16, DType::IQ4_NL}) {
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (kind == NormKind::rms ? " rms" : " layer"));
      OpCase c(random_, tokens(9));
      constexpr int64_t d = 1280, m = 512;
      const TensorId x = c.activation(d, 3.0f);
      const TensorId normed =
          c.builder.norm(x, {kind, 1e-5f, d}, c.vector(random_.normals(d)),
                         kind == NormKind::layer ? c.vector(random_.normals(d)) : nullptr);
      const TensorId hidden =
          c.builder.glu(normed, Activation::silu, c.matrix(dtype, m, d), c.matrix(dtype, m, d));
      const TensorId down = c.builder.linear(hidden, c.matrix(DType::Q6_K, d, m), nullptr, x);
      // Both encodings of one input, of which one product reads neither.
      const TensorId again = c.builder.norm(down, {kind, 1e-5f, d}, c.vector(random_.normals(d)));
      const TensorId q = c.builder.linear(again, c.matrix(dtype, 96, d));
      const TensorId k = c.builder.linear(again, c.matrix(DType::Q5_0, 96, d));
      const TensorId v = c.builder.linear(again, c.matrix(DType::BF16, 96, d));
      c.finish(c.builder.add(c.builder.add(q, k), v));
      // Three products after each other: their rounding adds up.
      for (const int64_t n : some_of<int64_t>({1, 2, 5, 8, 9}, 2))
        c.expect_match(*device_, {n, 1}, 3 * kRounded, OpCase::Rounding::allowed);
    }
  }
}

// Two products that read the bytes of one norm, of which the second makes bytes for a third.
TEST_F(GpuLinear, TwoReadersOfOneNorm) {
  constexpr int64_t d = 512, m = 256;
  for (DType dtype : {DType::Q4_K, DType::Q8_0}) {
    SCOPED_TRACE(dtype_name(dtype));
    OpCase c(random_, tokens(9));
    const TensorId x = c.activation(d);
    const TensorId normed = c.builder.norm(x, {NormKind::rms, 1e-5f, d}, c.vector(random_.normals(d)));
    const TensorId first = c.builder.linear(normed, c.matrix(dtype, d, d));
    // Of the other encoding, so that the norm makes both.
    const DType other = dtype == DType::Q4_K ? DType::Q5_0 : DType::Q6_K;
    const TensorId hidden =
        c.builder.glu(normed, Activation::silu, c.matrix(other, m, d), c.matrix(other, m, d));
    c.finish(c.builder.linear(hidden, c.matrix(dtype, d, m), nullptr, first));
    for (const int64_t n : {1, 3, 8, 9})
      c.expect_match(*device_, {n, 1}, 2 * kRounded, OpCase::Rounding::allowed);
  }
}

// A mixture of experts with its router in the graph, so that ids and weights come from real routing. With
// biases, it is like gpt-oss; else the gates have factors.
void check_moe(Random& random, Device& device, DType dtype, int64_t n_expert, int64_t n_used, bool residual,
               bool biases, bool one_matrix = false) {
  ShapeClass shape;
  shape.max_tokens = 50;
  OpCase c(random, shape);
  const int64_t block = dtype_info(dtype).block_elements;
  const int64_t k = (127 / block + 1) * block, m = (95 / block + 1) * block;
  const Weight* up = nullptr;  // once of another dtype than the gate
  if (!one_matrix) up = c.matrix(dtype == DType::Q5_K ? DType::Q4_K : dtype, m, k, n_expert);
  const TensorId x = c.activation(k), r = residual ? c.activation(k) : kNoTensor;
  MoeRouteParams route;
  route.n_expert = n_expert;
  route.n_used = n_used;
  const TensorId chosen = c.builder.moe_route(c.activation(n_expert, 2.0f), route);
  const MoeFfnParams op{n_expert, n_used, biases ? Activation::swiglu_oai : Activation::silu};
  ExpertBiases b;
  if (biases) {
    b.gate = c.matrix(DType::F32, n_expert, m, 1, 1.0f);
    b.up = c.matrix(DType::F32, n_expert, m, 1, 1.0f);
    b.down = c.matrix(DType::F32, n_expert, k, 1, 1.0f);
  } else {
    b.gate_factors = c.matrix(DType::F32, n_expert, 1, 1, 1.0f);
  }
  c.finish(c.builder.moe_ffn(x, chosen, op, c.matrix(dtype, one_matrix ? 2 * m : m, k, n_expert), up,
                             c.matrix(dtype, k, m, n_expert), r, b));
  for (int64_t n : some_of<int64_t>({1, 2, 50, 7}, 2)) {
    c.expect_match(device, {n, 1}, dtype == DType::F32 ? kF32 : kRounded, OpCase::Rounding::allowed);
  }
}

// Experts of up and down alone, as in Nemotron 3.
TEST_F(GpuLinear, MixturesWithoutGates) {
  for (const DType dtype : {DType::F32, DType::F16, DType::Q8_0, DType::Q4_K}) {
    SCOPED_TRACE(dtype_name(dtype));
    ShapeClass shape;
    shape.max_tokens = 50;
    OpCase c(random_, shape);
    constexpr int64_t n_expert = 9, n_used = 3, k = 256, m = 512;
    const TensorId x = c.activation(k), r = c.activation(k);
    MoeRouteParams route;
    route.n_expert = n_expert;
    route.n_used = n_used;
    const TensorId chosen = c.builder.moe_route(c.activation(n_expert, 2.0f), route);
    ExpertBiases b;
    if (dtype == DType::F16) b.up = c.matrix(DType::F32, n_expert, m, 1, 1.0f);
    c.finish(c.builder.moe_ffn(x, chosen, {n_expert, n_used, Activation::relu2}, nullptr,
                               c.matrix(dtype, m, k, n_expert), c.matrix(dtype, k, m, n_expert), r, b));
    for (const int64_t n : {1, 7, 50}) {
      c.expect_match(*device_, {n, 1}, dtype == DType::F32 ? kF32 : kRounded, OpCase::Rounding::allowed);
    }
  }
}

// With pairs that the route leaves out, all of a token's among them.
TEST_F(GpuLinear, MixturesWithPairsLeftOut) {
  for (const DType dtype : {DType::F32, DType::Q8_0, DType::Q4_K}) {
    SCOPED_TRACE(dtype_name(dtype));
    ShapeClass shape;
    shape.max_tokens = 50;
    OpCase c(random_, shape);
    constexpr int64_t n_expert = 9, n_used = 3, k = 256, m = 512;
    std::vector<float> route;
    for (int64_t t = 0; t < shape.max_tokens; ++t) {
      for (int64_t i = 0; i < n_used; ++i) {
        const bool left_out = t % 5 == 2 || (t + i) % 3 == 0;
        route.push_back(
            std::bit_cast<float>(left_out ? int32_t{-1} : static_cast<int32_t>((t + 4 * i) % n_expert)));
      }
      for (int64_t i = 0; i < n_used; ++i) route.push_back(0.2f + 0.1f * static_cast<float>(i));
    }
    const TensorId x = c.activation(k), r = c.activation(k), chosen = c.activation(2 * n_used, route);
    c.finish(c.builder.moe_ffn(x, chosen, {n_expert, n_used, Activation::silu},
                               c.matrix(dtype, m, k, n_expert), c.matrix(dtype, m, k, n_expert),
                               c.matrix(dtype, k, m, n_expert), r));
    for (const int64_t n : {1, 3, 50}) {
      c.expect_match(*device_, {n, 1}, dtype == DType::F32 ? kF32 : kRounded, OpCase::Rounding::allowed);
    }
  }
}

TEST_F(GpuLinear, MixturesOfExperts) {
  for (DType dtype : products_dtypes()) {
    SCOPED_TRACE(dtype_name(dtype));
    check_moe(random_, *device_, dtype, 8, 2, false, true);
    check_moe(random_, *device_, dtype, 6, 3, true, false, true);
    if (on_short_list() && dtype != DType::F16 && dtype != DType::Q4_0 && dtype != DType::Q6_K) continue;
    check_moe(random_, *device_, dtype, 37, 5, true, false);
  }
}

}  // namespace
}  // namespace tandem::gpu_test
