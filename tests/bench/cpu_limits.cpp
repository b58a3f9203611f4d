// What this machine can do at most, for comparing with what programs reach in the same minute: JSON on one line.
//
//   cpu_limits [THREADS]
//
//   read_gb_s   plain loads of memory that no cache holds, by all threads
//   f32, int8, bf16   multiply-adds on random numbers in registers, by all threads; 10^9 operations per second, two for each
//               multiply-add, and the instructions that they are of. bf16 only where there are such instructions.
#include <immintrin.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/host_memory.h"
#include "cpu/isa.h"
#include "plan/bandwidth.h"

namespace tandem::cpu {
namespace {

// Random numbers between -1 and 1 in some type: sums stay finite.
struct alignas(64) Numbers {
  float f32[256];
  int8_t int8[1024];
  uint16_t bf16[512];

  Numbers() {
    std::mt19937 rng(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& x : f32) x = uniform(rng);
    for (int8_t& x : int8) x = static_cast<int8_t>(rng());
    for (uint16_t& x : bf16) {
      const float value = uniform(rng);
      uint32_t bits;
      __builtin_memcpy(&bits, &value, sizeof bits);
      x = static_cast<uint16_t>(bits >> 16);
    }
  }
};

constexpr int kSums = 12;  // independent, so that latencies do not count

// A name each, because arrays may stay in memory. The compiler may not see that nobody reads them.
#define TANDEM_FOR_SUMS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define TANDEM_DECLARE(i) auto sum##i = zero;
#define TANDEM_STEP(i)         \
  sum##i = STEP(sum##i, a, b); \
  __asm__ volatile("" : "+v"(sum##i));
#define TANDEM_RUN                  \
  TANDEM_FOR_SUMS(TANDEM_DECLARE)   \
  for (int64_t i = 0; i < n; ++i) { \
    TANDEM_FOR_SUMS(TANDEM_STEP)    \
  }

__attribute__((target("avx2,fma"))) void f32_avx2(const Numbers& x, int64_t n) {
  const __m256 zero = _mm256_setzero_ps(), a = _mm256_load_ps(x.f32), b = _mm256_load_ps(x.f32 + 8);
#define STEP(sum, a, b) _mm256_fmadd_ps(a, b, sum)
  TANDEM_RUN
#undef STEP
}
__attribute__((target("avx512f"))) void f32_avx512(const Numbers& x, int64_t n) {
  const __m512 zero = _mm512_setzero_ps(), a = _mm512_load_ps(x.f32), b = _mm512_load_ps(x.f32 + 16);
#define STEP(sum, a, b) _mm512_fmadd_ps(a, b, sum)
  TANDEM_RUN
#undef STEP
}
__attribute__((target("avx512f,avx512vnni"))) void int8_vnni(const Numbers& x, int64_t n) {
  const __m512i zero = _mm512_setzero_si512();
  const __m512i a = _mm512_load_si512(x.int8), b = _mm512_load_si512(x.int8 + 64);
#define STEP(sum, a, b) _mm512_dpbusd_epi32(sum, a, b)
  TANDEM_RUN
#undef STEP
}
__attribute__((target("avx512f,avx512bf16"))) void bf16_pairs(const Numbers& x, int64_t n) {
  const __m512 zero = _mm512_setzero_ps();
  const auto a = (__m512bh)_mm512_load_si512(x.bf16), b = (__m512bh)_mm512_load_si512(x.bf16 + 32);
#define STEP(sum, a, b) _mm512_dpbf16_ps(sum, a, b)
  TANDEM_RUN
#undef STEP
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
// Four sums of two by two factors.
#define TANDEM_TILES(MULTIPLY, DATA)                 \
  static constexpr TileConfig kConfig;               \
  __asm__ volatile("ldtilecfg %0" : : "m"(kConfig)); \
  _tile_loadd(4, DATA, 64);                          \
  _tile_loadd(5, DATA, 64);                          \
  _tile_loadd(6, DATA, 64);                          \
  _tile_loadd(7, DATA, 64);                          \
  _tile_zero(0);                                     \
  _tile_zero(1);                                     \
  _tile_zero(2);                                     \
  _tile_zero(3);                                     \
  for (int64_t i = 0; i < n; ++i) {                  \
    MULTIPLY(0, 4, 6);                               \
    MULTIPLY(1, 4, 7);                               \
    MULTIPLY(2, 5, 6);                               \
    MULTIPLY(3, 5, 7);                               \
  }                                                  \
  _tile_release();
__attribute__((target("amx-tile,amx-int8"))) void int8_tiles(const Numbers& x, int64_t n) {
  TANDEM_TILES(_tile_dpbssd, x.int8)
}
__attribute__((target("amx-tile,amx-bf16"))) void bf16_tiles(const Numbers& x, int64_t n) {
  TANDEM_TILES(_tile_dpbf16ps, x.bf16)
}

struct Peak {
  std::string name, instructions;
  void (*run)(const Numbers& x, int64_t n);
  double operations;  // of a step
};

std::vector<Peak> peaks() {
  const CpuFeatures has = cpu_features();
  const Isa best = best_isa();
  std::vector<Peak> all;
  if (has.avx512) {
    all.push_back({"f32", "AVX-512", f32_avx512, 2.0 * 16 * kSums});
  } else if (has.avx2_fma) {
    all.push_back({"f32", "AVX2", f32_avx2, 2.0 * 8 * kSums});
  }
  if (best == Isa::avx512_amx) {
    all.push_back({"int8", "AMX", int8_tiles, 2.0 * 16 * 16 * 64 * 4});
    all.push_back({"bf16", "AMX", bf16_tiles, 2.0 * 16 * 16 * 32 * 4});
  }
  if (has.avx512_vnni) all.push_back({"int8", "AVX-512 VNNI", int8_vnni, 2.0 * 64 * kSums});
  if (has.avx512_bf16) all.push_back({"bf16", "AVX-512 BF16", bf16_pairs, 2.0 * 32 * kSums});
  return all;
}

// 10^9 operations per second of all workers: the best of some tries.
double measure(ThreadPool& pool, const Peak& peak) {
  using Clock = std::chrono::steady_clock;
  static const Numbers numbers;
  double best = 0;
  int64_t n = 1000;
  for (int tries = 0; tries < 20;) {
    const auto start = Clock::now();
    pool.run([&](Worker&) { peak.run(numbers, n); });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds < 0.01) {
      n *= 2;
      continue;
    }
    best = std::max(best, static_cast<double>(n) * peak.operations * pool.n_threads() / seconds / 1e9);
    ++tries;
  }
  return best;
}

void print_limits(int n_threads) {
  ThreadPool pool(n_threads);
  printf("{\"threads\": %d, \"read_gb_s\": %.1f", n_threads,
         measure_read_bandwidth(pool, bandwidth_buffer_bytes(cpu::host_memory_info().free_bytes)) / 1e9);
  printf(", \"peaks\": [");
  const char* separator = "";
  for (const Peak& peak : peaks()) {
    printf("%s{\"of\": \"%s\", \"with\": \"%s\", \"gop_s\": %.0f}", separator, peak.name.c_str(),
           peak.instructions.c_str(), measure(pool, peak));
    separator = ", ";
  }
  printf("]}\n");
}

}  // namespace
}  // namespace tandem::cpu

int main(int argc, char** argv) {
  const int n_threads = argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
  if (n_threads < 1) {
    fprintf(stderr, "usage: cpu_limits [THREADS]\n");
    return 2;
  }
  tandem::cpu::print_limits(n_threads);
}
