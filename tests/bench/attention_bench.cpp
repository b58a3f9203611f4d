// The attention kernels of every instruction set, alone, on one thread.
//
//   ISA/CACHE/decode/gGROUP/hHEAD/SET   a token behind 4096 positions: GROUP query heads of HEAD columns on a key-value
//                                       head, in calls of 256 positions as a model with 8 such heads makes them
//   ISA/CACHE/heads/gGROUP/hHEAD/SET    the same, all 8 heads in one call, where the kernels take them so
//   ISA/CACHE/prefill/hHEAD/DEPTH       a tile of queries, 4 heads of each token, behind DEPTH positions
//   read/SET                            plain sums of the same bytes
//
// SET: l3, the heads of 16 MiB again and again; memory, more than caches hold. ns: for a query and position.
// GB/s of the cache's bytes; GOP/s: 2 * (head_dim_k + head_dim_v) operations a query and position.
//
//   attention_bench --benchmark_filter='avx512_vnni/.*/decode/g4/h128/memory'
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cpu/host_memory.h"
#include "cpu/kernels.h"
#include "gguf/kivi.h"
#include "gguf/quants.h"
#include "plan/bandwidth.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kBlock = 32, kPast = 4096, kChunk = 256, kHeads = 8;

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte, Free>;
// In huge pages, as the cache is (cpu/host_memory.cpp).
Memory aligned_memory(size_t n) {
  constexpr size_t kPage = size_t{2} << 20;
  const size_t n_bytes = (n + kPage - 1) / kPage * kPage;
  void* p = std::aligned_alloc(kPage, n_bytes);
  madvise(p, n_bytes, MADV_HUGEPAGE);
  return Memory(static_cast<std::byte*>(p));
}

// Blocks of one head's keys or values, the first few random and then the same again.
struct Pool {
  size_t row_bytes, block_bytes;
  int64_t n_blocks;
  Memory memory;

  enum class Half { keys, values };
  Pool(Half half, DType dtype, int64_t head_dim, size_t n_bytes)
      : row_bytes(tandem::row_bytes(dtype, head_dim)),
        block_bytes(row_bytes * static_cast<size_t>(kBlock)),
        n_blocks(static_cast<int64_t>(n_bytes / block_bytes)),
        memory(aligned_memory(block_bytes * static_cast<size_t>(n_blocks))) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(kBlock * head_dim));
    for (float& v : x) v = normal(rng);
    if (is_kivi(dtype) && half == Half::keys) {
      quantize_key_group(dtype, x.data(), memory.get(), head_dim);
    } else {
      quantize_row(dtype, x.data(), memory.get(), kBlock * head_dim);
    }
    for (int64_t b = 1; b < n_blocks; ++b)
      std::memcpy(memory.get() + static_cast<size_t>(b) * block_bytes, memory.get(), block_bytes);
  }
};

// Queries at the end of some positions, and what a call needs beside the cache.
struct Tile {
  AttentionCall call;
  std::vector<float> q, acc, sum, max;
  std::vector<const float*> rows;
  std::vector<int32_t> positions, table, open_of;  // open_of: all blocks of a grouped cache are closed
  Memory scratch;

  Tile(const AttentionKernels& kernels, const Pool& k, const Pool& v, DType dtype, int64_t head_dim,
       int64_t n_tokens, int64_t group, int64_t n_positions) {
    const size_t n = static_cast<size_t>(n_tokens * group);
    std::mt19937 rng(2);
    std::normal_distribution<float> normal;
    q.resize(n * static_cast<size_t>(head_dim));
    for (float& x : q) x = normal(rng);
    acc.resize(q.size()), sum.resize(n), max.resize(n);
    for (size_t i = 0; i < n; ++i) {
      rows.push_back(q.data() + i * static_cast<size_t>(head_dim));
      positions.push_back(static_cast<int32_t>(n_positions - n_tokens + static_cast<int64_t>(i) / group));
    }
    for (int64_t i = 0; i < n_positions / kBlock + 2; ++i)
      table.push_back(static_cast<int32_t>(i % k.n_blocks));
    call.k_dtype = call.v_dtype = dtype;
    call.head_dim_k = call.head_dim_v = head_dim;
    call.block_size = kBlock;
    call.k = k.memory.get(), call.v = v.memory.get();
    call.k_block_stride = k.block_bytes, call.v_block_stride = v.block_bytes;
    call.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    call.n_queries = static_cast<int64_t>(n);
    call.q = rows.data(), call.positions = positions.data();
    call.kv_end = n_positions;
    call.acc = acc.data(), call.sum = sum.data(), call.max = max.data();
    call.block_table = table.data();
    open_of.assign(static_cast<size_t>(k.n_blocks), -1);
    call.open_of = open_of.data();
    scratch = aligned_memory(kernels.scratch_bytes(call));
  }
};

