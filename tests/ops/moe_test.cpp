// moe_route and moe_ffn against plain double arithmetic, through the CPU device, for 1 to 4 threads.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "cpu/cpu_device.h"
#include "graph/builder.h"

namespace tandem {
namespace {

struct MoeCase {
  int64_t n, n_embd, n_ff;
  MoeRouteParams route;
  bool bias, residual;
  bool expert_scale = false;  // and, where there are gates and no biases, factors of theirs
  bool one_matrix = false;  // with gate and up of each expert; without biases
};

std::vector<float> normal_floats(std::mt19937& rng, int64_t n, float scale) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

Weight f32_weight(const char* name, const std::vector<float>& data, int64_t n_mats, int64_t n_rows,
                  int64_t n_cols) {
  Weight w;
  w.name = name;
  w.n_mats = n_mats;
  w.n_rows = n_rows;
  w.n_cols = n_cols;
  w.data = reinterpret_cast<const std::byte*>(data.data());
  return w;
}

// The experts of a token, best first, with their weights.
std::vector<std::pair<int32_t, double>> reference_route(const MoeRouteParams& op, const float* logits,
                                                        const float* bias, const float* expert_scale) {
  const auto n = static_cast<size_t>(op.n_expert);
  std::vector<double> score(n), choice(n);
  double sum = 0;
  for (size_t e = 0; e < n; ++e) {
    score[e] = op.scoring == MoeScoring::sigmoid ? 1 / (1 + std::exp(-double{logits[e]}))
                                                 : std::exp(double{logits[e]});
    sum += score[e];
  }
  for (size_t e = 0; e < n; ++e) {
    if (op.scoring == MoeScoring::softmax) score[e] /= sum;
    choice[e] = score[e] + (bias ? bias[e] : 0);
  }
  if (op.n_group > 1) {
    const size_t size = n / static_cast<size_t>(op.n_group);
    std::vector<std::pair<double, size_t>> groups;
    for (size_t g = 0; g < static_cast<size_t>(op.n_group); ++g) {
      std::vector<double> members(choice.begin() + static_cast<long>(g * size),
                                  choice.begin() + static_cast<long>((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      const bool two = size > 1 && op.group_rank == MoeGroupRank::two_best;
      groups.push_back({-(members[0] + (two ? members[1] : 0)), g});
    }
    std::sort(groups.begin(), groups.end());
    for (size_t i = static_cast<size_t>(op.n_group_used); i < groups.size(); ++i) {
      for (size_t j = 0; j < size; ++j) choice[groups[i].second * size + j] = -INFINITY;
    }
  }
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return choice[static_cast<size_t>(a)] > choice[static_cast<size_t>(b)];
  });
  std::vector<std::pair<int32_t, double>> chosen;
  double total = 0;
  for (int64_t i = 0; i < op.n_used; ++i) {
    const int32_t e = order[static_cast<size_t>(i)];
    chosen.push_back({e, score[static_cast<size_t>(e)]});
    total += chosen.back().second;
  }
  for (auto& c : chosen) {
    c.second *= op.scale / (op.normalize ? total : 1) * (expert_scale ? expert_scale[c.first] : 1.0f);
  }
  return chosen;
}

enum class Gates { present, absent };

void check_moe(const MoeCase& c, unsigned seed, Gates gates = Gates::present) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", n " + std::to_string(c.n));
  std::mt19937 rng(seed);
  const int64_t E = c.route.n_expert, k = c.n_embd, m = c.n_ff;
  const auto x = normal_floats(rng, c.n * k, 1), logits = normal_floats(rng, c.n * E, 2),
             bias = normal_floats(rng, E, 0.2f), own_scale = normal_floats(rng, E, 1);
  const auto residual = normal_floats(rng, c.n * k, 1);
  const auto gate_bias = normal_floats(rng, E * m, 1), up_bias = normal_floats(rng, E * m, 1),
             down_bias = normal_floats(rng, E * k, 1);
  const float s = 1 / std::sqrt(static_cast<float>(k));
  const auto gate = normal_floats(rng, E * m * k, s), up = normal_floats(rng, E * m * k, s),
             down = normal_floats(rng, E * k * m, s);
  const Weight w_gate = f32_weight("gate", gate, E, m, k), w_up = f32_weight("up", up, E, m, k),
               w_down = f32_weight("down", down, E, k, m);
  std::vector<float> gate_up;  // of each expert, the rows of both
  for (int64_t e = 0; e < E; ++e) {
    gate_up.insert(gate_up.end(), gate.begin() + e * m * k, gate.begin() + (e + 1) * m * k);
    gate_up.insert(gate_up.end(), up.begin() + e * m * k, up.begin() + (e + 1) * m * k);
  }
  const Weight w_gate_up = f32_weight("gate_up", gate_up, E, 2 * m, k);
  const Weight w_bias = f32_weight("bias", bias, 1, 1, E), w_scale = f32_weight("scale", own_scale, 1, 1, E);
  const Weight w_gate_bias = f32_weight("gate_bias", gate_bias, 1, E, m),
               w_up_bias = f32_weight("up_bias", up_bias, 1, E, m);
  const auto factors = normal_floats(rng, E, 1);
  const Weight w_factors = f32_weight("factors", factors, 1, E, 1);
  const bool has_factors = c.expert_scale && !c.bias && gates == Gates::present;
  const Weight w_down_bias = f32_weight("down_bias", down_bias, 1, E, k);

