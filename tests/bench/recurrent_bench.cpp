// The speed of recurrent layers on the CPU, beside an attention layer of the same width: projections, convolution,
// recurrence, norm and gate, and the output's projection, with weights in Q4_K.
//
//   LAYER/TOKENS/tTHREADS   a step of so many tokens of one sequence, with 4096 tokens before it
//   OP/...                  the op of the layer that mixes tokens, alone
//
// GB/s and GOP/s: the bytes and operations of the nodes (plan/node_work.h) over the time. floor: the share of the time
// that they need at least, op by op: to read the bytes at the bandwidth of memory, or for the operations at the peak of
// fused multiplications and additions (of products with Q4_K: at the speed that the planner measured), whichever is
// longer. States that fit a cache are read faster than memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <numeric>
#include <unordered_map>

#include "cpu/cpu_device.h"
#include "graph/builder.h"
#include "plan/node_work.h"
#include "plan/rates.h"

namespace tandem {
namespace {

constexpr int64_t kWidth = 2048, kPast = 4096, kBlock = 32, kConv = 4;
constexpr float kEps = 1e-6f;

enum class Part { layer, op };
enum class Kind { attention, delta_net, mamba2 };

// A graph of one layer and the memory for it. Sizes of Qwen3-Next; Mamba-2 with as many numbers in its state.
class Layer {
 public:
  Layer(Device& device, Kind kind, Part part, int64_t n_tokens)
      : device_(device), part_(part), load_{n_tokens, 1, kPast}, builder_(shape(n_tokens)) {
    x_ = builder_.embed(floats(2, kWidth, 0.01f));
    builder_.set_layer(0);
    TensorId y = kNoTensor;
    switch (kind) {
      case Kind::attention: y = attention(); break;
      case Kind::delta_net: y = delta_net(); break;
      case Kind::mamba2: y = mamba2(); break;
    }
    builder_.set_layer(1);
    graph_ = builder_.finish(builder_.gather_outputs(y));
    compile();
  }
  ~Layer() {
    for (const DevicePtr p : memory_) device_.free(p);
  }

  void run() { device_.run(*executable_, {load_.n_tokens, 1}); }
  struct Floor {
    double seconds = 0, n_bytes = 0, n_ops = 0;
  };
  Floor floor(const DeviceRates& rates) const {
    Floor sum;
    for (const int32_t node : nodes_) {
      const NodeWork work = node_work(graph_, graph_.nodes[static_cast<size_t>(node)], load_, kv_);
      sum.seconds += std::max(work.n_bytes / rates.memory(), work.compute_seconds(rates));
      sum.n_bytes += work.n_bytes;
      sum.n_ops += work.n_ops;
    }
    return sum;
  }

 private:
  static ShapeClass shape(int64_t n_tokens) {
    ShapeClass shape;
    shape.max_tokens = n_tokens;
    shape.n_ctx = kPast + n_tokens;
    shape.max_blocks = (shape.n_ctx + kBlock - 1) / kBlock;
    return shape;
  }

  TensorId attention() {
    const AttentionParams params{16, 2, 256, 256, 0.0625f};
    const int64_t n_q = params.n_head * params.head_dim_k, n_kv = params.n_head_kv * params.head_dim_k;
    kv_.layers = {{params.n_head_kv, params.head_dim_k, params.head_dim_v}};
    const TensorId q = linear(x_, n_q), k = linear(x_, n_kv), v = linear(x_, n_kv), gate = linear(x_, n_q);
    builder_.kv_write(k, v);
    const TensorId y = builder_.attention(q, params);
    return linear(builder_.gate(y, gate, GateKind::sigmoid), kWidth);
  }

  TensorId delta_net() {
    const DeltaRuleParams p{16, 32, 128, 128};
    const int64_t n_v = p.n_head_v * p.head_dim_v;
    kv_.layers = {{0, 0, 0, (kConv - 1) * p.n_qkv(), p.n_head_v * p.head_dim_k * p.head_dim_v}};
    const TensorId qkv = linear(x_, p.n_qkv()), z = linear(x_, n_v);
    const TensorId beta = linear(x_, p.n_head_v), alpha = linear(x_, p.n_head_v);
    const TensorId conv = builder_.causal_conv(qkv, floats(p.n_qkv(), kConv, 0.2f));
    const TensorId y =
        builder_.delta_rule(conv, beta, alpha, p, floats(1, p.n_head_v, -0.1f), floats(1, p.n_head_v, 0.1f));
    return linear(builder_.gate(norm(y, 1, p.head_dim_v), z, GateKind::silu), kWidth);
  }

