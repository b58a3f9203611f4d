// The recurrences of delta_rule and ssm_scan for many tokens, in chunks of kChunk: the formulas are in
// cpu/simd/recurrent_chunks.h. Two kernels:
//
// recurrent_factors, a block for each head and window of kChunk tokens: what does not depend on the columns of the state.
// With A[t][u] = beta[t] L[t][u] k[t]^T k[u], the corrections of the delta rule are c = solve (v - P k^T S), where
// solve = (1 + A)^-1 diag(beta), found by substitution. Its elements are products of contractions, at most 1. `within` has
// the factors of c[u] in y[t]. Tokens of other sequences have factors of zero, so that a window is always computed whole.
//
// recurrent_chunks, a block of 128 threads for each head, tile of kChunkColumns columns and sequence: the state stays in
// shared memory while the windows go by:
//   1. k^T S and q^T S                  [2 * 32, dk] x [dk, 32]: a thread has two rows of each and four columns
//   2. c = solve (v - P k^T S)          [32, 32] x [32, 32]; delta rule
//   3. y = P q^T S + within c           likewise
//   4. S = P[last] S + k (L[last] c)    [dk, 32] x [32, 32]: a thread has dk / 16 rows and four columns
// All in F32: the tensor cores' TF32 rounds to 2^-11, which the tests of this op (1e-4 of a result) do not allow.
// The next keys are copied to shared memory while a window is computed, the next queries after step 1.
//
// Floors, for n tokens, H heads and dk = 128: (6 + 4 * 32 / 128) n H dk dv operations (delta rule; 4 + 2 * 32 / 128 for
// Mamba-2) over the peak of F32, 67 TFLOP/s on an H100; the rows once a tile of columns, which the L2 cache serves.
// FLOORS.md has them in seconds, beside the instructions that are issued.
//
// Scratch, for each token and head: 16 bytes of factors, and 128 of each matrix. Shared memory: 83 KB with states of more
// than 64 rows, so two blocks fit a multiprocessor of an H100, one that of a GPU with 100 KB.
#pragma once

#include "ggml-cuda/async_copy.cuh"
#include "ggml-cuda/ops/recurrent.cuh"

