// Kernels of attention that reads a cache sparsely (ops/sparse_attention.h). They do not allocate and do not throw.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/fp16.h"

namespace tandem::cpu {

// Approximate scores of n adjacent slots: scores[h, s] = scales[s] * sum over i of q[h, i] * components[chosen[i], s].
struct ComponentScores {
  const int8_t* components = nullptr;  // column c of slot s: components[c * stride + s]
  int64_t stride = 0;
  const float* scales = nullptr;    // [n]
  const int32_t* chosen = nullptr;  // [n_chosen] columns
  int64_t n_chosen = 0;
  const float* q = nullptr;  // [n_heads, n_chosen]
  int64_t n_heads = 0;
  float* scores = nullptr;  // [n_heads, ld]
  int64_t ld = 0, n = 0;
};

// Rows that are copied next to each other.
struct GatheredRows {
  const std::byte* from = nullptr;  // row r: from + r * n_bytes
  const size_t* rows = nullptr;     // [n]
  int64_t n = 0;
  size_t n_bytes = 0;       // of a row
  std::byte* to = nullptr;  // [n, n_bytes]
};

struct SparseKernels {
  void (*component_scores)(const ComponentScores& call);
  float (*max_of)(const float* x, int64_t n);  // -infinity of none
  // x = exp(x - max), and returns the sum; x <= max.
  float (*exponentials)(float* x, float max, int64_t n);
  void (*add_scaled)(float* to, const float* x, float factor, int64_t n);  // to += factor * x
  int64_t (*count_at_least)(const float* x, float threshold, int64_t n);
  // Writes the indices of x that are at least the threshold, ascending, but no more than `most`; returns how many.
  int64_t (*find_at_least)(const float* x, float threshold, int64_t n, int32_t* found, int64_t most);
  // sums[c] += the sum over rows of rows[r, c]
  void (*add_rows)(const fp16_t* rows, int64_t n_rows, int64_t n_cols, float* sums);
  void (*gather_rows)(const GatheredRows& call);
};

namespace scalar {
const SparseKernels& sparse_kernels();
}
namespace avx2 {
const SparseKernels& sparse_kernels();
}
namespace avx512 {
const SparseKernels& sparse_kernels();
}
namespace avx512_vnni {
const SparseKernels& sparse_kernels();
}

}  // namespace tandem::cpu
