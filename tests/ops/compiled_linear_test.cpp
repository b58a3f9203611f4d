// The linear, head_linear and glu ops: several products of one input computed together, with and without shared encodings,
// for any number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "cpu/compiled_op.h"
#include "cpu/ops/linear_group.h"
#include "gguf/quants.h"
#include "graph/builder.h"

namespace tandem::cpu {
namespace {

// Weights of a test model, with their values as floats.
struct TestWeight {
  Weight weight;
  std::vector<std::byte> data;
  std::vector<float> values;  // [rows, columns]

  TestWeight(DType dtype, int64_t rows, int64_t columns, std::mt19937& rng) {
    weight.name = "w";
    weight.dtype = dtype;
    weight.n_rows = rows;
    weight.n_cols = columns;
    values.resize(static_cast<size_t>(rows * columns));
    std::normal_distribution<float> normal(0.0f, 0.1f);
    for (float& v : values) v = normal(rng);
    data.resize(weight.n_bytes());
    quantize_row(dtype, values.data(), data.data(), rows * columns);
    dequantize_row(dtype, data.data(), values.data(), rows * columns);
    weight.data = data.data();
  }
};

// Runs single nodes of a graph on its own memory.
class OpRunner {
 public:
  explicit OpRunner(const Graph& graph)
      : graph_(graph), memory_(graph.tensors.size()), addresses_(graph.tensors.size()) {
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      const Tensor& t = graph.tensors[i];
      if (t.weight != nullptr) {
        addresses_[i] = const_cast<std::byte*>(t.weight->data);
      } else if (t.storage == static_cast<TensorId>(i)) {
        memory_[i].assign(t.n_bytes(), std::byte{0});
        addresses_[i] = memory_[i].data();
      }
    }
  }

  float* values(TensorId id) {
    return reinterpret_cast<float*>(addresses_[static_cast<size_t>(graph_.tensor(id).storage)]);
  }

  CompileContext context(const Kernels& kernels, int n_threads, NodeShares nodes = {}) {
    segment_ = Segment{&graph_, {}, addresses_, {}};
    return CompileContext{{segment_}, kernels, n_threads, std::move(nodes)};
  }

  static void run(const CompiledOp& op, int n_threads, const StepShape& shape) {
    ThreadPool pool(n_threads);
    std::vector<std::byte> room(op.shared_bytes + 64 +
                                static_cast<size_t>(n_threads) * (op.scratch_bytes + 64));
    std::byte* aligned = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
    pool.run([&](Worker& worker) {
      std::byte* scratch = aligned + (op.shared_bytes + 63) / 64 * 64 +
                           static_cast<size_t>(worker.index()) * ((op.scratch_bytes + 63) / 64 * 64);
      op.run(worker, RunContext{shape, aligned, scratch});
    });
  }

 private:
  const Graph& graph_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<DevicePtr> addresses_;
  Segment segment_;
};

std::vector<float> product(const float* x, const TestWeight& w, int64_t n) {
  const int64_t m = w.weight.n_rows, k = w.weight.n_cols;
  std::vector<float> y(static_cast<size_t>(n * m));
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t r = 0; r < m; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += static_cast<double>(x[t * k + i]) * w.values[static_cast<size_t>(r * k + i)];
      y[static_cast<size_t>(t * m + r)] = static_cast<float>(sum);
    }
  }
  return y;
}

void fill_normal(float* to, int64_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < n; ++i) to[i] = normal(rng);
}

class CompiledOps : public ::testing::TestWithParam<Isa> {
 protected:
  std::mt19937 rng{[] {
    const uint32_t seed = std::random_device{}();
    printf("seed %u\n", seed);
    return seed;
  }()};
};

