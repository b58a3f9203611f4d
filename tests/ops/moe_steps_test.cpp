// moe_ffn of several tokens at once against the same tokens one by one, which take another way through the op: for
// weights that share encodings of activations and that do not, experts with one token and with many.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <map>
#include <numeric>

#include "cpu/cpu_device.h"
#include "graph/builder.h"
#include "near.h"
#include "support/linear_problem.h"

namespace tandem::cpu::test {
namespace {

constexpr int64_t kEmbd = 256, kHidden = 256;

struct Types {
  DType gate, up, down;
};

struct Experts {
  int64_t n_expert, n_used;
  std::vector<std::byte> gate, up, down;
  Weight w_gate, w_up, w_down;

  Experts(Types types, int64_t all, int64_t used, std::mt19937& rng)
      : n_expert(all),
        n_used(used),
        gate(random_weights(types.gate, all * kHidden, kEmbd, rng)),
        up(random_weights(types.up, all * kHidden, kEmbd, rng)),
        down(random_weights(types.down, all * kEmbd, kHidden, rng)) {
    w_gate = weight("gate", types.gate, gate, kHidden, kEmbd);
    w_up = weight("up", types.up, up, kHidden, kEmbd);
    w_down = weight("down", types.down, down, kEmbd, kHidden);
  }

  Weight weight(const char* name, DType dtype, const std::vector<std::byte>& data, int64_t rows,
                int64_t cols) const {
    Weight w;
    w.name = name;
    w.dtype = dtype;
    w.n_mats = n_expert;
    w.n_rows = rows;
    w.n_cols = cols;
    w.data = data.data();
    return w;
  }
};

struct MoeInputs {
  std::vector<float> x, residual, route;  // [n, kEmbd] twice, [n, 2 * n_used]
};

MoeInputs random_inputs(int64_t n, const Experts& e, std::mt19937& rng) {
  MoeInputs t{random_floats(n * kEmbd, rng), random_floats(n * kEmbd, rng), {}};
  std::vector<int32_t> ids(static_cast<size_t>(e.n_expert));
  std::iota(ids.begin(), ids.end(), 0);
  std::uniform_real_distribution<float> weight(0.1f, 1.0f);
  for (int64_t i = 0; i < n; ++i) {
    std::shuffle(ids.begin(), ids.end(), rng);
    for (int64_t j = 0; j < e.n_used; ++j)
      t.route.push_back(std::bit_cast<float>(ids[static_cast<size_t>(j)]));
    for (int64_t j = 0; j < e.n_used; ++j) t.route.push_back(weight(rng));
  }
  return t;
}

// Sums of the observed inputs' elements, per weight and expert.
using Observed = std::map<std::pair<std::string, int64_t>, double>;

// Runs the tokens in steps of n; returns [all tokens, kEmbd].
std::vector<float> run(const Experts& e, const MoeInputs& tokens, int64_t n, Isa isa, int n_threads,
                       Observed* observed = nullptr) {
  ShapeClass shape;
  shape.max_tokens = n;
  GraphBuilder g(shape);
  Weight table = e.weight("table", DType::F32, e.gate, 1, kEmbd), route_table = table;
  table.n_mats = route_table.n_mats = 1;
  route_table.n_cols = e.n_expert;
  const TensorId x = g.embed(&table), logits = g.embed(&route_table), residual = g.scale(x, 1.0f);
  const TensorId route = g.moe_route(logits, MoeRouteParams{e.n_expert, e.n_used});
  const TensorId y = g.moe_ffn(x, route, MoeFfnParams{e.n_expert, e.n_used, Activation::silu}, &e.w_gate,
                               &e.w_up, &e.w_down, residual);
  const Graph graph = g.finish(g.gather_outputs(y));

  CpuOptions options{n_threads, n_threads, isa};
  if (observed) {
    options.observer = [&](const ProductInput& input) {
      for (int64_t i = 0; i < input.n; ++i) {
        const float* row = input.row(i);
        (*observed)[{input.weight.name, input.expert}] +=
            std::accumulate(row, row + input.weight.n_cols, 0.0);
      }
    };
  }
  const auto device = make_cpu_device(options);
  std::vector<float> out(tokens.x.size(), NAN);
  const auto n_all = static_cast<int64_t>(out.size()) / kEmbd;
  for (int64_t first = 0; first < n_all; first += n) {
    std::vector<DevicePtr> at(graph.tensors.size(), nullptr);
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].weight) at[i] = const_cast<std::byte*>(graph.tensors[i].weight->data);
    }
    const auto put = [&](TensorId id, const float* p) {
      at[static_cast<size_t>(id)] = reinterpret_cast<std::byte*>(const_cast<float*>(p));
    };
    put(x, tokens.x.data() + first * kEmbd);
    put(residual, tokens.residual.data() + first * kEmbd);
    put(route, tokens.route.data() + first * 2 * e.n_used);
    put(y, out.data() + first * kEmbd);
    const std::vector<int32_t> nodes{4};  // moe_ffn alone
    const auto executable = device->compile(Segment{&graph, nodes, at, {}});
    device->run(*executable, StepShape{std::min(n, n_all - first), 1});
  }
  return out;
}

