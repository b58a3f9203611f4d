// The ops of recurrent layers, delta_rule and ssm_scan: a state [dk, dv] of each head that every token changes. Here is what
// they share: the call, the kernel that goes token by token, and the launch. recurrent_chunks.cuh has the kernels that take
// chunks of tokens; the ops differ in their Rule.
//
// Token by token (recurrent_tokens): the columns of a state do not depend on each other. A warp keeps kColumns of them in
// registers, lane l the rows l, l + 32, ..., and goes through the tokens of one sequence. Floor: the states read and written
// once, 2 * H * dk * dv floats of each sequence, over the bandwidth.
#pragma once

#include <algorithm>

#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {

inline constexpr int kStateColumns = 8;  // of a warp: 32 bytes of each row of the state
inline constexpr int kStateWarps = 4;
inline constexpr int kMaxStateRows = 256;

struct StepTokens {
  const int32_t* positions;  // [n]
  const int32_t* sequences;  // [n], ascending
  const int32_t* states;     // [n_sequences, 2]: the slot to read and the slot to write
  int n;                     // set at launch
};

template <class AnyOp>
StepTokens step_tokens(const CompileContext& context, const AnyOp& op) {
  return {context.address<const int32_t>(op.positions), context.address<const int32_t>(op.sequences),
          context.address<const int32_t>(op.states), 0};
}

// The first token whose sequence is not below `sequence`.
__device__ inline int first_token(const StepTokens& tokens, int sequence) {
  int low = 0, high = tokens.n;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (tokens.sequences[middle] < sequence) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// q, k and v are c, b and x of Mamba-2, a head of keys is a group.
struct RecurrentCall {
  const float*
      rows;  // [n, row_size]: q [n_head_k, dk], k and v [n_head, dv] of each token, from these columns on
  int64_t row_size;
  int q_at, k_at, v_at;
  float* y;     // [n, n_head, dv]
  float* pool;  // [n_slots, n_head, dk, dv]
  StepTokens tokens;
  int n_head_k, n_head, dk, dv;
  bool tiled;  // head h has the keys of head h % n_head_k

  __device__ int key_head(int head) const { return tiled ? head % n_head_k : head / (n_head / n_head_k); }
  __device__ const float* q(int64_t token, int head) const {
    return rows + token * row_size + q_at + key_head(head) * dk;
  }
  __device__ const float* k(int64_t token, int head) const {
    return rows + token * row_size + k_at + key_head(head) * dk;
  }
  __device__ const float* v(int64_t token, int head) const {
    return rows + token * row_size + v_at + head * dv;
  }
  __device__ float* y_of(int64_t token, int head) const { return y + (token * n_head + head) * dv; }
  // The state that a sequence reads (0) or writes (1).
  __device__ float* state(int sequence, int end, int head) const {
    return pool + (static_cast<int64_t>(tokens.states[2 * sequence + end]) * n_head + head) * dk * dv;
  }
};

__device__ inline float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

// The grid's x is the tiles of columns, its y the head, its z the sequence. kRows * 32 >= dk.
template <class Rule, int kRows>
__global__ void __launch_bounds__(kStateWarps* kWarp)
    recurrent_tokens(const __grid_constant__ RecurrentCall call, const __grid_constant__ Rule rule) {
  let_next_begin();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = (static_cast<int>(blockIdx.x) * kStateWarps + warp) * kStateColumns;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int begin = first_token(call.tokens, sequence), end = first_token(call.tokens, sequence + 1);
  if (column >= call.dv || begin == end) return;  // whole warps
  const int dk = call.dk, dv = call.dv;
  const bool is_start = call.tokens.positions[begin] == 0;
  const float* old = call.state(sequence, 0, head) + column;

  float state[kRows][kStateColumns];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = r * kWarp + lane;
#pragma unroll
    for (int c = 0; c < kStateColumns; ++c) {
      const bool exists = !is_start && row < dk && column + c < dv;
      state[r][c] = exists ? old[static_cast<int64_t>(row) * dv + c] : 0.0f;
    }
  }
  const auto gates_of = rule.gates(head);
  for (int token = begin; token < end; ++token) {
    const float *row_q = call.q(token, head), *row_k = call.k(token, head),
                *row_v = call.v(token, head) + column;
    float q[kRows], k[kRows], v[kStateColumns], y[kStateColumns];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int i = r * kWarp + lane;
      q[r] = i < dk ? row_q[i] : 0.0f;
      k[r] = i < dk ? row_k[i] : 0.0f;
    }
#pragma unroll
    for (int c = 0; c < kStateColumns; ++c) v[c] = column + c < dv ? row_v[c] : 0.0f;
    Rule::take_token(gates_of(token * static_cast<int64_t>(call.n_head) + head), dk, q, k, v, state, y);
#pragma unroll
    for (int c = 0; c < kStateColumns; ++c) {
      if (column + c < dv && lane == c) call.y_of(token, head)[column + c] = y[c];
    }
  }
  float* result = call.state(sequence, 1, head) + column;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = r * kWarp + lane;
#pragma unroll
    for (int c = 0; c < kStateColumns; ++c) {
      if (row < dk && column + c < dv) result[static_cast<int64_t>(row) * dv + c] = state[r][c];
    }
  }
}

template <class Rule>
void launch_tokens(const RecurrentCall& call, const Rule& rule, unsigned n_sequences, cudaStream_t stream) {
  const dim3 grid(blocks_of(call.dv, kStateWarps * kStateColumns), static_cast<unsigned>(call.n_head),
                  n_sequences);
  const auto launch = [&](auto* kernel) {
    launch_overlapping(kernel, grid, kStateWarps * kWarp, 0, stream, call, rule);
  };
  if (call.dk <= kWarp) return launch(recurrent_tokens<Rule, 1>);
  if (call.dk <= 2 * kWarp) return launch(recurrent_tokens<Rule, 2>);
  if (call.dk <= 4 * kWarp) return launch(recurrent_tokens<Rule, 4>);
  launch(recurrent_tokens<Rule, 8>);
}

}  // namespace tandem::cuda