TEST_P(CompiledOps, LinearGroupSharesInputAndNotEncoding) {
  constexpr int64_t kMax = 37, k = 512;
  TestWeight q(DType::Q4_K, 96, k, rng), kk(DType::Q8_0, 32, k, rng), v(DType::Q6_K, 35, k, rng),
      f(DType::F32, 20, k, rng);
  TestWeight bias(DType::F32, 1, 35, rng), output(DType::F32, 5, 96, rng);
  GraphBuilder b(ShapeClass{kMax, kMax, 1, 1});
  TestWeight table(DType::F32, 4, k, rng), wide(DType::F32, 4, 96, rng);
  const TensorId x = b.embed(&table.weight), residual = b.embed(&wide.weight);
  const TensorId yq = b.linear(x, &q.weight, nullptr, residual), yk = b.linear(x, &kk.weight);
  const TensorId yv = b.linear(x, &v.weight, &bias.weight), yf = b.linear(x, &f.weight);
  const Graph graph = b.finish(b.linear(b.gather_outputs(yq), &output.weight));
  OpRunner runner(graph);
  fill_normal(runner.values(x), kMax * k, rng);
  fill_normal(runner.values(residual), kMax * 96, rng);

  const std::vector<int32_t> nodes{2, 3, 4, 5};
  for (int64_t n : {int64_t{1}, int64_t{2}, int64_t{14}, kMax}) {
    SCOPED_TRACE(n);
    std::vector<std::vector<float>> first;
    for (int n_threads : {1, 2, 3}) {
      NodeShares memory_nodes;
      if (n_threads == 3) memory_nodes = NodeShares({{0, {0, 1}}, {1, {2}}, {2, {3, 4}}});
      const CompiledOpPtr op =
          compile_linear(runner.context(kernels(GetParam()), n_threads, memory_nodes), nodes);
      for (TensorId y : {yq, yk, yv, yf}) std::fill_n(runner.values(y), kMax * graph.tensor(y).n_cols, -5.0f);
      OpRunner::run(*op, n_threads, {n, 0});
      std::vector<std::vector<float>> got;
      for (TensorId y : {yq, yk, yv, yf}) {
        got.emplace_back(runner.values(y), runner.values(y) + kMax * graph.tensor(y).n_cols);
      }
      if (first.empty()) first = got;
      EXPECT_EQ(got, first) << n_threads << " threads";
    }
    const TestWeight* weights[] = {&q, &kk, &v, &f};
    for (int i = 0; i < 4; ++i) {
      const int64_t m = weights[i]->weight.n_rows;
      const std::vector<float> want = product(runner.values(x), *weights[i], n);
      for (int64_t j = 0; j < n * m; ++j) {
        const float extra = i == 0   ? runner.values(residual)[j]
                            : i == 2 ? bias.values[static_cast<size_t>(j % m)]
                                     : 0.0f;
        ASSERT_NEAR(first[i][static_cast<size_t>(j)], want[static_cast<size_t>(j)] + extra, 0.15)
            << i << " " << j;
      }
      for (int64_t j = n * m; j < kMax * m; ++j)
        ASSERT_EQ(first[i][static_cast<size_t>(j)], -5.0f) << "past the op";
    }
  }
}

