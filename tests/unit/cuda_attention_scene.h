// Shared by the tests of the CUDA attention kernels: a cache with queries, the result in double precision,
// and the merge of partial results.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "ggml-cuda/attention_index.h"
#include "gguf/quants.h"

namespace tandem::cuda::attention_test {

inline constexpr float kNothing = -std::numeric_limits<float>::infinity();
inline std::vector<float> normals(std::mt19937& random, size_t n, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// A cache of one layer and the queries on it.
struct Scene {
  int n_head = 4, n_head_kv = 2, head_dim_k = 64, head_dim_v = 64, block_size = 32;
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  int window = 0;
  float softcap = 0.0f;
  bool has_sinks = false;
  std::vector<int> positions{99}, sequences{0};

  int n_splits = 4, n_warps = 4;
  float scale = 0.0f;
  int max_blocks = 0;
  std::vector<uint8_t> k, v;
  std::vector<float> q, sinks;
  std::vector<int> table;

  int group() const { return n_head / n_head_kv; }
  size_t k_row() const { return row_bytes(k_dtype, head_dim_k); }
  size_t v_row() const { return row_bytes(v_dtype, head_dim_v); }

  // Rows outside of all queries hold 0xff: NaN in every dtype (in Q4_0 and Q8_0, NaN scales).
  void fill(std::mt19937& random) {
    scale = 1.0f / std::sqrt(static_cast<float>(head_dim_k));
    const int n_sequences = 1 + *std::max_element(sequences.begin(), sequences.end());
    std::vector<int> lengths(static_cast<size_t>(n_sequences));
    for (size_t t = 0; t < positions.size(); ++t) {
      int& length = lengths[static_cast<size_t>(sequences[t])];
      length = std::max(length, positions[t] + 1);
    }
    max_blocks = *std::max_element(lengths.begin(), lengths.end()) / block_size + 1;
    const int n_blocks = n_sequences * max_blocks;
    table.resize(static_cast<size_t>(n_blocks));
    for (int i = 0; i < n_blocks; ++i) table[static_cast<size_t>(i)] = i;
    std::shuffle(table.begin(), table.end(), random);
    const size_t n_rows = static_cast<size_t>(n_blocks * n_head_kv * block_size);
    k.assign(n_rows * k_row(), 0xff);
    v.assign(n_rows * v_row(), 0xff);
    for (int s = 0; s < n_sequences; ++s) {
      for (int p = 0; p < lengths[static_cast<size_t>(s)]; ++p) {
        for (int h = 0; h < n_head_kv; ++h) {
          const auto row = static_cast<size_t>(row_of(s, p, h));
          quantize_row(k_dtype, normals(random, static_cast<size_t>(head_dim_k)).data(),
                       reinterpret_cast<std::byte*>(k.data() + row * k_row()), head_dim_k);
          quantize_row(v_dtype, normals(random, static_cast<size_t>(head_dim_v)).data(),
                       reinterpret_cast<std::byte*>(v.data() + row * v_row()), head_dim_v);
        }
      }
    }
    q = normals(random, positions.size() * static_cast<size_t>(n_head * head_dim_k), 2.0f);
    if (has_sinks) sinks = normals(random, static_cast<size_t>(n_head), 2.0f);
  }

  int64_t row_of(int sequence, int position, int head) const {
    return block_row(table[static_cast<size_t>(sequence * max_blocks + position / block_size)], head,
                     position % block_size, n_head_kv, block_size);
  }
  const uint8_t* key(int64_t row) const { return k.data() + static_cast<size_t>(row) * k_row(); }
  const uint8_t* value(int64_t row) const { return v.data() + static_cast<size_t>(row) * v_row(); }
  const float* query(int token, int head) const {
    return q.data() + static_cast<size_t>((token * n_head + head) * head_dim_k);
  }

  // All scores, in double.
  std::vector<double> expected(int token, int head) const {
    const int own = positions[static_cast<size_t>(token)], sequence = sequences[static_cast<size_t>(token)];
    std::vector<float> row(256);
    std::vector<double> y(static_cast<size_t>(head_dim_v));
    double total = has_sinks ? std::exp(static_cast<double>(sinks[static_cast<size_t>(head)])) : 0.0;
    for (int p = 0; p <= own; ++p) {
      if (window > 0 && p <= own - window) continue;
      const int64_t at = row_of(sequence, p, head / group());
      dequantize_row(k_dtype, reinterpret_cast<const std::byte*>(key(at)), row.data(), head_dim_k);
      double s = 0;
      for (int d = 0; d < head_dim_k; ++d)
        s += static_cast<double>(query(token, head)[d]) * row[static_cast<size_t>(d)];
      s *= scale;
      if (softcap > 0) s = softcap * std::tanh(s / softcap);
      total += std::exp(s);
      dequantize_row(v_dtype, reinterpret_cast<const std::byte*>(value(at)), row.data(), head_dim_v);
      for (size_t d = 0; d < y.size(); ++d) y[d] += std::exp(s) * row[d];
    }
    for (double& x : y) x /= total;
    return y;
  }
};

struct Partial {
  std::vector<float> acc;
  float max = kNothing, sum = 0.0f;
};

// The merge of partial results in order, as join_warps and attention_merge do it: unnormalized.
inline Partial merged(const std::vector<Partial>& parts, size_t n_cols, float start) {
  Partial whole{std::vector<float>(n_cols), start, 0.0f};
  for (const Partial& part : parts) {
    if (part.sum != 0.0f) whole.max = std::fmax(whole.max, part.max);
  }
  for (const Partial& part : parts) {
    const float weight = merge_weight(part.max, part.sum, finite_max(whole.max));
    if (weight == 0.0f) continue;
    whole.sum += weight * part.sum;
    for (size_t d = 0; d < n_cols; ++d) whole.acc[d] += weight * part.acc[d];
  }
  return whole;
}

}  // namespace tandem::cuda::attention_test
