// The reference of the kernels of sparse reads.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/sparse_kernels.h"

namespace tandem::cpu::scalar {
namespace {

void component_scores(const ComponentScores& call) {
  for (int64_t h = 0; h < call.n_heads; ++h) {
    for (int64_t s = 0; s < call.n; ++s) {
      float sum = 0;
      for (int64_t i = 0; i < call.n_chosen; ++i) {
        sum += call.q[h * call.n_chosen + i] *
               static_cast<float>(call.components[call.chosen[i] * call.stride + s]);
      }
      call.scores[h * call.ld + s] = sum * call.scales[s];
    }
  }
}

float max_of(const float* x, int64_t n) {
  float max = -INFINITY;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, x[i]);
  return max;
}

float exponentials(float* x, float max, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - max);
  return static_cast<float>(sum);
}

void add_scaled(float* to, const float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * x[i];
}

int64_t count_at_least(const float* x, float threshold, int64_t n) {
  return std::count_if(x, x + n, [&](float v) { return v >= threshold; });
}

int64_t find_at_least(const float* x, float threshold, int64_t n, int32_t* found, int64_t most) {
  int64_t n_found = 0;
  for (int64_t i = 0; i < n && n_found < most; ++i) {
    if (x[i] >= threshold) found[n_found++] = static_cast<int32_t>(i);
  }
  return n_found;
}

void gather_rows(const GatheredRows& call) {
  for (int64_t i = 0; i < call.n; ++i)
    std::memcpy(call.to + static_cast<size_t>(i) * call.n_bytes, call.from + call.rows[i] * call.n_bytes,
                call.n_bytes);
}

void add_rows(const fp16_t* rows, int64_t n_rows, int64_t n_cols, float* sums) {
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t c = 0; c < n_cols; ++c) sums[c] += fp16_to_fp32(rows[r * n_cols + c]);
  }
}

}  // namespace

const SparseKernels& sparse_kernels() {
  static constexpr SparseKernels table{component_scores, max_of,        exponentials, add_scaled,
                                       count_at_least,   find_at_least, add_rows,     gather_rows};
  return table;
}

}  // namespace tandem::cpu::scalar