// Many threads and many tokens: items have a part of both.
TEST_P(CompiledOps, ManyThreadsDivideRowsAndTokens) {
  constexpr int64_t kMax = 430, k = 256;
  std::uniform_int_distribution<int64_t> any_rows(1, 300), any_tokens(192, kMax);  // from 192 on tokens are divided
  for (int round = 0; round < 3; ++round) {
    TestWeight a(DType::Q4_K, any_rows(rng), k, rng), c(DType::Q8_0, any_rows(rng), k, rng),
        f(DType::F16, any_rows(rng), k, rng), up(DType::Q6_K, a.weight.n_rows, k, rng);
    TestWeight table(DType::F32, 4, k, rng);
    GraphBuilder b(ShapeClass{kMax, kMax, 1, 1});
    const TensorId x = b.embed(&table.weight);
    const TensorId ya = b.linear(x, &a.weight), yc = b.linear(x, &c.weight), yf = b.linear(x, &f.weight);
    const TensorId h = b.glu(x, Activation::silu, &a.weight, &up.weight);
    const Graph graph = b.finish(b.gather_outputs(h));
    OpRunner runner(graph);
    fill_normal(runner.values(x), kMax * k, rng);
    const int64_t n = any_tokens(rng);
    SCOPED_TRACE(format("{} tokens, {}, {}, {} rows", n, a.weight.n_rows, c.weight.n_rows, f.weight.n_rows));
    const Kernels& table_of_kernels = kernels(GetParam());
    const auto run = [&](int n_threads) {
      const CompileContext context = runner.context(table_of_kernels, n_threads);
      const std::vector<int32_t> nodes{1, 2, 3};
      std::vector<float> all;
      for (TensorId y : {ya, yc, yf, h}) std::fill_n(runner.values(y), kMax * graph.tensor(y).n_cols, -5.0f);
      OpRunner::run(*compile_linear(context, nodes), n_threads, {n, 0});
      OpRunner::run(*compile(context, graph.nodes[4], std::get<GluOp>(graph.nodes[4].op)), n_threads, {n, 0});
      for (TensorId y : {ya, yc, yf, h})
        all.insert(all.end(), runner.values(y), runner.values(y) + kMax * graph.tensor(y).n_cols);
      return all;
    };
    EXPECT_EQ(run(40), run(1));
    const ProductItems items = divide_product(table_of_kernels.linear, DType::Q4_K, n, 300, k, 40);
    EXPECT_GT(items.n_tokens, 1);
    EXPECT_GE(items.rows, 2 * rows_per_item(table_of_kernels.linear, DType::Q4_K, n, 300, k, 40));
  }
}

TEST_P(CompiledOps, GluIsTheGatedProduct) {
  constexpr int64_t kMax = 30, k = 256, m = 150;
  for (auto [gate_type, up_type] : {std::pair{DType::Q8_0, DType::Q8_0}, {DType::Q4_K, DType::F16}}) {
    TestWeight gate(gate_type, m, k, rng), up(up_type, m, k, rng), up_bias(DType::F32, 1, m, rng);
    TestWeight table(DType::F32, 4, k, rng);
    GraphBuilder b(ShapeClass{kMax, kMax, 1, 1});
    const TensorId x = b.embed(&table.weight);
    const TensorId y = b.glu(x, Activation::silu, &gate.weight, &up.weight, nullptr, &up_bias.weight);
    const Graph graph = b.finish(b.gather_outputs(y));
    OpRunner runner(graph);
    fill_normal(runner.values(x), kMax * k, rng);
    for (int64_t n : {int64_t{1}, int64_t{3}, kMax}) {
      SCOPED_TRACE(n);
      std::vector<float> first;
      for (int n_threads : {1, 2, 3}) {
        const CompiledOpPtr op = compile(runner.context(kernels(GetParam()), n_threads), graph.nodes[1],
                                         std::get<GluOp>(graph.nodes[1].op));
        std::fill_n(runner.values(y), kMax * m, -5.0f);
        OpRunner::run(*op, n_threads, {n, 0});
        const std::vector<float> got(runner.values(y), runner.values(y) + kMax * m);
        if (first.empty()) first = got;
        EXPECT_EQ(got, first) << n_threads << " threads";
      }
      const std::vector<float> g = product(runner.values(x), gate, n), u = product(runner.values(x), up, n);
      for (int64_t j = 0; j < n * m; ++j) {
        const float a = g[static_cast<size_t>(j)],
                    c = u[static_cast<size_t>(j)] + up_bias.values[static_cast<size_t>(j % m)];
        const float silu = a / (1 + std::exp(-a));
        ASSERT_NEAR(first[static_cast<size_t>(j)], silu * c, 0.1 + 0.1 * (std::abs(a) + std::abs(c))) << j;
      }
      for (int64_t j = n * m; j < kMax * m; ++j)
        ASSERT_EQ(first[static_cast<size_t>(j)], -5.0f) << "past the op";
    }
  }
}