  const bool has_gate = gates == Gates::present, one_matrix = has_gate && c.one_matrix;
  // A graph whose activations are filled by hand.
  ShapeClass shape;
  shape.max_tokens = c.n;
  GraphBuilder g(shape);
  Weight table_x = f32_weight("x", x, 1, 1, k), table_l = f32_weight("l", logits, 1, 1, E);
  const TensorId tx = g.embed(&table_x), tl = g.embed(&table_l), tr = g.scale(tx, 1.0f);
  const TensorId route =
      g.moe_route(tl, c.route, c.bias ? &w_bias : nullptr, c.expert_scale ? &w_scale : nullptr);
  const TensorId y = g.moe_ffn(
      tx, route, MoeFfnParams{E, c.route.n_used, has_gate ? Activation::silu : Activation::relu2},
      one_matrix ? &w_gate_up
      : has_gate ? &w_gate
                 : nullptr,
      one_matrix ? nullptr : &w_up, &w_down, c.residual ? tr : kNoTensor,
      c.bias        ? ExpertBiases{has_gate ? &w_gate_bias : nullptr, &w_up_bias, &w_down_bias}
      : has_factors ? ExpertBiases{.gate_factors = &w_factors}
                    : ExpertBiases{});
  const Graph graph = g.finish(g.gather_outputs(y));

  std::vector<float> first;
  for (int n_threads = 1; n_threads <= 4; ++n_threads) {
    const auto device = cpu::make_cpu_device({n_threads, n_threads});
    std::vector<float> r(static_cast<size_t>(c.n * 2 * c.route.n_used)),
        out(static_cast<size_t>(c.n * k), NAN);
    std::vector<DevicePtr> at(graph.tensors.size(), nullptr);
    const auto put = [&](TensorId id, const void* p) {
      at[static_cast<size_t>(id)] = static_cast<std::byte*>(const_cast<void*>(p));
    };
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].weight) at[i] = const_cast<std::byte*>(graph.tensors[i].weight->data);
    }
    put(tx, x.data());
    put(tl, logits.data());
    put(tr, residual.data());
    put(route, r.data());
    put(y, out.data());
    const std::vector<int32_t> nodes{3, 4};
    const auto executable = device->compile(Segment{&graph, nodes, at, {}});
    device->run(*executable, StepShape{c.n, 1});
    if (n_threads == 1) first = out;
    EXPECT_EQ(out, first) << n_threads << " threads";
    for (int64_t t = 0; t < c.n; ++t) {
      const auto expected = reference_route(c.route, logits.data() + t * E, c.bias ? bias.data() : nullptr,
                                            c.expert_scale ? own_scale.data() : nullptr);
      std::vector<double> sum(static_cast<size_t>(k), 0.0);
      for (int64_t i = 0; i < c.route.n_used; ++i) {
        const float* row = r.data() + t * 2 * c.route.n_used;
        const auto [expert, weight] = expected[static_cast<size_t>(i)];
        ASSERT_EQ(std::bit_cast<int32_t>(row[i]), expert) << "token " << t;
        EXPECT_NEAR(row[c.route.n_used + i], weight, 1e-5);
        for (int64_t h = 0; h < m; ++h) {
          const auto row_of = static_cast<size_t>(expert * m + h);
          double a = c.bias ? gate_bias[row_of] : 0, b = c.bias ? up_bias[row_of] : 0;
          for (int64_t j = 0; j < k; ++j) {
            const double xj = x[static_cast<size_t>(t * k + j)];
            a += xj * gate[static_cast<size_t>((expert * m + h) * k + j)];
            b += xj * up[static_cast<size_t>((expert * m + h) * k + j)];
          }
          if (has_factors) a *= double{factors[static_cast<size_t>(expert)]};
          const double squared = b > 0 ? b * b : 0;
          const double v = (has_gate ? a / (1 + std::exp(-a)) * b : squared) * weight;
          for (int64_t j = 0; j < k; ++j)
            sum[static_cast<size_t>(j)] += v * down[static_cast<size_t>((expert * k + j) * m + h)];
        }
        for (int64_t j = 0; j < k && c.bias; ++j)
          sum[static_cast<size_t>(j)] += weight * down_bias[static_cast<size_t>(expert * k + j)];
      }
      for (int64_t j = 0; j < k; ++j) {
        const auto i = static_cast<size_t>(t * k + j);
        EXPECT_NEAR(out[i], sum[static_cast<size_t>(j)] + (c.residual ? residual[i] : 0.0f), 1e-4)
            << "token " << t;
      }
    }
  }
}

TEST(MoeOps, AgreeWithPlainArithmetic) {
  MoeRouteParams plain{8, 2};
  MoeRouteParams sigmoid{12, 4, MoeScoring::sigmoid, true, 2.5f, 4, 2};
  MoeRouteParams by_best{12, 3, MoeScoring::softmax, false, 16.0f, 4, 2, MoeGroupRank::best};
  MoeRouteParams raw{5, 5, MoeScoring::softmax, false};
  MoeRouteParams one{3, 1};
  for (const MoeCase& c :
       {MoeCase{1, 32, 48, plain, false, true}, MoeCase{2, 24, 70, sigmoid, true, false},
        MoeCase{37, 40, 65, sigmoid, true, true}, MoeCase{9, 16, 129, raw, false, false},
        MoeCase{41, 24, 33, by_best, false, true}, MoeCase{70, 32, 40, plain, true, true},
        MoeCase{5, 24, 33, plain, false, true, true}, MoeCase{1, 40, 70, plain, false, true, true},
        MoeCase{60, 24, 65, sigmoid, false, false, true, true}, MoeCase{1, 24, 33, plain, false, true, true, true},
        MoeCase{34, 8, 16, sigmoid, true, false, true},
        MoeCase{33, 8, 8, one, false, true}}) {
    check_moe(c, std::random_device{}());
    check_moe(c, std::random_device{}(), Gates::absent);
  }
}

}  // namespace
}  // namespace tandem
