// Row kernels of every ISA against the scalar reference and, where there is a formula, against double
// precision; then the row-wise ops through the device.
#include <cmath>

#include "gguf/quants.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::OpBench;
using test::Random;

// Lengths around every vector width and unrolling.
std::vector<int64_t> lengths() {
  std::vector<int64_t> n;
  for (int64_t i = 1; i <= 70; ++i) n.push_back(i);
  n.insert(n.end(), {127, 128, 1023, 2048});
  return n;
}

// Calls check(isa, n) for every vector ISA and length.
template <class Check>
void sweep(Check&& check) {
  for (Isa isa : supported_isas()) {
    for (int64_t n : lengths()) {
      SCOPED_TRACE(std::string(isa_name(isa)) + " n " + std::to_string(n));
      check(test::rows_of(isa), n);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Output buffer with a guard after its end.
class Guarded {
 public:
  explicit Guarded(int64_t n) : x_(static_cast<size_t>(n) + 1, 123.0f) {}
  explicit Guarded(std::vector<float> x) : x_(std::move(x)) { x_.push_back(123.0f); }
  float* data() { return x_.data(); }
  void expect_near(const std::vector<double>& want, double relative, double absolute) const {
    ASSERT_EQ(x_.back(), 123.0f) << "wrote past the end";
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(x_[i], want[i], std::fabs(want[i]) * relative + absolute) << "element " << i;
    }
  }

 private:
  std::vector<float> x_;
};

TEST(Rows, RmsNorm) {
  Random random;
  sweep([&](const RowKernels& rows, int64_t n) {
    const std::vector<float> x = random.normals(n, 3.0f), w = random.normals(n), b = random.normals(n);
    double squares = 0;
    for (float v : x) squares += static_cast<double>(v) * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    std::vector<double> plain(x.size()), biased(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      plain[i] = x[i] * scale * w[i];
      biased[i] = plain[i] + b[i];
    }
    Guarded y(n), z(n), in_place(x);
    rows.rms_norm(x.data(), w.data(), nullptr, 1e-5f, y.data(), n);
    y.expect_near(plain, 1e-6, 0);
    rows.rms_norm(x.data(), w.data(), b.data(), 1e-5f, z.data(), n);
    z.expect_near(biased, 1e-6, 1e-6);
    rows.rms_norm(in_place.data(), w.data(), nullptr, 1e-5f, in_place.data(), n);
    in_place.expect_near(plain, 1e-6, 0);
  });
}

TEST(Rows, LayerNorm) {
  Random random;
  sweep([&](const RowKernels& rows, int64_t n) {
    std::vector<float> x = random.normals(n);
    for (float& v : x) v += 5.0f;  // a mean for layer norm to subtract
    const std::vector<float> w = random.normals(n), b = random.normals(n);
    double mean = 0, squares = 0;
    for (float v : x) mean += v / static_cast<double>(n);
    for (float v : x) squares += (v - mean) * (v - mean);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    std::vector<double> want(x.size());
    for (size_t i = 0; i < x.size(); ++i) want[i] = (x[i] - mean) * scale * w[i] + b[i];
    Guarded y(n);
    rows.layer_norm(x.data(), w.data(), b.data(), 1e-5f, y.data(), n);
    // The rounding of the mean, of size 5, is divided by the deviation, which is small when there are few
    // elements.
    y.expect_near(want, 1e-6, 5e-6 * scale + 1e-6);
  });
}

TEST(Rows, AddScaleSoftcap) {
  Random random;
  sweep([&](const RowKernels& rows, int64_t n) {
    const std::vector<float> a = random.normals(n, 10.0f), b = random.normals(n, 10.0f);
    std::vector<double> sum(a.size()), scaled(a.size()), capped(a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      sum[i] = a[i] + b[i];
      scaled[i] = a[i] * 0.3f;
      capped[i] = 30.0 * std::tanh(a[i] / 30.0);
    }
    Guarded x(n), y(n), z(n), in_place(a);
    rows.add(a.data(), b.data(), 1.0f, x.data(), n);
    x.expect_near(sum, 0, 0);
    rows.scale(a.data(), 0.3f, y.data(), n);
    y.expect_near(scaled, 0, 0);
    rows.softcap(a.data(), 30.0f, z.data(), n);
    z.expect_near(capped, 5e-7, 1e-30);
    rows.add(in_place.data(), b.data(), 1.0f, in_place.data(), n);
    in_place.expect_near(sum, 0, 0);
  });
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::relu2: return x > 0 ? x * x : 0;
    case Activation::swiglu_oai: return std::min(x, 7.0) / (1 + std::exp(-1.702 * std::min(x, 7.0)));
  }
  return NAN;
}

double gated(Activation activation, double gate, double up) {
  return activate(activation, gate) *
         (activation == Activation::swiglu_oai ? std::clamp(up, -7.0, 7.0) + 1 : up);
}

constexpr Activation kActivations[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                                       Activation::relu2, Activation::swiglu_oai};

TEST(Rows, Glu) {
  Random random;
  for (Activation activation : kActivations) {
    SCOPED_TRACE("activation " + std::to_string(static_cast<int>(activation)));
    sweep([&](const RowKernels& rows, int64_t n) {
      const std::vector<float> gate = random.normals(n, n % 2 ? 1.0f : 6.0f),
                               up = random.normals(n, n % 3 ? 1.0f : 6.0f);
      std::vector<double> want(gate.size());
      for (size_t i = 0; i < gate.size(); ++i) want[i] = gated(activation, gate[i], up[i]);
      Guarded y(n);
      rows.glu(activation, gate.data(), up.data(), y.data(), n);
      y.expect_near(want, 1e-6, 2e-6);
    });
  }
}

// Activations over the whole range of floats: no intermediate overflow, and the right limits.
TEST(Rows, GluAtTheEnds) {
  const std::vector<float> gate = {0.0f,    -0.0f, 1e-30f, -1e-30f, 20.0f,  -20.0f, 88.0f, -88.0f, 100.0f,
                                   -100.0f, 1e18f, -1e18f, 50.0f,   -50.0f, 5.0f,   -5.0f, NAN};
  const int64_t n = static_cast<int64_t>(gate.size());
  const std::vector<float> up(gate.size(), 1.0f);
  for (Isa isa : supported_isas()) {
    for (Activation activation : kActivations) {
      std::vector<float> y(gate.size());
      test::rows_of(isa).glu(activation, gate.data(), up.data(), y.data(), n);
      for (size_t i = 0; i + 1 < gate.size(); ++i) {
        const double want = gated(activation, gate[i], 1.0);
        EXPECT_NEAR(y[i], want, std::fabs(want) * 2e-6 + 1e-6) << isa_name(isa) << " x " << gate[i];
      }
      EXPECT_TRUE(std::isnan(y.back())) << isa_name(isa) << " " << static_cast<int>(activation);
    }
  }
}

TEST(Rows, SoftcapOverTheWholeRange) {
  for (Isa isa : supported_isas()) {
    for (double x = 1e-20; x < 1e20; x *= 1.07) {
      for (float signed_x : {static_cast<float>(x), static_cast<float>(-x)}) {
        float y = 0;
        test::rows_of(isa).softcap(&signed_x, 1.0f, &y, 1);
        const double want = std::tanh(static_cast<double>(signed_x));
        ASSERT_NEAR(y, want, std::fabs(want) * 4e-7) << isa_name(isa) << " " << signed_x;
      }
    }
  }
}

TEST(Rows, DequantizeIsExact) {
  Random random;
  for (const DTypeInfo& info : all_dtypes()) {
    if (!info.to_float || !info.from_float) continue;
    for (int64_t n = info.block_elements; n <= 4 * info.block_elements + 3; n += info.block_elements) {
      const std::vector<float> x = random.normals(n);
      std::vector<std::byte> bytes(row_bytes(info.dtype, n));
      quantize_row(info.dtype, x.data(), bytes.data(), n);
      std::vector<float> want(x.size());
      dequantize_row(info.dtype, bytes.data(), want.data(), n);
      for (Isa isa : supported_isas()) {
        std::vector<float> got(x.size() + 1, 123.0f);
        test::rows_of(isa).dequantize(info.dtype, bytes.data(), got.data(), n);
        EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
            << isa_name(isa) << info.name;
        EXPECT_EQ(got.back(), 123.0f);
      }
    }
  }
}

// Every half and bfloat16 value, through the hardware's conversions.
TEST(Rows, DequantizeEveryHalf) {
  std::vector<uint16_t> halves(0x10000);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  const int64_t n = static_cast<int64_t>(halves.size());
  std::vector<float> want(halves.size()), got(halves.size());
  for (DType dtype : {DType::F16, DType::BF16}) {
    dequantize_row(dtype, halves.data(), want.data(), n);
    for (Isa isa : supported_isas()) {
      test::rows_of(isa).dequantize(dtype, reinterpret_cast<const std::byte*>(halves.data()), got.data(), n);
      for (size_t i = 0; i < halves.size(); ++i) {
        if (std::isnan(want[i])) {
          EXPECT_TRUE(std::isnan(got[i]));
        } else {
          ASSERT_EQ(std::memcmp(&want[i], &got[i], sizeof(float)), 0) << dtype_name(dtype) << " " << i;
        }
      }
    }
  }
}

// Runs the op under test with 1 to 4 threads on every ISA, checks that results do not depend on the threads,
// and passes the result to `check`.
template <class Check>
void run_op(OpBench& bench, TensorId y, const StepShape& shape, int64_t n_rows, Check&& check) {
  const size_t size = static_cast<size_t>(n_rows * bench.graph.tensor(y).n_cols);
  const std::vector<float> before(bench.data(y), bench.data(y) + size);  // an op may work in place
  for (Isa isa : supported_isas()) {
    std::vector<float> first;
    for (int threads = 1; threads <= 4; ++threads) {
      std::copy(before.begin(), before.end(), bench.data(y));
      bench.run(isa, shape, threads);
      const std::vector<float> result(bench.data(y), bench.data(y) + size);
      if (threads == 1) first = result;
      EXPECT_EQ(std::memcmp(first.data(), result.data(), size * sizeof(float)), 0) << "threads " << threads;
    }
    SCOPED_TRACE(isa_name(isa));
    check(isa, first);
  }
}

void fill(OpBench& bench, TensorId id, const std::vector<float>& x) {
  std::copy(x.begin(), x.end(), bench.data(id));
}

TEST(RowOps, NormOfHeads) {
  Random random;
  const int64_t n = 37, n_head = 5, head_dim = 24, n_cols = n_head * head_dim;
  OpBench bench({n + 3, 4, 1, 1});
  const std::vector<float> w = random.normals(head_dim);
  const TensorId x = bench.activation(n_cols);
  const TensorId y = bench.builder.norm(x, {NormKind::rms, 1e-6f, head_dim}, bench.weight(w));
  bench.finish(y);
  const std::vector<float> values = random.normals(n * n_cols);
  fill(bench, x, values);
  run_op(bench, y, {n, 0}, n, [&](Isa isa, const std::vector<float>& got) {
    std::vector<float> want(static_cast<size_t>(head_dim));
    for (int64_t i = 0; i < n * n_head; ++i) {
      test::rows_of(isa).rms_norm(values.data() + i * head_dim, w.data(), nullptr, 1e-6f, want.data(),
                                  head_dim);
      ASSERT_EQ(std::memcmp(want.data(), got.data() + i * head_dim, want.size() * sizeof(float)), 0)
          << "head " << i;
    }
  });
}

TEST(RowOps, NormReadsWeightsThatAreNotF32) {
  Random random;
  const int64_t n_cols = 40;
  OpBench bench({3, 1, 1, 1});
  const std::vector<float> w = random.normals(n_cols), b = random.normals(n_cols);
  std::vector<std::byte> half(row_bytes(DType::F16, n_cols));
  quantize_row(DType::F16, w.data(), half.data(), n_cols);
  std::vector<float> rounded(w.size());
  dequantize_row(DType::F16, half.data(), rounded.data(), n_cols);
  const TensorId x = bench.activation(n_cols);
  const TensorId y = bench.builder.norm(x, {NormKind::layer, 1e-6f, n_cols},
                                        bench.raw_weight(DType::F16, half, 1, n_cols), bench.weight(b));
  bench.finish(y);
  const std::vector<float> values = random.normals(n_cols);
  fill(bench, x, values);
  run_op(bench, y, {1, 0}, 1, [&](Isa isa, const std::vector<float>& got) {
    std::vector<float> want(w.size());
    test::rows_of(isa).layer_norm(values.data(), rounded.data(), b.data(), 1e-6f, want.data(), n_cols);
    EXPECT_EQ(got, want);
  });
}

TEST(RowOps, EmbedGathersAndScales) {
  Random random;
  const int64_t n_vocab = 50, d = 64, n = 19;
  for (DType dtype : {DType::F32, DType::F16, DType::Q8_0, DType::Q4_0, DType::Q5_1}) {
    const std::vector<float> table = random.normals(n_vocab * d);
    std::vector<std::byte> bytes(row_bytes(dtype, n_vocab * d));
    quantize_row(dtype, table.data(), bytes.data(), n_vocab * d);
    std::vector<float> rows(table.size());
    dequantize_row(dtype, bytes.data(), rows.data(), n_vocab * d);
    for (float scale : {1.0f, 8.0f}) {
      OpBench bench({n, 1, 1, 1});
      const TensorId y = bench.builder.embed(bench.raw_weight(dtype, bytes, n_vocab, d), scale);
      bench.finish(y);
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(random.below(n_vocab)));
      ids[0] = n_vocab - 1;
      std::copy(ids.begin(), ids.end(), bench.input(Input::ids));
      run_op(bench, y, {n, 0}, n, [&](Isa, const std::vector<float>& got) {
        for (size_t i = 0; i < got.size(); ++i) {
          const size_t row = static_cast<size_t>(ids[i / static_cast<size_t>(d)]);
          ASSERT_EQ(got[i], scale * rows[row * static_cast<size_t>(d) + i % static_cast<size_t>(d)]);
        }
      });
    }
  }
}

