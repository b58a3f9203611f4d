// Divided rows in simulated time, with a simulated host whose memory feeds both the CPU and the bus: a step
// takes at most the time of all bytes at the sum of both rates, plus one layer; the planner predicts it,
// finds the share at which both finish together, and divides only if that is faster.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "exec/placed_graph.h"
#include "plan/rates.h"
#include "plan/share.h"
#include "support/sim_host.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

constexpr int64_t kBatch = 16;

// A machine: a host and a GPU that share its memory.
struct Rates {
  double cpu, bus, memory;  // bytes per second
  double cpu_ops = 1e15;

  std::vector<DeviceRates> devices() const {
    return {{cpu, cpu_ops, cpu, 0, 1e-8, 0, memory}, {1e12, 1e15, bus, 0, 1e-8}};
  }
};

class DividedTime : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 8;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_embd = 256;
    shape.n_ff = 512;
    dense_ = load("dense.gguf", shape);
    shape.n_ff = 64;
    shape.n_expert = 4;
    shape.n_expert_used = 2;
    moe_ = load("moe.gguf", shape);
  }

  // Simulated seconds of a decoded token, or of a batch.
  double measured(const Model& model, const Rates& rates, const OffloadChoice& choice, int64_t n_tokens) {
    double now = 0;
    std::vector<test::SimTraffic> traffic;
    // The time of a step among many equal ones.
    StepLoad load{n_tokens, 1, 3 * n_tokens};
    const std::vector<DeviceRates> devices = rates.devices();
    const auto work_of = [&](const Segment& segment, int32_t node, const StepShape& shape) {
      KvConfig kv;
      load.n_tokens = shape.n_tokens;
      return node_work(*segment.graph, segment.graph->nodes[static_cast<size_t>(node)], load, kv);
    };
    test::SimHost host(now, [&](const Segment& segment, const StepShape& shape, double begin) {
      double t = begin;
      for (int32_t i : segment.nodes) {
        const NodeWork work = work_of(segment, i, shape);
        t += devices[0].node_s;
        t = std::max(reads_until(t, work.n_bytes, rates, traffic), t + work.n_ops / rates.cpu_ops);
      }
      return t - begin;
    });
    test::SimDevice sim({.times = {.bus_bytes_per_s = rates.bus,
                                   .run_s =
                                       [&](const Segment& segment, const StepShape& shape) {
                                         double s = 0;
                                         for (int32_t i : segment.nodes) {
                                           s += node_seconds(work_of(segment, i, shape), devices[1]);
                                         }
                                         return s;
                                       },
                                   .host_s = &now,
                                   .traffic = &traffic}});
    EngineOptions o;
    o.context.n_ctx = 128;
    o.context.n_ubatch = kBatch;
    o.oom_ladder = false;
    o.placement = place(model.architecture(), model.weights(), {&host, &sim}, {}, choice);
    Session s(model, {&host, &sim}, o);
    const std::vector<int32_t> ids = prompt(static_cast<int>(n_tokens));
    for (int i = 0; i < 3; ++i) s.append(ids, LogitsWanted::largest);
    EXPECT_EQ(load.n_past, s.n_past());
    const double before = now;
    s.append(ids, LogitsWanted::largest);
    return now - before;
  }

  // The time when the host has read n_bytes while the buses use its memory too.
  static double reads_until(double t, double n_bytes, const Rates& rates,
                            const std::vector<test::SimTraffic>& traffic) {
    while (n_bytes > 0) {
      double until = INFINITY, pace = std::min(rates.cpu, rates.memory);
      for (const test::SimTraffic& f : traffic) {
        if (f.end <= t) continue;
        if (f.begin <= t) pace = std::min(pace, std::max(rates.memory - rates.bus, 0.05 * rates.memory));
        until = std::min(until, f.begin > t ? f.begin : f.end);
      }
      const double seconds = std::min(until - t, n_bytes / pace);
      n_bytes = seconds < until - t ? 0 : n_bytes - seconds * pace;
      t += seconds;
    }
    return t;
  }

  // The planner's inputs for a session like the measured one.
  struct Request {
    Request(const Model& model, std::vector<Device*> list, const Rates& machine)
        : devices(std::move(list)),
          rates(machine.devices()),
          graphs(session_graphs(model.architecture(), ContextOptions{128, kBatch})),
          both(graphs.both()),
          fit{model.architecture(), model.weights(), devices, flags, graphs.kv, both, rates} {}
    std::vector<Device*> devices;
    std::vector<DeviceRates> rates;
    OffloadOptions flags;
    SessionGraphs graphs;
    std::vector<const Graph*> both;
    FitRequest fit;
  };

  static double predicted(const Request& r, const OffloadChoice& choice, int64_t n_tokens) {
    const Graph& graph = n_tokens == 1 ? r.graphs.decode : r.graphs.prefill;
    return step_seconds(r.fit, placement_of(r.fit, choice), graph, {n_tokens, 1, 3 * n_tokens});
  }

  static OffloadChoice streamed(int64_t n_gpu_layers, double share = 1) {
    OffloadChoice c;
    c.n_gpu_layers = n_gpu_layers;
    c.streaming = Streaming::always;
    c.rows_prefill = c.rows_decode = share;
    return c;
  }

  static double layer_bytes(const Model& model) {
    double sum = 0;
    for (const Weight& w : model.weights())
      sum += w.layer == 1 && w.n_rows > 1 ? static_cast<double>(w.n_bytes()) : 0;
    return sum;
  }

  test::SimDevice sim_{{}};
};