void report(benchmark::State& state, double n_pairs, double n_bytes, int64_t head_dim) {
  const double n = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["ns"] = Counter(1e-9 * n_pairs * n, Counter::kIsRate | Counter::kInvert);
  state.counters["GB/s"] = Counter(1e-9 * n_bytes * n, Counter::kIsRate);
  state.counters["GOP/s"] = Counter(4e-9 * static_cast<double>(head_dim) * n_pairs * n, Counter::kIsRate);
}

void decode(benchmark::State& state, Isa isa, DType dtype, int64_t group, int64_t head_dim, size_t set) {
  const AttentionKernels& kernels = cpu::kernels(isa).attention;
  const Pool k(Pool::Half::keys, dtype, head_dim, set / 2), v(Pool::Half::values, dtype, head_dim, set / 2);
  Tile tile(kernels, k, v, dtype, head_dim, 1, group, kPast);
  // All heads of a layer in turn, whose blocks lie between each other's, and all layers.
  const int64_t per_head = kPast / kBlock, n_beside = std::min(kHeads, k.n_blocks / per_head);
  const int64_t n_heads = k.n_blocks / per_head / n_beside * n_beside;
  std::vector<int32_t> table(static_cast<size_t>(per_head));
  std::iota(table.begin(), table.end(), 0);
  tile.call.block_table = table.data();
  tile.call.k_block_stride = static_cast<size_t>(n_beside) * k.block_bytes;
  tile.call.v_block_stride = static_cast<size_t>(n_beside) * v.block_bytes;
  int64_t head = 0;
  for (auto _ : state) {
    const auto first_block = static_cast<size_t>(head / n_beside * n_beside * per_head + head % n_beside);
    tile.call.k = k.memory.get() + first_block * k.block_bytes;
    tile.call.v = v.memory.get() + first_block * v.block_bytes;
    for (int64_t first = 0; first < kPast; first += kChunk) {
      tile.call.kv_begin = first, tile.call.kv_end = first + kChunk;
      tile.call.kv_then = kPast - tile.call.kv_end;
      kernels.attend(tile.call, tile.scratch.get());
    }
    head = (head + 1) % n_heads;
  }
  report(state, static_cast<double>(group * kPast), static_cast<double>((k.row_bytes + v.row_bytes) * kPast),
         head_dim);
}

void decode_heads(benchmark::State& state, Isa isa, DType dtype, int64_t group, int64_t head_dim,
                  size_t set) {
  const AttentionKernels& kernels = cpu::kernels(isa).attention;
  const Pool k(Pool::Half::keys, dtype, head_dim, set / 2), v(Pool::Half::values, dtype, head_dim, set / 2);
  const int64_t per_head = kPast / kBlock, n_layers = std::max<int64_t>(1, k.n_blocks / per_head / kHeads);
  std::vector<std::unique_ptr<Tile>> tiles;
  std::vector<AttentionCall> calls;
  for (int64_t h = 0; h < kHeads; ++h) {
    tiles.push_back(std::make_unique<Tile>(kernels, k, v, dtype, head_dim, 1, group, kPast));
    for (int32_t& b : tiles.back()->table) b = static_cast<int32_t>(b % (k.n_blocks / kHeads));
    calls.push_back(tiles.back()->call);
    calls.back().k_block_stride = static_cast<size_t>(kHeads) * k.block_bytes;
    calls.back().v_block_stride = static_cast<size_t>(kHeads) * v.block_bytes;
  }
  const Memory scratch = aligned_memory(static_cast<size_t>(kHeads) * kernels.scratch_bytes(calls[0]));
  int64_t layer = 0;
  for (auto _ : state) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto first_block = static_cast<size_t>(layer * kHeads * per_head + h);
      calls[static_cast<size_t>(h)].k = k.memory.get() + first_block * k.block_bytes;
      calls[static_cast<size_t>(h)].v = v.memory.get() + first_block * v.block_bytes;
    }
    for (int64_t first = 0; first < kPast; first += kChunk) {
      for (AttentionCall& call : calls) {
        call.kv_begin = first, call.kv_end = first + kChunk;
        call.kv_then = kPast - call.kv_end;
      }
      kernels.attend_heads(calls.data(), kHeads, scratch.get());
    }
    layer = (layer + 1) % n_layers;
  }
  const double n_positions = static_cast<double>(kHeads * kPast);
  report(state, static_cast<double>(group) * n_positions,
         static_cast<double>(k.row_bytes + v.row_bytes) * n_positions, head_dim);
}
bool takes_heads(Isa isa, DType dtype, int64_t group, int64_t head_dim) {
  const AttentionKernels& kernels = cpu::kernels(isa).attention;
  AttentionCall call;
  call.k_dtype = call.v_dtype = dtype;
  call.head_dim_k = call.head_dim_v = head_dim;
  call.block_size = kBlock;
  call.n_queries = group;
  return kernels.takes_heads && kernels.takes_heads(call);
}

