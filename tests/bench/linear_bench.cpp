// Rates of the matrix products alone: GOP/s (2 n m k operations) and GB/s of weights, for the shapes of
// tinyllama-1.1b. The weights cycle through copies larger than the CPU caches, so that decode reads memory.
//
//   linear_bench --benchmark_filter='avx512_vnni/Q4_0/.*' --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/kernels.h"
#include "cpu/ops/linear_group.h"
#include "gguf/quants.h"
#include "plan/bandwidth.h"
#include "plan/pages.h"
#include "support/evex_vnni.h"

namespace tandem::cpu {
namespace {

constexpr size_t kRotation = size_t{640} << 20;  // bytes of weights that decode cycles through

// In huge pages where the system grants them, as weights are in a long text (exec/huge_weights.h). In pages of 4 KiB a Granite Rapids,
// in a virtual machine, reads 24 GB/s where it reads 30 so.
std::byte* weight_memory() {
  static const Pages memory(kRotation);
  return memory.data();
}

// A few rows of random values, repeated.
void fill_weights(DType dtype, int64_t k) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(static_cast<size_t>(k));
  const size_t row = row_bytes(dtype, k);
  const size_t unique = std::min<size_t>(8, kRotation / row);
  for (size_t r = 0; r < unique; ++r) {
    for (float& v : values) v = normal(rng);
    quantize_row(dtype, values.data(), weight_memory() + r * row, k);
  }
  for (size_t r = unique; r < kRotation / row; ++r)
    std::memcpy(weight_memory() + r * row, weight_memory() + (r % unique) * row, row);
}

struct AlignedFloats {
  explicit AlignedFloats(size_t bytes)
      : p(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64)), std::free) {}
  std::unique_ptr<std::byte, void (*)(void*)> p;
};

void run(benchmark::State& state, const LinearKernels& kernels, DType dtype, int64_t n, int64_t m, int64_t k,
         int n_threads) {
  static std::pair<DType, int64_t> filled{DType::F64, 0};
  if (filled != std::pair{dtype, k}) fill_weights(dtype, k);
  filled = {dtype, k};
  std::vector<float> x(static_cast<size_t>(n * k)), y(static_cast<size_t>(n * m));
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(rng);
  EncodedInput input(kernels, x.data(), k, n, {dtype});
  AlignedFloats shared(input.shared_bytes());
  const size_t scratch_bytes = input.private_bytes() + max_scratch_bytes(kernels, dtype, n, k);
  AlignedFloats scratch(align64(scratch_bytes) * static_cast<size_t>(n_threads));
  ThreadPool pool(n_threads);
  const size_t matrix = row_bytes(dtype, k) * static_cast<size_t>(m);
  const size_t n_copies = n > 64 ? 1 : kRotation / matrix;
  size_t copy = 0;
  for (auto _ : state) {
    pool.run([&](Worker& worker) {
      std::byte* own = scratch.p.get() + align64(scratch_bytes) * static_cast<size_t>(worker.index());
      // As many consecutive matrices as in a layer or two.
      const int n_products = n > 64 ? 1 : 8;
      for (int i = 0; i < n_products; ++i) {
        const std::byte* encoded = input.encode(worker, n, shared.p.get(), own);
        LinearCall call;
        call.dtype = dtype;
        call.w = weight_memory() + (copy + static_cast<size_t>(i)) % n_copies * matrix;
        call.n = n, call.m = m, call.k = k;
        call.x = input.at(encoded, dtype, n);
        call.y = y.data();
        call.ldy = m;
        const int64_t rows = rows_per_item(kernels, dtype, n, m, k, worker.count());
        worker.for_each((m + rows - 1) / rows, [&](int64_t item) {
          kernels.multiply(call, item * rows, std::min((item + 1) * rows, m), own + input.private_bytes());
        });
      }
    });
    copy += n > 64 ? 1 : 8;
  }
  const double products = static_cast<double>(state.iterations()) * (n > 64 ? 1 : 8);
  state.counters["GOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(n * m * k) * products, benchmark::Counter::kIsRate);
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(matrix) * products, benchmark::Counter::kIsRate);
}

// The memory bandwidth with this number of threads: the limit for decode.
void read_memory(benchmark::State& state, int n_threads) {
  ThreadPool pool(n_threads);
  double best = 0;
  for (auto _ : state) best = std::max(best, measure_read_bandwidth(pool, kRotation));
  state.counters["GB/s"] = 1e-9 * best;
}

void run_other_way(benchmark::State& state, const LinearKernels& kernels, DType dtype, int64_t n, int64_t m, int64_t k,
                   int n_threads) {
  set_reads_in_streams(!reads_in_streams());
  run(state, kernels, dtype, n, m, k, n_threads);
  set_reads_in_streams(!reads_in_streams());
}

void register_products(const std::string& set, const LinearKernels& kernels, decltype(&run) run_product = run) {
  struct Shape {
    int64_t m, k;
  };
  for (const DTypeInfo& info : all_dtypes()) {
    if (!info.to_float) continue;
    for (const Shape& s : {Shape{2048, 2048}, Shape{5632, 2048}, Shape{2048, 5632}, Shape{4096, 14336}}) {
      for (int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 512}) {
        for (int threads : {1, 2}) {
          const std::string name = set + "/" + std::string(info.name) + "/m" + std::to_string(s.m) + "/k" +
                                   std::to_string(s.k) + "/n" + std::to_string(n) + "/t" +
                                   std::to_string(threads);
          benchmark::RegisterBenchmark(name.c_str(), run_product, std::cref(kernels), info.dtype, n, s.m, s.k,
                                       threads)
              ->UseRealTime()
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
}

void register_all() {
  for (int threads : {1, 2}) {
    benchmark::RegisterBenchmark(("read/t" + std::to_string(threads)).c_str(), read_memory, threads)
        ->UseRealTime();
  }
  for (Isa isa : supported_isas()) register_products(std::string(isa_name(isa)), cpu::kernels(isa).linear);
  // One token's weights in one stream where this CPU reads several, and the other way round.
  const std::vector<Isa>& isas = supported_isas();
  if (std::find(isas.begin(), isas.end(), Isa::avx512_vnni) != isas.end()) {
    register_products(reads_in_streams() ? "one_stream" : "four_streams", cpu::kernels(Isa::avx512_vnni).linear,
                      run_other_way);
  }
  if (test::has_evex_vnni()) register_products("evex_vnni", test::evex_vnni_products());
}

}  // namespace
}  // namespace tandem::cpu

int main(int argc, char** argv) {
  tandem::cpu::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