class MoeSteps : public testing::TestWithParam<Types> {};

TEST_P(MoeSteps, EqualOneByOne) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  struct Case {
    int64_t n, n_expert, n_used;
  };
  for (const auto& [n, n_expert, n_used] :
       {Case{2, 40, 3}, {5, 40, 3}, {9, 4, 2}, {45, 40, 3}, {130, 4, 2}, {50, 6, 6}}) {
    const Experts e(GetParam(), n_expert, n_used, rng);
    const MoeInputs tokens = random_inputs(n, e, rng);
    for (const Isa isa : supported_isas()) {
      SCOPED_TRACE(std::string(isa_name(isa)) + ", tokens " + std::to_string(n) + ", experts " +
                   std::to_string(n_expert));
      const std::vector<float> one = run(e, tokens, 1, isa, 1), several = run(e, tokens, n, isa, 1);
      // h rounds differently and then to 8 bits. Tiles round activations to bf16, where a token alone has 8 bits: up to 1% off
      // in each of three products.
      expect_near(several, widened(one), isa == Isa::avx512_amx ? 5e-2 : 1e-3);
      EXPECT_EQ(run(e, tokens, 1, isa, 3), one);
      EXPECT_EQ(run(e, tokens, n, isa, 3), several);
    }
  }
}

// A pair with a negative id counts as if its weight were 0; a token may have none left.
TEST_P(MoeSteps, PairsThatTheRouteLeavesOut) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  for (const int64_t n_used : {1, 3, 6}) {
    const Experts e(GetParam(), 20, n_used, rng);
    const int64_t n_tokens = 60;
    MoeInputs without = random_inputs(n_tokens, e, rng), zero = without;
    for (int64_t t = 0; t < n_tokens; ++t) {
      for (int64_t i = 0; i < n_used; ++i) {
        if (t % 7 != 3 && rng() % 2 == 0) continue;
        const auto at = static_cast<size_t>(t * 2 * n_used + i);
        without.route[at] = std::bit_cast<float>(int32_t{-1});
        zero.route[at + static_cast<size_t>(n_used)] = 0;
      }
    }
    for (const Isa isa : supported_isas()) {
      for (const int64_t n : {int64_t{1}, int64_t{5}, n_tokens}) {
        SCOPED_TRACE(std::string(isa_name(isa)) + ", used " + std::to_string(n_used) + ", tokens " +
                     std::to_string(n));
        expect_near(run(e, without, n, isa, 2), widened(run(e, zero, n, isa, 2)),
                    isa == Isa::avx512_amx ? 1e-2 : 1e-3);
      }
    }
    Observed observed;
    run(e, without, 1, Isa::scalar, 1, &observed);
    for (const auto& [key, sum] : observed) EXPECT_GE(key.second, 0);
  }
}

TEST_P(MoeSteps, ReportTheSameInputs) {
  std::mt19937 rng(std::random_device{}());
  const Experts e(GetParam(), 10, 3, rng);
  for (const int64_t n : {7, 100}) {  // sorted by every worker, and by one
    const MoeInputs tokens = random_inputs(n, e, rng);
    Observed one, several;
    run(e, tokens, 1, Isa::scalar, 2, &one);
    run(e, tokens, n, Isa::scalar, 2, &several);
    ASSERT_EQ(one.size(), several.size());
    for (const auto& [key, sum] : one) {
      EXPECT_NEAR(several[key], sum, 1e-3 * (std::abs(sum) + 1)) << key.first << " " << key.second;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, MoeSteps,
                         testing::Values(Types{DType::Q4_K, DType::Q4_K, DType::Q6_K},
                                         Types{DType::Q8_0, DType::Q4_K, DType::Q5_0},
                                         Types{DType::F16, DType::Q4_0, DType::BF16},
                                         Types{DType::MXFP4, DType::MXFP4, DType::MXFP4},
                                         Types{DType::IQ2_S, DType::IQ3_S, DType::Q2_K}));

}  // namespace
}  // namespace tandem::cpu::test