namespace tandem::cuda {

inline constexpr int kChunk = 32;  // tokens
inline constexpr int kChunkThreads = 128;
inline constexpr int kChunkColumns = 32;
inline constexpr int kMaxChunkRows = 128;  // of a state
static_assert(kChunk == kWarp && kChunkThreads / kWarp == 4);

// Results of recurrent_factors, in the op's scratch.
struct ChunkFactors {
  float4*
      tokens;     // [n, n_head]: P times the scale of k; P times that of q; L[last] times that of k, or dt; P
  float* within;  // [n_windows, n_head, kChunk, kChunk]
  float* solve;   // likewise
};

__device__ inline float dot(float4 a, float4 b, float sum) {
  return sum + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
__device__ inline float4 scaled(float4 a, float s) {
  return {a.x * s, a.y * s, a.z * s, a.w * s};
}
__device__ inline void multiply_add(float a, float4 b, float4& sum) {
  sum.x += a * b.x;
  sum.y += a * b.y;
  sum.z += a * b.z;
  sum.w += a * b.w;
}
__device__ inline float element(const float4& a, int i) {
  return i == 0 ? a.x : i == 1 ? a.y : i == 2 ? a.z : a.w;
}
// Elements [at, at + 4) of a row of n; zeros beyond.
__device__ inline float4 four_of(const float* row, int at, int n) {
  float4 r{};
  if (at < n) r.x = row[at];
  if (at + 1 < n) r.y = row[at + 1];
  if (at + 2 < n) r.z = row[at + 2];
  if (at + 3 < n) r.w = row[at + 3];
  return r;
}

// Whether rows of q and k may be read 16 bytes at a time.
__device__ inline bool has_aligned_keys(const RecurrentCall& call) {
  return call.row_size % 4 == 0 && call.q_at % 4 == 0 && call.k_at % 4 == 0 && call.dk % 4 == 0;
}

template <class Rule>
__global__ void __launch_bounds__(kChunkThreads)
    recurrent_factors(const __grid_constant__ RecurrentCall call, const __grid_constant__ Rule rule,
                      const __grid_constant__ ChunkFactors factors) {
  constexpr int kRow = kMaxChunkRows / 4 + 1;  // lanes read rows side by side from different banks
  constexpr int kTokensOfWarp = kChunk / 4;
  __shared__ float4 q[kChunk][kRow];
  __shared__ float4 k[kChunk][kRow];
  __shared__ float4 a[kChunk][kChunk / 4];
  __shared__ float decay[kChunk];
  __shared__ float in[kChunk];
  __shared__ float scale_q[kChunk];
  __shared__ float scale_k[kChunk];
  __shared__ float before[kChunk];
  __shared__ float kept[kChunk];
  __shared__ int sequence[kChunk];
  let_next_begin();
  wait_for_previous();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int head = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * kChunk;
  const int n = min(kChunk, call.tokens.n - first), n_fours = (call.dk + 3) / 4;

  // A warp reads every fourth token.
  for (int t = warp; t < kChunk; t += 4) {
    float4 of_q{}, of_k{};
    if (t < n && lane < n_fours) {
      of_q = four_of(call.q(first + t, head), 4 * lane, call.dk);
      of_k = four_of(call.k(first + t, head), 4 * lane, call.dk);
    }
    if (lane < n_fours) {
      q[t][lane] = of_q;
      k[t][lane] = of_k;
    }
    if constexpr (Rule::kCorrects) {
      const float q_square = warp_sum(dot(of_q, of_q, 0.0f)), k_square = warp_sum(dot(of_k, of_k, 0.0f));
      if (lane == 0) {
        scale_q[t] = Rule::q_scale(q_square, call.dk);
        scale_k[t] = Rule::k_scale(k_square);
      }
    }
  }
  if (thread < kChunk) {
    const bool exists = thread < n;
    const int64_t at = static_cast<int64_t>(first + thread) * call.n_head + head;
    const auto gates = exists ? rule.gates(head)(at) : typename Rule::Gates{};
    decay[thread] = gates.decay;
    in[thread] = gates.in;
    sequence[thread] = exists ? call.tokens.sequences[first + thread] : -1;
  }
  __syncthreads();

  // Lane u of warp w: the pairs of tokens t = w, w + 4, ... with token u.
  float of_keys[kTokensOfWarp] = {}, of_queries[kTokensOfWarp] = {};
  for (int i = 0; i < n_fours; ++i) {
    const float4 key = k[lane][i];
#pragma unroll
    for (int j = 0; j < kTokensOfWarp; ++j) {
      of_queries[j] = dot(q[4 * j + warp][i], key, of_queries[j]);
      if constexpr (Rule::kCorrects) of_keys[j] = dot(k[4 * j + warp][i], key, of_keys[j]);
    }
  }
  const int64_t matrix = (static_cast<int64_t>(blockIdx.y) * call.n_head + head) * kChunk * kChunk;
  const int mine = sequence[lane];
  const bool is_first = lane == 0 || sequence[lane > 0 ? lane - 1 : 0] != mine;
  float between = 0.0f;  // L[t][lane]
#pragma unroll
  for (int t = 0; t < kChunk; ++t) {
    between = t == lane ? 1.0f : between * decay[t];
    if (t % 4 != warp) continue;
    const bool exists = t >= lane && t < n && sequence[t] == mine;
    const float l = exists ? between : 0.0f;
    float within = l * of_queries[t / 4];
    if constexpr (Rule::kCorrects) {
      within *= scale_q[t] * scale_k[lane];
      reinterpret_cast<float*>(a[t])[lane] =
          t > lane ? l * of_keys[t / 4] * scale_k[t] * scale_k[lane] * in[t] : 0.0f;
    } else {
      within *= in[lane];
      if (t == lane) within += rule.skip(head);
    }
    factors.within[matrix + t * kChunk + lane] = within;
    if (exists && is_first) before[t] = between * decay[lane];
    if (exists && (t == n - 1 || sequence[t + 1] != mine)) kept[lane] = between;
  }
  __syncthreads();
  if (thread < n) {
    const float p = before[thread];
    float4 f{p, p, kept[thread] * in[thread], p};
    if constexpr (Rule::kCorrects)
      f = {p * scale_k[thread], p * scale_q[thread], kept[thread] * scale_k[thread], p};
    factors.tokens[static_cast<int64_t>(first + thread) * call.n_head + head] = f;
  }
  if constexpr (Rule::kCorrects) {
    if (warp != 0) return;
    // Lane u: column u of the inverse, row by row.
    float x[kChunk];
#pragma unroll
    for (int t = 0; t < kChunk; ++t) {
      float sum = t == lane ? in[lane] : 0.0f;
#pragma unroll
      for (int u = 0; u < t; ++u) sum -= element(a[t][u / 4], u % 4) * x[u];
      x[t] = sum;
      factors.solve[matrix + t * kChunk + lane] = sum;
    }
  }
}

template <int kRows>
struct ChunkMemory {
  float4 state[kRows][kChunkColumns / 4];
  float4 k[2][kChunk][kRows / 4 + 1];  // a float4 more than a row: threads read rows from different banks
  float4 q[kChunk][kRows / 4 + 1];
  float4 solve[kChunk][kChunk / 4];
  float4 within[kChunk][kChunk / 4];
  float4 c[kChunk][kChunkColumns / 4];
  float4 kept[kChunk][kChunkColumns / 4];  // first v - P k^T S, then c L[last]
};

// The tokens of a window that belong to the block's sequence.
struct WindowTokens {
  int first, begin, end;

  __device__ bool has(int t) const { return first + t >= begin && first + t < end; }
};

// Rows of q or k of a window; zeros for tokens of other sequences. `rows` are those of the window's first token.
template <int kRows>
__device__ void load_keys(float4 (&to)[kChunk][kRows / 4 + 1], const float* rows, const RecurrentCall& call,
                          const WindowTokens& w, bool aligned) {
  constexpr int kFours = kRows / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kFours; i += kChunkThreads) {
    const int t = i / kFours, at = 4 * (i % kFours);
    if (!w.has(t) || at >= call.dk) {
      to[t][i % kFours] = float4{};
    } else if (aligned) {
      copy_16_async(&to[t][i % kFours], rows + t * call.row_size + at);
    } else {
      to[t][i % kFours] = four_of(rows + t * call.row_size, at, call.dk);
    }
  }
}

__device__ inline void load_matrix(float4 (&to)[kChunk][kChunk / 4], const float* from) {
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kChunk / 4; i += kChunkThreads)
    copy_16_async(&to[0][0] + i, from + 4 * i);
}