TEST_F(DividedTime, AStepReadsAllBytesAtTheSumOfBothRates) {
  const double bytes = layer_bytes(*dense_);
  for (const Rates& rates : {Rates{1e9, 1e9, 4e9}, Rates{1e9, 3e9, 4e9}, Rates{3e9, 1e9, 4e9},
                             Rates{1e9, 6e9, 9e9}, Rates{2e9, 2e9, 3e9}, Rates{3e9, 2e9, 4e9}}) {
    SCOPED_TRACE(
        format("CPU {:g}, bus {:g}, memory {:g} GB/s", rates.cpu / 1e9, rates.bus / 1e9, rates.memory / 1e9));
    const Request request(*dense_, {host_.get(), &sim_}, rates);
    const RowShares shares = best_shares(request.fit, streamed(1));
    ASSERT_LT(shares.decode, 1);
    const double together = std::min(rates.cpu + rates.bus, rates.memory);
    const double bound = kLayers * bytes / together + bytes / together;
    const double seconds = measured(*dense_, rates, streamed(1, shares.decode), 1);
    EXPECT_LE(seconds, 1.1 * bound);
    EXPECT_GE(seconds, 0.98 * kLayers * bytes / together);
    // Faster than either alone.
    EXPECT_LT(seconds, measured(*dense_, rates, streamed(1), 1));
    EXPECT_LT(seconds, kLayers * bytes / rates.cpu);
  }
}

// In a batch the CPU is bound by its arithmetic.
TEST_F(DividedTime, ABatchIsBoundByTheCpusArithmetic) {
  const double bytes = layer_bytes(*dense_);
  for (const double cpu_ops : {4e9, 16e9}) {
    const Rates rates{8e9, 2e9, 10e9, cpu_ops};
    const Request request(*dense_, {host_.get(), &sim_}, rates);
    const RowShares shares = best_shares(request.fit, streamed(1));
    ASSERT_LT(shares.prefill, 1);
    ASSERT_GT(shares.prefill, shares.decode);
    // F32: an element is four bytes, and two operations for each token.
    const double cpu = std::min(rates.cpu, cpu_ops / (2 * kBatch) * 4);
    const double bound = (kLayers + 1) * bytes / (cpu + rates.bus);
    EXPECT_LE(measured(*dense_, rates, streamed(1, shares.prefill), kBatch), 1.1 * bound);
  }
}

TEST_F(DividedTime, MatchesThePrediction) {
  for (const Model* model : {dense_.get(), moe_.get()}) {
    for (const Rates& rates : {Rates{1e9, 2e9, 4e9}, Rates{2e9, 2e9, 3e9, 20e9}}) {
      const Request request(*model, {host_.get(), &sim_}, rates);
      for (const double share : {0.2, 0.5, 0.8, 1.0}) {
        for (int64_t n_gpu_layers : {1, 4}) {
          for (int64_t n_tokens : {int64_t{1}, kBatch}) {
            for (const bool kv_on_host : {false, true}) {
              SCOPED_TRACE(format("{}, CPU {:g}, share {:g}, -ngl {}, {} tokens{}",
                                  model == moe_.get() ? "moe" : "dense", rates.cpu / 1e9, share,
                                  static_cast<int>(n_gpu_layers), static_cast<int>(n_tokens),
                                  kv_on_host ? ", -nkvo" : ""));
              OffloadChoice choice = streamed(n_gpu_layers, share);
              if (kv_on_host) choice.cache = CacheOnHost{};
              const double seconds = measured(*model, rates, choice, n_tokens);
              EXPECT_NEAR(predicted(request, choice, n_tokens), seconds, 0.05 * seconds);
            }
          }
        }
      }
    }
  }
}

TEST_F(DividedTime, TheShareFoundIsTheBest) {
  for (const Rates& rates : {Rates{1e9, 2e9, 4e9}, Rates{3e9, 1e9, 5e9}}) {
    for (int64_t n_gpu_layers : {1, 4}) {
      const Request request(*dense_, {host_.get(), &sim_}, rates);
      const RowShares found = best_shares(request.fit, streamed(n_gpu_layers));
      double best = INFINITY;
      for (int parts = 1; parts < 32; ++parts) {
        best = std::min(best, predicted(request, streamed(n_gpu_layers, parts / 32.0), 1));
      }
      EXPECT_LE(predicted(request, streamed(n_gpu_layers, found.decode), 1), 1.03 * best);
    }
  }
}

TEST_F(DividedTime, MemoryBandwidthIsMeasuredWithABusyBus) {
  test::SimDevice sim({.copy_bytes_per_s = 1e9});
  const DeviceRates rates{1e10, 1e12, 1e9};
  const double memory = measure_shared_memory(*host_, sim, rates);
  EXPECT_GT(memory, 1e8);
  EXPECT_LT(memory, 1e13);
  EXPECT_GT(sim.fetched_bytes(), 0u);
  EXPECT_EQ(sim.used_bytes(), 0u);
}

TEST_F(DividedTime, DoesNotDivideWithoutAGain) {
  const auto shares = [&](const Rates& rates) {
    const Request request(*dense_, {host_.get(), &sim_}, rates);
    return best_shares(request.fit, streamed(1));
  };
  EXPECT_EQ(shares({4e9, 2e9, 4e9}).decode, 1);  // the CPU uses the whole memory bandwidth
  EXPECT_EQ(shares({1e9, 4e9, 4e9}).decode, 1);  // so does the bus
  EXPECT_EQ(shares({1e7, 4e9, 9e9}).decode, 1);  // the CPU is too slow to help
  EXPECT_EQ(shares({4e9, 1e7, 9e9}).decode, 1);  // the bus is too slow to help
  EXPECT_LT(shares({2e9, 2e9, 4e9}).decode, 1);
}

}  // namespace
}  // namespace tandem
