// Decoding with a long cache in host memory, of several types and read sparsely (--sparse-kv): a token of a whole model, whose
// cache is filled with random rows instead of being computed. All take turns, and so does a loop that reads memory.
//
//   decode_bench MODEL.gguf [TOKENS [THREADS [CACHE...]]]
//
// CACHE: a cache type without groups, of a cache that is read as a whole, or R,K. GB: weights and cache that a token reads
// (plan/node_work.h). of reading: the median of what the read loop's bandwidth, that of its fastest part, would take over the time. of a loop:
// the same with the rate at which a plain loop over the weights reads just after a token, the faster of two such loops. Where others use the
// memory, too, its fastest part was undisturbed and no token is, and another part of it may be faster than where the weights lie.
// speedup: the first one's median over it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fp16.h"
#include "base/thread_pool.h"
#include "cpu/cpu_device.h"
#include "cpu/host_memory.h"
#include "engine/runtime.h"
#include "gguf/quants.h"
#include "plan/bandwidth.h"
#include "plan/kv_formats.h"
#include "plan/node_work.h"

namespace tandem {
namespace {

class Decoding {
 public:
  Decoding(const Model& model, int64_t n_past, int n_threads, const std::string& cache)
      : name(cache), model_(model), n_past_(n_past), host_(cpu::make_cpu_device({n_threads, n_threads})) {
    EngineOptions o;
    if (const std::optional<DType> dtype = find_cache_dtype(cache)) {
      o.context.k_dtype = o.context.v_dtype = *dtype;
    } else {
      o.context.sparse_kv = parse_sparse_kv(cache);
    }
    o.context.n_ctx = n_past + 32;
    o.context.n_ctx_given = true;
    o.offload.huge_pages_at_once = true;  // as in a long text
    runtime_ = std::make_unique<Runtime>(model, std::vector<Device*>{host_.get()}, o);
    sequence_.emplace(runtime_->pool(), runtime_->kv_config().block_size);
    fill();
    bytes_ = work(o.context);
  }

  // Decodes a token and notes how long it takes.
  void step() {
    const int32_t token = 7;
    const BatchSlice slice{&*sequence_, std::span(&token, 1), 1, {}};
    const auto begin = std::chrono::steady_clock::now();
    runtime_->step(std::span(&slice, 1), LogitsWanted::largest);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    sequence_->truncate(n_past_);
  }
  double bytes() const { return bytes_; }

  const std::string name;
  std::vector<double> seconds;  // of steps