TEST(RowOps, AddScaleSoftcapGather) {
  Random random;
  const int64_t n = 23, n_cols = 1500, n_outputs = 4;
  const std::vector<float> a = random.normals(n * n_cols), b = random.normals(n * n_cols);
  const auto with = [&](auto&& make, auto&& value) {
    OpBench bench({n, n_outputs, 1, 1});
    const TensorId x = bench.activation(n_cols), z = bench.activation(n_cols);
    const TensorId y = make(bench.builder, x, z);
    bench.finish(y);
    fill(bench, x, a);
    fill(bench, z, b);
    run_op(bench, y, {n, 0}, n, [&](Isa, const std::vector<float>& got) {
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], value(a[i], b[i]), 1e-5) << i;
    });
  };
  with([](GraphBuilder& g, TensorId x, TensorId z) { return g.add(x, z); },
       [](float x, float z) { return x + z; });
  with([](GraphBuilder& g, TensorId x, TensorId z) { return g.add(x, z, 0.22f); },
       [](float x, float z) { return x + 0.22f * z; });
  with([](GraphBuilder& g, TensorId x, TensorId) { return g.scale(x, 2.5f); },
       [](float x, float) { return 2.5f * x; });
  with([](GraphBuilder& g, TensorId x, TensorId) { return g.softcap(x, 2.0f); },
       [](float x, float) { return 2.0f * std::tanh(x / 2.0f); });

  {
    OpBench bench({n, n_outputs, 1, 1});
    const TensorId x = bench.activation(n_cols), z = bench.activation(n_cols), gate = bench.activation(1);
    const TensorId y = bench.builder.add(x, z, 3.0f, gate);
    bench.finish(y);
    fill(bench, x, a);
    fill(bench, z, b);
    fill(bench, gate, std::vector<float>(a.begin(), a.begin() + n));
    run_op(bench, y, {n, 0}, n, [&](Isa, const std::vector<float>& got) {
      for (size_t i = 0; i < got.size(); ++i) {
        const double sigmoid = 1 / (1 + std::exp(-static_cast<double>(a[i / n_cols])));
        ASSERT_NEAR(got[i], a[i] + 3.0 * sigmoid * b[i], 1e-5) << i;
      }
    });
  }

  OpBench bench({n, n_outputs, 1, 1});
  const TensorId x = bench.activation(n_cols);
  bench.finish(x);
  fill(bench, x, a);
  const int32_t outputs[] = {22, 0, 7, 7};
  std::copy(std::begin(outputs), std::end(outputs), bench.input(Input::outputs));
  bench.run(Isa::scalar, {n, n_outputs}, 2, bench.graph.nodes.size() - 1);
  const float* y = bench.data(bench.graph.logits);
  for (int64_t i = 0; i < n_outputs; ++i) {
    EXPECT_EQ(std::memcmp(y + i * n_cols, a.data() + outputs[i] * n_cols, static_cast<size_t>(n_cols) * 4),
              0);
  }
}

}  // namespace
}  // namespace tandem::cpu
