// Kernels of sparse reads for every vector ISA. One source of each ISA's folder includes it, after vec.h.
//
// Scores: lanes are slots. kAtOnce components pass over all slots at once, so that a vector of sums is loaded and stored
// once for so many products, and the next components are fetched meanwhile: the streams are as short as a chunk of a text,
// and the hardware would see each one only when most of it has passed. The floor is a byte of a component over bandwidth;
// the arithmetic, three operations for a vector of products (widen, convert, multiply), allows 16 bytes a cycle with AVX-512.
// On a core of a busy EPYC with AVX-512 VNNI, of 32768 positions: 16 components 32 us (20 GB/s, beside other programs), exponentials
// 3 us. What is largest (ops/largest.h) takes a few passes over 128 KiB in the L2. Most of the rest is waiting for the chosen
// rows: 256 bytes each, all over the cache.
#pragma once

#include <algorithm>

#include "cpu/simd/fetch.h"
#include "cpu/simd/math.h"
#include "cpu/sparse_kernels.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t kAtOnce = 8;      // components
constexpr int64_t kLineSlots = 64;  // in a cache line of a component
constexpr int64_t kRowsAhead = 24;
constexpr size_t kLine = 64;

// kN components from the i-th chosen one on, added to the scores of all heads, or the first ones.
template <int kN>
void add_components(const ComponentScores& call, int64_t i) {
  const int8_t *k[kN], *next[kN];
  for (int c = 0; c < kN; ++c) {
    k[c] = call.components + call.chosen[i + c] * call.stride;
    next[c] = call.components + call.chosen[i + kN + c < call.n_chosen ? i + kN + c : i + c] * call.stride;
  }
  const bool is_first = i == 0;
  int64_t s = 0;
  for (; s + kLanes <= call.n; s += kLanes) {
    if (s % kLineSlots == 0) {
#pragma GCC unroll 8
      for (int c = 0; c < kN; ++c) fetch_lines<1>(next[c] + s);
    }
    Vec x[kN];
#pragma GCC unroll 8
    for (int c = 0; c < kN; ++c) x[c] = load_i8(k[c] + s);
    for (int64_t h = 0; h < call.n_heads; ++h) {
      const float* q = call.q + h * call.n_chosen + i;
      float* to = call.scores + h * call.ld + s;
      Vec sum = is_first ? set1(0.0f) : load(to);
#pragma GCC unroll 8
      for (int c = 0; c < kN; ++c) sum = fma(set1(q[c]), x[c], sum);
      store(to, sum);
    }
  }
  for (; s < call.n; ++s) {
    for (int64_t h = 0; h < call.n_heads; ++h) {
      float* to = call.scores + h * call.ld + s;
      float sum = is_first ? 0.0f : *to;
      for (int c = 0; c < kN; ++c) sum += call.q[h * call.n_chosen + i + c] * static_cast<float>(k[c][s]);
      *to = sum;
    }
  }
}

void component_scores(const ComponentScores& call) {
  int64_t i = 0;
  for (; i + kAtOnce <= call.n_chosen; i += kAtOnce) add_components<kAtOnce>(call, i);
  for (; i < call.n_chosen; ++i) add_components<1>(call, i);
  for (int64_t h = 0; h < call.n_heads; ++h) {
    float* scores = call.scores + h * call.ld;
    int64_t s = 0;
    for (; s + kLanes <= call.n; s += kLanes) store(scores + s, load(scores + s) * load(call.scales + s));
    for (; s < call.n; ++s) scores[s] *= call.scales[s];
  }
}

float max_of(const float* x, int64_t n) {
  Vec max = set1(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) max = vmax(load(x + i), max);
  float most = max_lanes(max);
  for (; i < n; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

float exponentials(float* x, float max, int64_t n) {
  Vec sum = set1(0.0f);
  const Vec m = set1(max);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec e = vexp_bounded(load(x + i) - m);
    store(x + i, e);
    sum = sum + e;
  }
  if (i < n) {
    const Vec e = vexp_bounded(load_n(x + i, n - i) - m);
    store_n(x + i, e, n - i);
    float lanes[kLanes];
    store(lanes, sum);
    for (int64_t j = i; j < n; ++j) lanes[j - i] += x[j];
    sum = load(lanes);
  }
  return sum_lanes(sum);
}

void add_scaled(float* to, const float* x, float factor, int64_t n) {
  const Vec f = set1(factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, fma(f, load(x + i), load(to + i)));
  for (; i < n; ++i) to[i] += factor * x[i];
}

// NaN counts, as not_less says; the results are then NaN anyway.
int64_t count_at_least(const float* x, float threshold, int64_t n) {
  const Vec t = set1(threshold);
  int64_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) count += __builtin_popcount(bits_of(not_less(load(x + i), t)));
  for (; i < n; ++i) count += !(x[i] < threshold);
  return count;
}

int64_t find_at_least(const float* x, float threshold, int64_t n, int32_t* found, int64_t most) {
  const Vec t = set1(threshold);
  int64_t n_found = 0, i = 0;
  for (; i + kLanes <= n && n_found + kLanes <= most; i += kLanes)
    n_found += store_indices(found + n_found, not_less(load(x + i), t), static_cast<int32_t>(i));
  for (; i + kLanes <= n && n_found < most; i += kLanes) {
    int32_t lanes[kLanes];
    const int64_t n_set = store_indices(lanes, not_less(load(x + i), t), static_cast<int32_t>(i));
    const int64_t n_taken = std::min(n_set, most - n_found);
    std::copy_n(lanes, n_taken, found + n_found);
    n_found += n_taken;
  }
  for (; i < n && n_found < most; ++i) {
    if (!(x[i] < threshold)) found[n_found++] = static_cast<int32_t>(i);
  }
  return n_found;
}

void add_rows(const fp16_t* rows, int64_t n_rows, int64_t n_cols, float* sums) {
  for (int64_t r = 0; r < n_rows; ++r, rows += n_cols) {
    int64_t c = 0;
    for (; c + kLanes <= n_cols; c += kLanes) store(sums + c, load(sums + c) + load_f16(rows + c));
    for (; c < n_cols; ++c) sums[c] += fp16_to_fp32(rows[c]);
  }
}

// kRowsAhead rows are fetched before they are copied. On two cores of a Zen 5 that read 50 GB/s, scattered rows of 256 bytes
// come at 34, with calls of memcpy() in a loop over both pools at 20.
void gather_rows(const GatheredRows& call) {
  const auto fetch = [&](int64_t i) { fetch_lines(call.from + call.rows[i] * call.n_bytes, call.n_bytes); };
  for (int64_t i = 0; i < std::min(kRowsAhead, call.n); ++i) fetch(i);
  std::byte* to = call.to;
  for (int64_t i = 0; i < call.n; ++i, to += call.n_bytes) {
    if (i + kRowsAhead < call.n) fetch(i + kRowsAhead);
    const std::byte* row = call.from + call.rows[i] * call.n_bytes;
    size_t b = 0;
    for (; b + kLine <= call.n_bytes; b += kLine) __builtin_memcpy(to + b, row + b, kLine);
    if (b < call.n_bytes) __builtin_memcpy(to + b, row + b, call.n_bytes - b);
  }
}

constexpr SparseKernels kSparseKernels{component_scores, max_of,        exponentials, add_scaled,
                                       count_at_least,   find_at_least, add_rows,     gather_rows};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
