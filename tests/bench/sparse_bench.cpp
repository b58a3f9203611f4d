// Decoding with a long cache in host memory, read as a whole and sparsely (--sparse-kv): a token of a whole model, whose cache
// is filled with random rows instead of being computed.
//
//   sparse_bench MODEL.gguf [TOKENS [THREADS [R,K...]]]
//
// GB/s: the bytes of weights and caches (plan/node_work.h) over the time. speedup: of the time without sparse reads.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/fp16.h"
#include "base/thread_pool.h"
#include "cpu/cpu_device.h"
#include "engine/runtime.h"
#include "plan/kv_formats.h"
#include "plan/node_work.h"

namespace tandem {
namespace {

class Decoding {
 public:
  Decoding(const Model& model, int64_t n_past, int n_threads, const SparseReads& reads)
      : model_(model), n_past_(n_past), host_(cpu::make_cpu_device({n_threads, n_threads})) {
    EngineOptions o;
    o.context.n_ctx = n_past + 32;
    o.context.n_ctx_given = true;
    o.context.sparse_kv = reads;
    runtime_ = std::make_unique<Runtime>(model, std::vector<Device*>{host_.get()}, o);
    sequence_.emplace(runtime_->pool(), runtime_->kv_config().block_size);
    fill();
    bytes_ = work(o.context);
  }

  void step() {
    const int32_t token = 7;
    const BatchSlice slice{&*sequence_, std::span(&token, 1), 1, {}};
    benchmark::DoNotOptimize(runtime_->step(std::span(&slice, 1), LogitsWanted::largest));
    sequence_->truncate(n_past_);
  }
  double bytes() const { return bytes_; }

 private:
  void fill() {
    runtime_->append_unwritten(*sequence_, n_past_);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<fp16_t> pool(1 << 22);  // each block begins elsewhere in it, so that no two rows are the same
    for (fp16_t& x : pool) x = fp32_to_fp16(normal(random));
    const KvConfig& kv = runtime_->kv_config();
    for (size_t layer = 0; layer < kv.layers.size(); ++layer) {
      for (const KvHalf half : {KvHalf::keys, KvHalf::values}) {
        const size_t n =
            runtime_->kv_token_bytes(layer, half) / sizeof(fp16_t) * static_cast<size_t>(kv.block_size);
        for (int64_t block = 0; block < n_past_ / kv.block_size; ++block) {
          const fp16_t* rows = pool.data() + random() % (pool.size() - n);
          runtime_->write_block(*sequence_, block, layer, half, reinterpret_cast<const std::byte*>(rows));
        }
      }
    }
  }
  double work(const ContextOptions& context) const {
    const SessionGraphs graphs = session_graphs(model_.architecture(), context);
    double n_bytes = 0;
    for (const Node& node : graphs.decode.nodes)
      n_bytes += node_work(graphs.decode, node, {.n_past = n_past_}, graphs.kv).n_bytes;
    return n_bytes;
  }

  const Model& model_;
  int64_t n_past_;
  std::unique_ptr<Device> host_;
  std::unique_ptr<Runtime> runtime_;
  std::optional<KvSequence> sequence_;
  double bytes_ = 0;
};

double run(benchmark::State& state, const Model& model, int64_t n_past, int n_threads,
           const SparseReads& reads) {
  Decoding decoding(model, n_past, n_threads, reads);
  decoding.step();
  int64_t n = 0;
  const auto begin = std::chrono::steady_clock::now();
  for ([[maybe_unused]] auto _ : state) {
    decoding.step();
    ++n;
  }
  const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
                   static_cast<double>(n);
  state.counters["GB/s"] = decoding.bytes() / s / 1e9;
  state.counters["GB"] = decoding.bytes() / 1e9;
  return s;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc < 2) {
    std::fprintf(stderr, "needed: a model\n");
    return 2;
  }
  const auto model = tandem::Model::load(argv[1]);
  const int64_t n_past = argc > 2 ? std::atoll(argv[2]) / 32 * 32 : 32768;
  const int n_threads = argc > 3 ? std::atoi(argv[3]) : tandem::physical_core_count();
  std::vector<std::string> reads(argv + std::min(argc, 4), argv + argc);
  if (reads.empty()) reads = {"16,2048"};
  double dense = 0;
  benchmark::RegisterBenchmark(
      "dense", [&](benchmark::State& s) { dense = tandem::run(s, *model, n_past, n_threads, {}); })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(10);
  for (const std::string& each : reads) {
    benchmark::RegisterBenchmark(each.c_str(),
                                 [&](benchmark::State& s) {
                                   const double sparse = tandem::run(s, *model, n_past, n_threads,
                                                                     tandem::parse_sparse_kv(each));
                                   s.counters["speedup"] = dense / sparse;
                                 })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond)
        ->Iterations(10);
  }
  benchmark::RunSpecifiedBenchmarks();
}