  TensorId mamba2() {
    const SsmScanParams p{64, 64, 1, 128};
    kv_.layers = {{0, 0, 0, (kConv - 1) * p.n_xbc(), p.n_inner() * p.n_state}};
    const TensorId z = linear(x_, p.n_inner()), xbc = linear(x_, p.n_xbc()), dt = linear(x_, p.n_head);
    const TensorId conv =
        builder_.causal_conv(xbc, floats(p.n_xbc(), kConv, 0.2f), floats(1, p.n_xbc(), 0.1f));
    const TensorId y = builder_.ssm_scan(
        conv, dt, p, {floats(1, p.n_head, -0.1f), floats(1, p.n_head, 0.1f), floats(1, p.n_head, 1.0f)});
    return linear(norm(builder_.gate(y, z, GateKind::silu), 1, p.n_inner()), kWidth);
  }

  TensorId norm(TensorId x, int64_t n_rows, int64_t group) {
    return builder_.norm(x, {NormKind::rms, kEps, group}, floats(n_rows, group, 1.0f));
  }
  TensorId linear(TensorId x, int64_t n_rows) {
    const int64_t n_cols = builder_columns(x);
    data_.emplace_back(row_bytes(DType::Q4_K, n_cols) * static_cast<size_t>(n_rows), std::byte{0x11});
    weights_.push_back({"matrix", DType::Q4_K, 1, n_rows, n_cols, data_.back().data()});
    const TensorId y = builder_.linear(x, &weights_.back());
    columns_[y] = n_rows;
    return y;
  }
  // The results of other ops than linear() have as many columns as the layer's inner width.
  int64_t builder_columns(TensorId x) const {
    const auto found = columns_.find(x);
    return found != columns_.end() ? found->second : x == x_ ? kWidth : 4096;
  }
  const Weight* floats(int64_t n_rows, int64_t n_cols, float value) {
    data_.emplace_back(static_cast<size_t>(n_rows * n_cols) * sizeof(float));
    std::fill_n(reinterpret_cast<float*>(data_.back().data()), n_rows * n_cols, value);
    weights_.push_back({"floats", DType::F32, 1, n_rows, n_cols, data_.back().data()});
    return &weights_.back();
  }

  bool is_measured(const Op& op) const {
    if (part_ == Part::layer) return true;
    return std::holds_alternative<AttentionOp>(op) || std::holds_alternative<DeltaRuleOp>(op) ||
           std::holds_alternative<SsmScanOp>(op);
  }

  DevicePtr alloc(size_t n_bytes) {
    memory_.push_back(device_.alloc(n_bytes));
    std::fill_n(memory_.back(), n_bytes, std::byte{0});
    return memory_.back();
  }

  void compile() {
    kv_.n_ctx = kPast + load_.n_tokens;
    kv_.block_size = kBlock;
    kv_.n_state_slots = 2;
    KvLayer cache = kv_layer_shape(kv_, 0);
    const auto n_rows = static_cast<size_t>(cache.n_blocks * cache.block_size * cache.n_head_kv);
    cache.k = alloc(row_bytes(cache.k_dtype, cache.head_dim_k) * n_rows);
    cache.v = alloc(row_bytes(cache.v_dtype, cache.head_dim_v) * n_rows);
    cache_ = {cache, {}};
    for (const Tensor& t : graph_.tensors) {
      addresses_.push_back(t.weight ? const_cast<std::byte*>(t.weight->data) : alloc(t.n_bytes()));
      if (t.role != Role::input) continue;
      auto* values = reinterpret_cast<int32_t*>(addresses_.back());
      const auto n = static_cast<int64_t>(t.n_bytes() / sizeof(int32_t));
      if (t.input == Input::positions || t.input == Input::slots) std::iota(values, values + n, kPast);
      if (t.input == Input::block_table || t.input == Input::states) std::iota(values, values + n, 0);
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (is_measured(graph_.nodes[i].op)) nodes_.push_back(static_cast<int32_t>(i));
    }
    executable_ = device_.compile(Segment{&graph_, nodes_, addresses_, cache_});
  }

