// Layers on disk in simulated time: reads overlap with computing as far as possible, and take as long as
// predicted.
#include <gtest/gtest.h>

#include "base/error.h"
#include "exec/placed_graph.h"
#include "support/metered_host.h"
#include "support/sim_disk.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

int n_layers_of(const Segment& segment) {
  int n = 0;
  for (int32_t i : segment.nodes) {
    n += std::holds_alternative<GluOp>(segment.graph->nodes[static_cast<size_t>(i)].op);  // one per layer
  }
  return n;
}

class DiskTime : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 16;

  struct Times {
    double compute_s, read_s, copy_s;
  };

  void SetUp() override { load_both(kLayers); }

  std::unique_ptr<Session> session(const Model& model, const std::vector<Device*>& devices,
                                   const OffloadChoice& choice, const test::SimDiskOptions& disk) {
    EngineOptions o;
    o.context.n_ctx = 128;
    o.context.n_ubatch = 16;
    o.oom_ladder = false;
    o.placement = place(model.architecture(), model.weights(), devices, {}, choice);
    o.open_disk = [disk](std::vector<DiskFile> files) {
      return std::make_unique<test::SimDisk>(std::move(files), disk);
    };
    return std::make_unique<Session>(model, devices, o);
  }

  // The seconds that the planner predicts for a segment.
  std::function<double(const Segment&, const StepShape&)> run_s(const DeviceRates& rates) {
    return [this, rates](const Segment& segment, const StepShape& shape) {
      StepLoad step = load_;
      step.n_tokens = shape.n_tokens;
      double seconds = rates.stage_s;
      for (int32_t i : segment.nodes) {
        const Node& node = segment.graph->nodes[static_cast<size_t>(i)];
        seconds += node_seconds(node_work(*segment.graph, node, step, {}), rates);
      }
      return seconds;
    };
  }

  // The bytes read for a layer, and its matrices.
  std::pair<double, double> layer_bytes() {
    test::MeteredHost host;
    const auto s = session(*dense_, {&host}, {.n_disk_layers = kLayers}, {});
    double matrices = 0;
    for (const Weight& w : dense_->weights()) {
      if (w.layer == 1 && w.n_rows > 1) matrices += static_cast<double>(w.n_bytes());
    }
    return {static_cast<double>(s->placement().bytes.per_token.disk) / kLayers, matrices};
  }

  StepLoad load_;  // of the measured step
};

TEST_F(DiskTime, OnTheCpuReadsOverlapWithComputing) {
  const double read_bytes = layer_bytes().first;
  for (const Times t :
       {Times{1e-3, 1e-3, 0}, Times{1e-3, 4e-3, 0}, Times{4e-3, 1e-3, 0}, Times{2e-3, 3e-3, 0}}) {
    for (int64_t n_disk : {3, 7, 12, 16}) {
      SCOPED_TRACE(format("compute {:g} ms, read {:g} ms, on disk {}", t.compute_s * 1e3, t.read_s * 1e3,
                          static_cast<int>(n_disk)));
      test::MeteredHost host(
          {.run_s = [&](const Segment& s, const StepShape&) { return n_layers_of(s) * t.compute_s; }});
      const auto s = session(*dense_, {&host}, {.n_disk_layers = n_disk},
                             {.bytes_per_s = read_bytes / t.read_s, .host_s = &host.host_s});
      for (int i = 0; i < 3; ++i) decode_one(*s);
      const double before = host.host_s;
      decode_one(*s);
      const double seconds = host.host_s - before;
      const double longer = std::max(kLayers * t.compute_s, static_cast<double>(n_disk) * t.read_s);
      EXPECT_LE(seconds, 1.1 * (longer + t.compute_s + t.read_s));
      EXPECT_GE(seconds, 0.98 * longer);
    }
  }
}

TEST_F(DiskTime, StreamedToAGpuReadsCopiesAndComputingOverlap) {
  const auto [read_bytes, matrix_bytes] = layer_bytes();
  for (const Times t :
       {Times{1e-3, 1e-3, 1e-3}, Times{1e-3, 4e-3, 2e-3}, Times{4e-3, 1e-3, 1e-3}, Times{2e-3, 3e-3, 5e-3}}) {
    for (int64_t n_disk : {5, 10, 16}) {
      SCOPED_TRACE(format("compute {:g} ms, read {:g} ms, copy {:g} ms, on disk {}", t.compute_s * 1e3,
                          t.read_s * 1e3, t.copy_s * 1e3, static_cast<int>(n_disk)));
      test::MeteredHost host;
      test::SimDevice sim({.times = {.bus_bytes_per_s = matrix_bytes / t.copy_s,
                                     .run_s = [&](const Segment& s,
                                                  const StepShape&) { return n_layers_of(s) * t.compute_s; },
                                     .host_s = &host.host_s}});
      const auto s = session(*dense_, {&host, &sim},
                             {.n_gpu_layers = 1, .streaming = Streaming::always, .n_disk_layers = n_disk},
                             {.bytes_per_s = read_bytes / t.read_s, .host_s = &host.host_s});
      for (int i = 0; i < 3; ++i) decode_one(*s);
      const double before = host.host_s;
      decode_one(*s);
      const double seconds = host.host_s - before;
      const double longest =
          std::max({kLayers * t.compute_s, kLayers * t.copy_s, static_cast<double>(n_disk) * t.read_s});
      EXPECT_LE(seconds, 1.1 * (longest + t.compute_s + t.copy_s + t.read_s));
      EXPECT_GE(seconds, 0.98 * longest);
    }
  }
}

