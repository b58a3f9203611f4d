#include "plan/op_bench.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <numeric>

#include "base/checked.h"
#include "graph/builder.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFewestRuns = 4, kMostRuns = 50;
constexpr double kMaxOpSeconds = 0.2;  // for one number
constexpr std::byte kPattern{0x11};    // of weights and caches: small numbers in every type
constexpr int64_t kBlock = 32;         // positions
constexpr int64_t kSmallColumns = 256;

// Heads as most models have them.
constexpr AttentionParams kAttention{
    .n_head = 16, .n_head_kv = 4, .head_dim_k = 128, .head_dim_v = 128, .scale = 0.1f};

KvConfig cache_config(const OpBench::Attention& step) {
  KvConfig kv;
  const KvShape shape{kAttention.n_head_kv, kAttention.head_dim_k, kAttention.head_dim_v};
  kv.layers.assign(step.n_layers, shape);
  kv.n_ctx = step.n_past + step.n_tokens;
  kv.block_size = kBlock;
  return kv;
}

ShapeClass shape_class(const OpBench::Attention& step) {
  ShapeClass shape;
  shape.max_tokens = step.n_tokens;
  shape.max_blocks = ceil_div(step.n_past + step.n_tokens, kBlock);
  shape.n_ctx = step.n_past + step.n_tokens;
  return shape;
}

// The table of two rows that everything begins with.
class Table {
 public:
  explicit Table(int64_t n_cols) : data_(row_bytes(DType::F32, n_cols) * 2) {
    weight_ = {"table", DType::F32, 1, 2, n_cols, data_.data()};
  }
  const Weight* weight() const { return &weight_; }

 private:
  std::vector<std::byte> data_;
  Weight weight_;
};

Graph attention_graph(const OpBench::Attention& step, const Weight* table) {
  GraphBuilder builder(shape_class(step));
  const TensorId x = builder.embed(table);
  TensorId y = kNoTensor;
  for (int layer = 0; layer < step.n_layers; ++layer) {
    builder.set_layer(layer);
    y = builder.attention(x, kAttention);
  }
  builder.set_layer(step.n_layers);
  return builder.finish(builder.gather_outputs(y));
}

// A step's inputs of one sequence that has n_past tokens behind it, all in the cache's blocks in order.
std::vector<int32_t> input_data(Input which, size_t n, int64_t n_past) {
  std::vector<int32_t> data(n, 0);
  if (which == Input::positions) std::iota(data.begin(), data.end(), static_cast<int32_t>(n_past));
  if (which == Input::block_table) std::iota(data.begin(), data.end(), 0);
  return data;
}

}  // namespace

double OpBench::products(const Matrix& matrix, int64_t n_tokens, size_t n_matrices, const Overlap& overlap) {
  const Table table(matrix.size);
  const std::vector<std::byte> data(matrix.n_bytes(), kPattern);
  std::deque<Weight> matrices;
  for (size_t i = 0; i < n_matrices; ++i) {
    matrices.push_back({"matrix", matrix.dtype, 1, matrix.size, matrix.size, data.data()});
    if (!device_.info().host_memory) continue;  // others get copies when they are uploaded
    const DevicePtr copy = alloc(data.size());
    device_.copy_in(copy, data.data(), data.size());
    matrices.back().data = copy;
  }
  ShapeClass shape;
  shape.max_tokens = n_tokens;
  GraphBuilder builder(shape);
  TensorId x = builder.embed(table.weight());
  for (const Weight& w : matrices) x = builder.linear(x, &w);
  const Graph graph = builder.finish(builder.gather_outputs(x));
  return run_seconds(graph, {n_tokens, 1}, 0, {}, overlap);
}

double OpBench::small_ops(int n_ops) {
  const Table table(kSmallColumns);
  GraphBuilder builder(ShapeClass{});
  TensorId x = builder.embed(table.weight());
  for (int i = 0; i < n_ops; ++i) x = builder.scale(x, 0.5f);
  const Graph graph = builder.finish(builder.gather_outputs(x));
  return run_seconds(graph, {1, 1}, 0, {}, {});
}

double OpBench::attention(const Attention& step) {
  const Table table(kAttention.n_head * kAttention.head_dim_k);
  const Graph graph = attention_graph(step, table.weight());
  const KvConfig config = cache_config(step);
  Device* const devices[] = {&device_};
  const std::vector<DeviceId> here(config.layers.size(), DeviceId::at(0));
  const KvCache cache(config, devices, here);
  const std::vector<std::byte> data(kv_layer_bytes(config, 0) / 2, kPattern);
  for (const KvLayer& layer : cache.layers()[0]) {
    for (const DevicePtr pool : {layer.k, layer.v}) device_.copy_in(pool, data.data(), data.size());
  }
  device_.wait(device_.record());
  return run_seconds(graph, {step.n_tokens, 1}, step.n_past, cache.layers()[0], {});
}

NodeWork OpBench::attention_work(const Attention& step) {
  const Table table(kAttention.n_head * kAttention.head_dim_k);
  const Graph graph = attention_graph(step, table.weight());
  const auto node = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                 [](const Node& n) { return std::holds_alternative<AttentionOp>(n.op); });
  return node_work(graph, *node, {.n_tokens = step.n_tokens, .n_past = step.n_past}, cache_config(step));
}

DevicePtr OpBench::alloc(size_t n_bytes) {
  allocated_.push_back(device_.alloc(n_bytes));
  return allocated_.back();
}

void OpBench::free_all() {
  for (const DevicePtr p : allocated_) device_.free(p);
  allocated_.clear();
}

double OpBench::run_seconds(const Graph& graph, const StepShape& shape, int64_t n_past,
                            std::span<const KvLayer> kv, const Overlap& overlap) {
  std::vector<DevicePtr> addresses;
  for (const Tensor& t : graph.tensors) {
    if (t.weight && device_.info().host_memory) {
      addresses.push_back(const_cast<std::byte*>(t.weight->data));  // only read
      continue;
    }
    addresses.push_back(alloc(t.weight ? device_.weight_bytes(*t.weight) : t.n_bytes()));
    if (t.weight) device_.upload(addresses.back(), *t.weight);
    if (t.role != Role::input) continue;
    const std::vector<int32_t> data = input_data(t.input, t.n_bytes() / sizeof(int32_t), n_past);
    device_.copy_in(addresses.back(), data.data(), t.n_bytes());
    device_.wait(device_.record());
  }
  std::vector<int32_t> nodes(graph.nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  std::unique_ptr<Executable> executable = device_.compile(Segment{&graph, nodes, addresses, kv});
  const double seconds = seconds_of([&] { device_.run(*executable, shape); }, overlap);
  executable.reset();
  free_all();
  return seconds;
}

double OpBench::seconds_of(const std::function<void()>& work, const Overlap& overlap) {
  std::vector<double> runs;
  double spent = 0;
  for (int i = 0; i < kFewestRuns || (i < kMostRuns && spent < kMaxOpSeconds); ++i) {
    device_.wait(device_.record());
    if (overlap.begin) overlap.begin();
    const Clock::time_point start = Clock::now();
    work();
    device_.wait(device_.record());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (overlap.end) overlap.end(seconds);
    if (i > 0) runs.push_back(seconds);  // the first one warms up
    spent += seconds;
  }
  const auto middle = runs.begin() + (runs.size() / 2);
  std::nth_element(runs.begin(), middle, runs.end());
  return *middle;
}

}  // namespace tandem