  Device& device_;
  Part part_;
  StepLoad load_;
  GraphBuilder builder_;
  std::deque<std::vector<std::byte>> data_;
  std::deque<Weight> weights_;
  std::unordered_map<TensorId, int64_t> columns_;
  TensorId x_ = kNoTensor;
  KvConfig kv_;
  Graph graph_;
  std::vector<DevicePtr> memory_, addresses_;
  std::vector<KvLayer> cache_;
  std::vector<int32_t> nodes_;
  std::unique_ptr<Executable> executable_;
};

// Rounds of ten fused multiplications and additions that do not depend on each other, nor begin with the same values: a
// compiler would do equal ones once.
template <class V>
__attribute__((always_inline)) inline void fma_rounds(int64_t n) {
  const V one = V{} + 1.0f, small = V{} + 1e-3f;
  V a = one, b = a + one, c = b + one, d = c + one, e = d + one;
  V f = e + one, g = f + one, h = g + one, i = h + one, j = i + one;
  for (; n > 0; --n) {
    a = a * one + small, b = b * one + small, c = c * one + small, d = d * one + small, e = e * one + small;
    f = f * one + small, g = g * one + small, h = h * one + small, i = i * one + small, j = j * one + small;
    asm volatile("" ::: "memory");
  }
  const V sum = a + b + c + d + e + f + g + h + i + j;
  float first = sum[0];
  benchmark::DoNotOptimize(first);
}
__attribute__((target("avx512f"), noinline)) void fma_avx512(int64_t n) {
  typedef float V __attribute__((vector_size(64)));
  fma_rounds<V>(n);
}
__attribute__((target("avx2,fma"), noinline)) void fma_avx2(int64_t n) {
  typedef float V __attribute__((vector_size(32)));
  fma_rounds<V>(n);
}

// Of one thread.
double peak_ops_per_s() {
  constexpr int64_t kRounds = 4000000;
  const bool wide = cpu::best_isa() >= cpu::Isa::avx512;
  const auto start = std::chrono::steady_clock::now();
  wide ? fma_avx512(kRounds) : fma_avx2(kRounds);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return 2.0 * 10 * (wide ? 16 : 8) * kRounds / seconds.count();
}

DeviceRates rates_of(Device& device, int n_threads) {
  static std::map<int, DeviceRates> known;
  const auto [it, added] = known.try_emplace(n_threads);
  if (added) {
    it->second = measure_rates(device);
    it->second.attention_ops_per_s = it->second.single_attention_ops_per_s = peak_ops_per_s() * n_threads;
  }
  return it->second;
}

void run(benchmark::State& state, Kind kind, Part part, int64_t n_tokens, int n_threads) {
  cpu::CpuOptions options;
  options.n_threads = options.n_threads_batch = n_threads;
  const auto device = cpu::make_cpu_device(options);
  const DeviceRates rates = rates_of(*device, n_threads);
  Layer layer(*device, kind, part, n_tokens);
  for (auto _ : state) layer.run();
  const Layer::Floor floor = layer.floor(rates);
  const auto rate = [&](double of_one) {
    return benchmark::Counter(of_one * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  };
  state.counters["floor"] = rate(floor.seconds);
  state.counters["GB/s"] = rate(1e-9 * floor.n_bytes);
  state.counters["GOP/s"] = rate(1e-9 * floor.n_ops);
}

void register_all() {
  const std::pair<Kind, const char*> kinds[] = {
      {Kind::attention, "attention"}, {Kind::delta_net, "delta_net"}, {Kind::mamba2, "mamba2"}};
  for (const Part part : {Part::layer, Part::op}) {
    for (const auto& [kind, name] : kinds) {
      for (const int64_t n_tokens : {1, 512}) {
        for (const int threads : {1, 2}) {
          const std::string full = std::string(part == Part::op ? "op/" : "layer/") + name + "/" +
                                   std::to_string(n_tokens) + "/t" + std::to_string(threads);
          benchmark::RegisterBenchmark(full.c_str(), run, kind, part, n_tokens, threads)
              ->UseRealTime()
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  tandem::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