// The planner's prediction against the simulated time of execution, for every placement.
TEST_F(DiskTime, MatchesThePrediction) {
  const std::vector<DeviceRates> rates{{1e9, 5e11, 1e9, 2e-6, 2e-7, 3e7}, {2e9, 1e12, 4e7, 1e-6, 1e-7}};
  for (const Model* model : {dense_.get(), moe_.get()}) {
    for (const Streaming streaming : {Streaming::none, Streaming::prefill, Streaming::always}) {
      for (int64_t n_gpu_layers : {1, 6, 17}) {
        for (const CacheChoice& cache :
             {CacheChoice(CacheBesideLayers{}), CacheChoice(CacheOnHost{}), CacheChoice(PrefetchedCache{})}) {
          for (int64_t n_disk : {0, 1, 3, 8, 16}) {
            SCOPED_TRACE(std::string(streaming_name(streaming)) + " -ngl " + std::to_string(n_gpu_layers) +
                         ", cache " + std::to_string(cache.index()) + ", on disk " + std::to_string(n_disk));
            test::MeteredHost host({.run_s = run_s(rates[0])});
            test::SimDevice sim({.times = {.bus_bytes_per_s = rates[1].bus_bytes_per_s,
                                           .run_s = run_s(rates[1]),
                                           .host_s = &host.host_s}});
            const std::vector<Device*> devices{&host, &sim};
            const auto s = session(*model, devices, {n_gpu_layers, cache, 0, streaming, n_disk},
                                   {.bytes_per_s = rates[0].disk_bytes_per_s, .host_s = &host.host_s});
            for (int i = 0; i < 3; ++i) decode_one(*s);
            load_.n_past = s->n_past();
            const double before = host.host_s;
            decode_one(*s);
            const double measured = host.host_s - before;

            const SessionGraphs graphs = session_graphs(model->architecture(), ContextOptions{128, 16});
            const Placement& placement = s->placement().placement;
            const Graph graph = placed_graph(graphs.decode, placement);
            const Schedule schedule = make_schedule(graph, placement, 2);
            const double predicted = step_cost(graph, schedule, devices, rates, graphs.kv, load_).seconds;
            EXPECT_NEAR(predicted, measured, 0.05 * measured);
          }
        }
      }
    }
  }
}

// Two GPUs fill their slots at the beginning of a step, but the disk reads for one after the other: nothing
// goes on to a GPU that has not been read.
TEST_F(DiskTime, OfTwoGpusMatchesThePrediction) {
  const std::vector<DeviceRates> rates{
      {1e9, 5e11, 1e9, 2e-6, 2e-7, 3e7}, {2e9, 1e12, 4e7, 1e-6, 1e-7}, {2e9, 1e12, 4e7, 1e-6, 1e-7}};
  for (int64_t n_disk : {2, 5, 8, 11, 16}) {
    SCOPED_TRACE(n_disk);
    test::MeteredHost host({.run_s = run_s(rates[0])});
    test::SimDevice sim0(
        {.name = "SIM0",
         .times = {.bus_bytes_per_s = 4e7, .run_s = run_s(rates[1]), .host_s = &host.host_s}});
    test::SimDevice sim1(
        {.name = "SIM1",
         .times = {.bus_bytes_per_s = 4e7, .run_s = run_s(rates[2]), .host_s = &host.host_s}});
    const std::vector<Device*> devices{&host, &sim0, &sim1};
    const auto s = session(*dense_, devices,
                           {.n_gpu_layers = 1, .streaming = Streaming::always, .n_disk_layers = n_disk},
                           {.bytes_per_s = rates[0].disk_bytes_per_s, .host_s = &host.host_s});
    for (int i = 0; i < 3; ++i) decode_one(*s);
    load_.n_past = s->n_past();
    const double before = host.host_s;
    decode_one(*s);
    const double measured = host.host_s - before;
    const SessionGraphs graphs = session_graphs(dense_->architecture(), ContextOptions{128, 16});
    const Schedule schedule = make_schedule(graphs.decode, s->placement().placement, 3);
    const double predicted = step_cost(graphs.decode, schedule, devices, rates, graphs.kv, load_).seconds;
    EXPECT_NEAR(predicted, measured, 0.05 * measured);
  }
}

}  // namespace
}  // namespace tandem