 private:
  void fill() {
    runtime_->append_unwritten(*sequence_, n_past_);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> numbers(1 << 22);
    for (float& x : numbers) x = normal(random);
    const KvConfig& kv = runtime_->kv_config();
    std::map<DType, std::vector<std::byte>> pools;
    for (size_t layer = 0; layer < kv.layers.size(); ++layer) {
      for (const KvHalf half : {KvHalf::keys, KvHalf::values}) {
        const DType dtype = half == KvHalf::keys ? kv.format(layer).k : kv.format(layer).v;
        std::vector<std::byte>& pool = pools[dtype];
        if (pool.empty()) {
          pool.resize(row_bytes(dtype, static_cast<int64_t>(numbers.size())));
          quantize_row(dtype, numbers.data(), pool.data(), static_cast<int64_t>(numbers.size()));
        }
        const size_t n = runtime_->kv_token_bytes(layer, half) * static_cast<size_t>(kv.block_size);
        const size_t unit = row_bytes(dtype, 256);
        for (int64_t block = 0; block < n_past_ / kv.block_size; ++block) {
          // Each block begins elsewhere, so that no two are the same.
          const size_t first = random() % ((pool.size() - n) / unit) * unit;
          runtime_->write_block(*sequence_, block, layer, half, pool.data() + first);
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

// Those that every token reads whole.
std::vector<std::span<const std::byte>> weights_of(const Model& model) {
  const SessionGraphs graphs = session_graphs(model.architecture(), {});
  std::map<const std::byte*, size_t> sizes;
  for (const Node& node : graphs.decode.nodes) {
    if (std::holds_alternative<EmbedOp>(node.op) || std::holds_alternative<MoeFfnOp>(node.op)) continue;
    for (const TensorId id : inputs_of(node.op)) {
      if (id == kNoTensor) continue;
      if (const auto& weight = graphs.decode.tensor(id).weight; weight && weight->in_file) sizes[weight->data] = weight->n_bytes();
    }
  }
  std::vector<std::span<const std::byte>> spans;
  for (const auto& [data, n_bytes] : sizes) spans.emplace_back(data, n_bytes);
  return spans;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void run(int argc, char** argv) {
  constexpr int kRounds = 12, kSteps = 3;  // of each in a round
  const auto model = Model::load(argv[1]);
  const int64_t n_past = argc > 2 ? std::atoll(argv[2]) / 32 * 32 : 32768;
  const int n_threads = argc > 3 ? std::atoi(argv[3]) : physical_core_count();
  std::vector<std::string> caches(argv + std::min(argc, 4), argv + argc);
  if (caches.empty()) caches = {"f16", "q8_0", "16,2048"};
  std::vector<std::unique_ptr<Decoding>> all;
  for (const std::string& cache : caches)
    all.push_back(std::make_unique<Decoding>(*model, n_past, n_threads, cache));
  ThreadPool pool(n_threads);
  const std::vector<std::span<const std::byte>> weights = weights_of(*model);
  const ReadLoop loop(pool, weights);
  if (loop.n_chunks() == 0) throw Error(ErrorCode::usage, "the model's weights are too small to measure how fast they are read");
  const size_t n_bytes = bandwidth_buffer_bytes(cpu::host_memory_info().free_bytes);
  std::vector<std::vector<double>> shares(all.size());  // of the time that is reading
  std::vector<std::vector<double>> of_loops[2] = {shares, shares};  // in one stream, in several
  std::vector<double> bandwidths;
  for (int round = 0; round <= kRounds; ++round) {  // the first is for warming up
    if (round == 1) bandwidths.clear();
    bandwidths.push_back(measure_read_bandwidth(pool, n_bytes));
    for (size_t i = 0; i < all.size(); ++i) {
      if (round == 1) all[i]->seconds.clear();
      for (int step = 0; step < kSteps; ++step) {
        all[i]->step();
        if (round == 0) continue;
        const double took = all[i]->seconds.back();
        shares[i].push_back(all[i]->bytes() / bandwidths.back() / took);
        const double loop_bytes = static_cast<double>(loop.n_chunks()) * static_cast<double>(ReadLoop::kChunk);
        for (const bool in_streams : {false, true}) {
          const double seconds = loop.read(0, loop.n_chunks(), in_streams).seconds * all[i]->bytes() / loop_bytes;
          of_loops[in_streams ? 1 : 0][i].push_back(seconds / took);
        }
      }
    }
  }
  std::printf("memory: %.1f GB/s\n%-10s %8s %8s %8s %12s %12s %8s\n", median(bandwidths) / 1e9, "cache", "GB", "ms", "GB/s", "of reading",
              "of a loop", "speedup");
  for (size_t i = 0; i < all.size(); ++i) {
    const double s = median(all[i]->seconds);
    const double of_loop = std::min(median(of_loops[0][i]), median(of_loops[1][i]));
    std::printf("%-10s %8.3f %8.2f %8.1f %10.1f %% %10.1f %% %7.2fx\n", all[i]->name.c_str(), all[i]->bytes() / 1e9, s * 1e3,
                all[i]->bytes() / s / 1e9, 100 * median(shares[i]), 100 * of_loop, median(all[0]->seconds) / s);
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "needed: a model\n");
    return 2;
  }
  try {
    tandem::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "decode_bench: %s\n", e.what());
    return 1;
  }
}