void prefill(benchmark::State& state, Isa isa, DType dtype, int64_t head_dim, int64_t depth) {
  constexpr int64_t kGroup = 4;
  const AttentionKernels& kernels = cpu::kernels(isa).attention;
  const size_t row = row_bytes(dtype, head_dim);
  const int64_t n_tokens = kernels.max_queries / kGroup;
  const size_t n_rows = static_cast<size_t>(depth + n_tokens + 2 * kBlock);
  const Pool k(Pool::Half::keys, dtype, head_dim, n_rows * row),
      v(Pool::Half::values, dtype, head_dim, n_rows * row);
  Tile tile(kernels, k, v, dtype, head_dim, n_tokens, kGroup, depth + n_tokens);
  for (auto _ : state) kernels.attend(tile.call, tile.scratch.get());
  double n_pairs = 0;
  for (const int32_t p : tile.positions) n_pairs += p + 1;
  report(state, n_pairs,
         static_cast<double>((k.row_bytes + v.row_bytes) * static_cast<size_t>(tile.call.kv_end)), head_dim);
}

void read(benchmark::State& state, size_t set) {
  const Memory memory = aligned_memory(set);
  std::memset(memory.get(), 1, set);
  for (auto _ : state) {
    const auto* p = reinterpret_cast<const uint64_t*>(memory.get());
    uint64_t sum[16] = {};
    for (size_t i = 0; i < set / 8; i += 16) {
      for (size_t j = 0; j < 16; ++j) sum[j] += p[i + j];
    }
    benchmark::DoNotOptimize(sum);
  }
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(set) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void register_all() {
  struct Set {
    const char* name;
    size_t n_bytes;
  };
  const Set sets[] = {{"l3", size_t{16} << 20},
                      {"memory", bandwidth_buffer_bytes(cpu::host_memory_info().free_bytes)}};
  for (const Set& set : sets)
    benchmark::RegisterBenchmark((std::string("read/") + set.name).c_str(), read, set.n_bytes);
  for (const Isa isa : supported_isas()) {
    for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::Q8_0, DType::Q5_1, DType::Q5_0,
                              DType::Q4_1, DType::Q4_0, DType::IQ4_NL, DType::KIVI4, DType::KIVI2}) {
      const std::string name = std::string(isa_name(isa)) + "/" + std::string(dtype_name(dtype));
      for (const int64_t head_dim : {64, 128, 256}) {
        const std::string head = "/h" + std::to_string(head_dim) + "/";
        for (const int64_t group : {1, 4, 8}) {
          for (const Set& set : sets)
            benchmark::RegisterBenchmark(
                (name + "/decode/g" + std::to_string(group) + head + set.name).c_str(), decode, isa, dtype,
                group, head_dim, set.n_bytes);
          if (!takes_heads(isa, dtype, group, head_dim)) continue;
          for (const Set& set : sets)
            benchmark::RegisterBenchmark(
                (name + "/heads/g" + std::to_string(group) + head + set.name).c_str(), decode_heads, isa,
                dtype, group, head_dim, set.n_bytes);
        }
        for (const int64_t depth : {0, 4096, 16384})
          benchmark::RegisterBenchmark((name + "/prefill" + head + std::to_string(depth)).c_str(), prefill,
                                       isa, dtype, head_dim, depth);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cpu

int main(int argc, char** argv) {
  tandem::cpu::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