// sum[r] += row (2 * pair + r) of m times b
__device__ inline void multiply_pair(const float4 (&m)[kChunk][kChunk / 4], int pair,
                                     const float4 (&b)[kChunk][kChunkColumns / 4], int column,
                                     float4 (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < kChunk / 4; ++i) {
    const float4 m0 = m[2 * pair][i], m1 = m[2 * pair + 1][i];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 x = b[4 * i + j][column];
      multiply_add(element(m0, j), x, sum[0]);
      multiply_add(element(m1, j), x, sum[1]);
    }
  }
}

// The grid's x is the tiles of columns, its y the head, its z the sequence. kRows >= dk.
template <class Rule, int kRows>
__global__ void __launch_bounds__(kChunkThreads)
    recurrent_chunks(const __grid_constant__ RecurrentCall call,
                     const __grid_constant__ ChunkFactors factors) {
  constexpr int kTileRows = kRows / 16;  // of the state, for a thread
  extern __shared__ float4 shared[];
  auto& memory = *reinterpret_cast<ChunkMemory<kRows>*>(shared);
  let_next_begin();
  wait_for_previous();
  const int pair = static_cast<int>(threadIdx.x) / 8, fours = static_cast<int>(threadIdx.x) % 8;
  const int column = static_cast<int>(blockIdx.x) * kChunkColumns + 4 * fours;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int begin = first_token(call.tokens, sequence), end = first_token(call.tokens, sequence + 1);
  if (begin == end) return;  // the whole block
  const bool is_start = call.tokens.positions[begin] == 0, aligned = has_aligned_keys(call);
  const float* old = call.state(sequence, 0, head);
  const int first_row = pair * kTileRows;
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const int row = first_row + r;
    memory.state[row][fours] = row < call.dk && !is_start
                                   ? four_of(old + static_cast<int64_t>(row) * call.dv, column, call.dv)
                                   : float4{};
  }
  int buffer = 0;
  WindowTokens w{begin / kChunk * kChunk, begin, end};
  load_keys<kRows>(memory.k[0], call.k(w.first, head), call, w, aligned);
  load_keys<kRows>(memory.q, call.q(w.first, head), call, w, aligned);
  commit_copies();
  for (; w.first < end; w.first += kChunk, buffer ^= 1) {
    // The factors and v of this thread's two tokens.
    float4 factor[2], sum[2], value[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = 2 * pair + r, token = w.first + t;
      factor[r] = value[r] = float4{};
      if (!w.has(t)) continue;
      factor[r] = factors.tokens[static_cast<int64_t>(token) * call.n_head + head];
      value[r] = four_of(call.v(token, head), column, call.dv);
    }
    const int last = min(w.first + kChunk, end) - 1;
    const float before_last = factors.tokens[static_cast<int64_t>(last) * call.n_head + head].w;
    wait_copies<0>();
    __syncthreads();
    const int64_t matrix = (static_cast<int64_t>(w.first / kChunk) * call.n_head + head) * kChunk * kChunk;
    load_matrix(memory.within, factors.within + matrix);
    if constexpr (Rule::kCorrects) load_matrix(memory.solve, factors.solve + matrix);
    commit_copies();
    const WindowTokens next{w.first + kChunk, begin, end};
    if (next.first < end)
      load_keys<kRows>(memory.k[buffer ^ 1], call.k(next.first, head), call, next, aligned);
    commit_copies();

    float4 known[2] = {}, result[2] = {};
    const auto& k = memory.k[buffer];
#pragma unroll 2
    for (int i = 0; i < kRows / 4; ++i) {
      const float4 q0 = memory.q[2 * pair][i], q1 = memory.q[2 * pair + 1][i];
      float4 k0{}, k1{};
      if constexpr (Rule::kCorrects) {
        k0 = k[2 * pair][i];
        k1 = k[2 * pair + 1][i];
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 s = memory.state[4 * i + j][fours];
        multiply_add(element(q0, j), s, result[0]);
        multiply_add(element(q1, j), s, result[1]);
        if constexpr (Rule::kCorrects) {
          multiply_add(element(k0, j), s, known[0]);
          multiply_add(element(k1, j), s, known[1]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (Rule::kCorrects) {
        multiply_add(-factor[r].x, known[r], value[r]);
        memory.kept[2 * pair + r][fours] = value[r];
      } else {
        memory.c[2 * pair + r][fours] = value[r];
        memory.kept[2 * pair + r][fours] = scaled(value[r], factor[r].z);
      }
      result[r] = scaled(result[r], factor[r].y);
    }
    wait_copies<1>();  // within and solve
    __syncthreads();
    if (next.first < end) load_keys<kRows>(memory.q, call.q(next.first, head), call, next, aligned);
    commit_copies();
    if constexpr (Rule::kCorrects) {
      sum[0] = sum[1] = float4{};
      multiply_pair(memory.solve, pair, memory.kept, fours, sum);
      __syncthreads();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        memory.c[2 * pair + r][fours] = sum[r];
        memory.kept[2 * pair + r][fours] = scaled(sum[r], factor[r].z);
      }
      __syncthreads();
    }
    multiply_pair(memory.within, pair, memory.c, fours, result);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!w.has(2 * pair + r)) continue;
      float* y = call.y_of(w.first + 2 * pair + r, head);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (column + j < call.dv) y[column + j] = element(result[r], j);
      }
    }
    float4 state[kTileRows];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) state[r] = scaled(memory.state[first_row + r][fours], before_last);
