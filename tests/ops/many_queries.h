// Attention of many queries, called as a kernel: for the levels that round weights to bf16.
#pragma once

#include <cmath>
#include <cstring>

#include "gguf/quants.h"
#include "ops/row_harness.h"
#include "support/linear_problem.h"

namespace tandem::cpu::test {

inline constexpr int64_t kBlock = 16;

// A head's cache in F16, in order of position, and queries.
struct Head {
  int64_t dim_k, dim_v, n_positions;
  std::vector<float> k, v, q;  // [n_positions, dim_k], [n_positions, dim_v], [n_queries, dim_k]
  std::vector<int32_t> positions;
  int64_t window = 0;

  Head(Random& random, int64_t hd_k, int64_t hd_v, int64_t n, int64_t n_queries)
      : dim_k(hd_k),
        dim_v(hd_v),
        n_positions(n),
        k(random.normals(n * hd_k)),
        v(random.normals(n * hd_v)),
        q(random.normals(n_queries * hd_k)) {
    for (int64_t i = 0; i < n_queries; ++i) positions.push_back(static_cast<int32_t>(random.below(n)));
  }

  size_t n_queries() const { return positions.size(); }
  float* key(int64_t i) { return k.data() + i * dim_k; }
  float* value(int64_t i) { return v.data() + i * dim_v; }
  float* query(size_t i) { return q.data() + i * static_cast<size_t>(dim_k); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(dim_k)); }
  void round_to_halves() {
    for (auto* rows : {&k, &v}) {
      for (float& x : *rows) x = fp16_to_fp32(fp32_to_fp16(x));
    }
  }
};

struct Attended {
  std::vector<float> acc, sum, max;
};

inline Attended attend(Isa isa, const Head& head, int64_t kv_begin = 0, int64_t kv_end = INT64_MAX) {
  const int64_t n_blocks = (head.n_positions + kBlock - 1) / kBlock;
  const auto halves = [&](const std::vector<float>& rows, int64_t dim) {
    std::vector<fp16_t> to(static_cast<size_t>(n_blocks * kBlock * dim), 0xffff);
    for (size_t i = 0; i < rows.size(); ++i) to[i] = fp32_to_fp16(rows[i]);
    return to;
  };
  const std::vector<fp16_t> k = halves(head.k, head.dim_k), v = halves(head.v, head.dim_v);
  std::vector<int32_t> table;
  for (int64_t i = 0; i < n_blocks; ++i) table.push_back(static_cast<int32_t>(i));
  std::vector<const float*> rows;
  for (size_t i = 0; i < head.n_queries(); ++i)
    rows.push_back(head.q.data() + i * static_cast<size_t>(head.dim_k));
  Attended to{std::vector<float>(head.n_queries() * static_cast<size_t>(head.dim_v)),
              std::vector<float>(head.n_queries()), std::vector<float>(head.n_queries())};
  AttentionCall call;
  call.k_dtype = call.v_dtype = DType::F16;
  call.head_dim_k = head.dim_k, call.head_dim_v = head.dim_v;
  call.block_size = kBlock;
  call.k = reinterpret_cast<const std::byte*>(k.data()),
  call.v = reinterpret_cast<const std::byte*>(v.data());
  call.k_block_stride = static_cast<size_t>(kBlock * head.dim_k) * sizeof(fp16_t);
  call.v_block_stride = static_cast<size_t>(kBlock * head.dim_v) * sizeof(fp16_t);
  call.block_table = table.data();
  call.scale = head.scale();
  call.window = head.window;
  call.n_queries = static_cast<int64_t>(head.n_queries());
  call.q = rows.data(), call.positions = head.positions.data();
  call.kv_begin = kv_begin, call.kv_end = std::min(kv_end, head.n_positions);
  call.acc = to.acc.data(), call.sum = to.sum.data(), call.max = to.max.data();
  EXPECT_TRUE(isa == Isa::scalar || rounds_to_bf16(isa, call));
  const AttentionKernels& kernels = attention_of(isa);
  const AlignedBytes scratch(kernels.scratch_bytes(call));
  std::memset(scratch.p, 0xff, kernels.scratch_bytes(call));
  kernels.attend(call, scratch.p);
  return to;
}

}  // namespace tandem::cpu::test