// Heads with matrices of their own; the last columns of each head stay.
TEST_P(CompiledOps, HeadLinearMultipliesEachHead) {
  struct Size {
    int64_t n_head, m, k, n_kept;
    DType dtype;
  };
  std::uniform_int_distribution<int64_t> any_head(1, 9), any_row(1, 150), any_kept(0, 40);
  std::vector<Size> sizes{{16, 512, 128, 64, DType::F16},
                          {3, 20, 32, 0, DType::Q8_0},
                          {1, 1, 256, 5, DType::Q4_K},
                          {5, 64, 96, 16, DType::Q8_0},
                          {2, 33, 24, 1, DType::BF16}};
  for (int i = 0; i < 4; ++i)
    sizes.push_back({any_head(rng), any_row(rng), 8 * any_row(rng), any_kept(rng), DType::F32});
  for (const Size& s : sizes) {
    const int64_t kMax = 300, x_cols = s.k + s.n_kept, y_cols = s.m + s.n_kept;
    TestWeight w(s.dtype, s.n_head * s.m, s.k, rng), table(DType::F32, 1, s.n_head * x_cols, rng);
    w.weight.n_mats = s.n_head;
    w.weight.n_rows = s.m;
    GraphBuilder b(ShapeClass{kMax, kMax, 1, 1});
    const TensorId x = b.embed(&table.weight), y = b.head_linear(x, &w.weight);
    const Graph graph = b.finish(b.gather_outputs(y));
    ASSERT_EQ(graph.tensor(y).n_cols, s.n_head * y_cols);
    OpRunner runner(graph);
    fill_normal(runner.values(x), kMax * s.n_head * x_cols, rng);
    for (int64_t n : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{40}, kMax}) {
      SCOPED_TRACE(
          format("{} heads of {}x{}+{} {}, {} tokens", s.n_head, s.m, s.k, s.n_kept, dtype_name(s.dtype), n));
      std::vector<float> first;
      for (int n_threads : {1, 2, 3}) {
        const CompiledOpPtr op = compile(runner.context(kernels(GetParam()), n_threads), graph.nodes[1],
                                         std::get<HeadLinearOp>(graph.nodes[1].op));
        std::fill_n(runner.values(y), kMax * s.n_head * y_cols, -5.0f);
        OpRunner::run(*op, n_threads, {n, 0});
        const std::vector<float> got(runner.values(y), runner.values(y) + kMax * s.n_head * y_cols);
        if (first.empty()) first = got;
        EXPECT_EQ(got, first) << n_threads << " threads";
      }
      double error = 0, size = 0;
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t h = 0; h < s.n_head; ++h) {
          const float* in = runner.values(x) + (t * s.n_head + h) * x_cols;
          const float* out = first.data() + (t * s.n_head + h) * y_cols;
          for (int64_t j = 0; j < s.m; ++j) {
            double want = 0;
            for (int64_t i = 0; i < s.k; ++i)
              want += static_cast<double>(in[i]) * w.values[static_cast<size_t>((h * s.m + j) * s.k + i)];
            error = std::max(error, std::fabs(out[j] - want));
            size = std::max({size, std::fabs(want), 0.1 * std::sqrt(static_cast<double>(s.k))});
          }
          for (int64_t j = 0; j < s.n_kept; ++j) ASSERT_EQ(out[s.m + j], in[s.k + j]);
        }
      }
      EXPECT_LE(error, size * (s.dtype == DType::F32 ? 1e-5 : 3e-2));
      for (int64_t j = n * s.n_head * y_cols; j < kMax * s.n_head * y_cols; ++j)
        ASSERT_EQ(first[static_cast<size_t>(j)], -5.0f) << "past the op";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CompiledOps, ::testing::ValuesIn(supported_isas()),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

}  // namespace
}  // namespace tandem::cpu