#pragma unroll 4
    for (int u = 0; u < kChunk; ++u) {
      const float4 x = memory.kept[u][fours];
#pragma unroll
      for (int r = 0; r < kTileRows; r += 4) {
        const float4 key = k[u][(first_row + r) / 4];
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply_add(element(key, j), x, state[r + j]);
      }
    }
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) memory.state[first_row + r][fours] = state[r];
  }
  float* result = call.state(sequence, 1, head);
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const int row = first_row + r;
    if (row >= call.dk) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (column + j < call.dv)
        result[static_cast<int64_t>(row) * call.dv + column + j] = element(memory.state[row][fours], j);
    }
  }
}

// Both ways of a rule. Chunks pay for their factors when a step has many tokens of a sequence.
template <class Rule>
class CompiledRecurrent final : public CompiledOp {
 public:
  CompiledRecurrent(const CompileContext& context, const RecurrentCall& call, const Rule& rule,
                    int64_t max_tokens, int64_t max_sequences)
      : call_(call), rule_(rule), max_sequences_(max_sequences) {
    has_chunks_ = call.dk <= kMaxChunkRows;
    if (!has_chunks_) return;
    const int64_t n_windows = blocks_of(max_tokens, kChunk);
    within_at_ = static_cast<size_t>(max_tokens * call.n_head) * sizeof(float4);
    matrix_bytes_ = static_cast<size_t>(n_windows * call.n_head * kChunk * kChunk) * sizeof(float);
    scratch_bytes = within_at_ + (Rule::kCorrects ? 2 : 1) * matrix_bytes_;
    if (!context.segment.addresses.empty())
      with_chunks([](auto* kernel, size_t shared_bytes) {
        TANDEM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared_bytes)));
      });
  }

  void launch(const LaunchContext& context) const override {
    RecurrentCall call = call_;
    call.tokens.n = static_cast<int>(context.shape.n_tokens);
    const auto n_sequences = static_cast<unsigned>(std::min<int64_t>(max_sequences_, call.tokens.n));
    if (!has_chunks_ || call.tokens.n < kChunk / 2 || call.tokens.n < 8 * max_sequences_)
      return launch_tokens(call, rule_, n_sequences, context.stream);
    const ChunkFactors factors{reinterpret_cast<float4*>(context.scratch),
                               reinterpret_cast<float*>(context.scratch + within_at_),
                               reinterpret_cast<float*>(context.scratch + within_at_ + matrix_bytes_)};
    const auto n_heads = static_cast<unsigned>(call.n_head);
    launch_overlapping(recurrent_factors<Rule>, dim3(n_heads, blocks_of(call.tokens.n, kChunk)),
                       kChunkThreads, 0, context.stream, call, rule_, factors);
    with_chunks([&](auto* kernel, size_t shared_bytes) {
      launch_overlapping(kernel, dim3(blocks_of(call.dv, kChunkColumns), n_heads, n_sequences), kChunkThreads,
                         shared_bytes, context.stream, call, factors);
    });
  }

 private:
  template <class F>
  void with_chunks(F&& f) const {
    call_.dk <= 64 ? f(recurrent_chunks<Rule, 64>, sizeof(ChunkMemory<64>))
                   : f(recurrent_chunks<Rule, 128>, sizeof(ChunkMemory<128>));
  }

  RecurrentCall call_;
  Rule rule_;
  int64_t max_sequences_;
  bool has_chunks_ = false;
  size_t within_at_ = 0, matrix_bytes_ = 0;
};

template <class Rule>
CompiledOpPtr compile_recurrent(const CompileContext& context, const RecurrentCall& call, const Rule& rule,
                                int64_t max_tokens, int64_t max_sequences) {
  return std::make_unique<CompiledRecurrent<Rule>>(context, call, rule, max_tokens, max_sequences);
}

}  // namespace tandem::cuda
