// Attention whose values are in the keys, of many query heads on one row a position (latent attention), on tensor
// cores. Any number of tokens.
//
// Layout: a block of 4 warps has a token, up to 16 query heads of a key-value head, and one split of the positions
// that the token sees. Tiles of 32 positions go from the cache blocks to shared memory, two deep, and serve as keys
// and values: cp.async where the cache has the operands' type, through registers where it is quantized. Of a tile's
// scores each warp computes 8 positions, of the softmax 4 heads, and of the sum of values a quarter of the columns.
// Rows of 16-byte padded stride let ldmatrix read without bank conflicts.
//
// Floors, for n positions, H heads: 2 n H (hd_k + hd_v) operations at about 600 TFLOP/s, against n * row_bytes at 3
// TB/s: DeepSeek V3 at 16k, f16: 4.6 GFLOP a layer, 8 us, and 19 MB, 6 us. Every 16 heads read the rows again, from
// the L2 cache.
#include "ggml-cuda/attention_mma.cuh"
#include "ggml-cuda/attention_unpack.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kMaxKey = 576, kMaxValue = 512;  // columns
constexpr int kTile = 32;                      // positions: a lane each in the softmax
constexpr int kStride = kMaxKey + 8;           // elements: 16 bytes more than a row
constexpr int kWarpColumns = kMaxValue / kWarps;

struct LatentMemory {
  uint16_t q[kLatentHeads][kStride];    // times scale; zeros past the head dim and the last head
  uint16_t k[2][kTile][kStride];        // zeros past the head dim and outside of the range
  uint16_t p[kLatentHeads][kTile + 8];  // weights
  float s[kLatentHeads][kTile + 4];     // scores
  float factor[kLatentHeads];           // of older sums, after a new maximum
};

template <class Operands, bool kNative>
__device__ void load_tile(const AttentionCall& call, LatentMemory& memory, const int32_t* table, int kv_head,
                          PositionRange range, int first, int stage) {
  const int n_chunks = call.k.head_dim / 8;
  for (int i = threadIdx.x; i < kTile * n_chunks; i += kThreads) {
    const int r = i / n_chunks, chunk = i % n_chunks, position = first + r;
    uint4* to = reinterpret_cast<uint4*>(&memory.k[stage][r][8 * chunk]);
    if (position < range.begin || position >= range.end) {
      *to = {0, 0, 0, 0};  // of weight 0, and 0 times anything finite is 0
      continue;
    }
    const uint8_t* row = call.k.row(block_row(table[position / call.block_size], kv_head,
                                              position % call.block_size, call.n_head_kv, call.block_size));
    if constexpr (kNative) {
      copy_16_async(to, row + 16 * chunk);
    } else {
      float x[8];
      read_eight(call.k.dtype, row, chunk, x);
      *to = {Operands::pack(x[0], x[1]), Operands::pack(x[2], x[3]), Operands::pack(x[4], x[5]),
             Operands::pack(x[6], x[7])};
    }
  }
  commit_copies();
}

// Scores of 8 positions of a tile.
template <class Operands>
__device__ void score_tile(const AttentionCall& call, LatentMemory& memory, int stage, int warp, int lane) {
  float c[2][4] = {};
  for (int column = 0; column < call.k.head_dim; column += 32) {
    uint32_t a[4], b[4];
    load_matrices(b, &memory.k[stage][8 * warp + lane % 8][column + lane / 8 * 8]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_matrices(a, &memory.q[lane % 16][column + 16 * half + lane / 16 * 8]);
      Operands::multiply(c[half], a, b[2 * half], b[2 * half + 1]);
    }
  }
  const int row = lane / 4, position = 8 * warp + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) memory.s[row + i / 2 * 8][position + i % 2] = c[0][i] + c[1][i];
}

// Grid: x token, y key-value head x part of its group, z split.
template <class Operands, bool kNative>
__global__ void __launch_bounds__(kThreads, 2) attention_latent(const __grid_constant__ AttentionCall call) {
  extern __shared__ __align__(16) uint8_t shared[];
  LatentMemory& memory = *reinterpret_cast<LatentMemory*>(shared);
  constexpr int kRows = kLatentHeads / kWarps;  // of the softmax, a warp
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int token = blockIdx.x, split = blockIdx.z;
  const int n_parts = (call.group + kLatentHeads - 1) / kLatentHeads;
  const int kv_head = blockIdx.y / n_parts, part = blockIdx.y % n_parts;
  const int head0 = kv_head * call.group + part * kLatentHeads;
  const int n_heads = int_min(kLatentHeads, call.group - part * kLatentHeads);
  const int sequence = call.sequences[token];
  const PositionRange range =
      split_of(call.in_part(seen_by(call.positions[token], call.window), sequence), split, call.n_splits);
  if (range.begin >= range.end) {
    if (threadIdx.x < n_heads) {
      call.max[call.partial(token, head0 + threadIdx.x, split)] = -INFINITY;
      call.sum[call.partial(token, head0 + threadIdx.x, split)] = 0.0f;
    }
    return;
  }
  const float* q = call.q + (static_cast<int64_t>(token) * call.n_head + head0) * call.k.head_dim;
  for (int i = threadIdx.x; i < kLatentHeads * kMaxKey / 2; i += kThreads) {
    const int row = i / (kMaxKey / 2), column = i % (kMaxKey / 2) * 2;
    float2 x{};
    if (row < n_heads && column < call.k.head_dim)
      x = *reinterpret_cast<const float2*>(q + row * call.k.head_dim + column);
    uint32_t* const pairs = reinterpret_cast<uint32_t*>(memory.q[row]);
    pairs[column / 2] = Operands::pack(x.x * call.scale, x.y * call.scale);
  }
  for (int i = threadIdx.x; i < 2 * kTile * (kMaxKey - call.k.head_dim); i += kThreads) {
    const int columns = kMaxKey - call.k.head_dim, row = i / columns;
    memory.k[row % 2][row / 2][call.k.head_dim + i % columns] = 0;
  }

  const int32_t* table = call.block_table + static_cast<int64_t>(sequence) * call.max_blocks;
  const int column0 = warp * kWarpColumns;
  float acc[kWarpColumns / 8][4] = {};
  float max[kRows], sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    max[r] = -INFINITY;
    sum[r] = 0.0f;
  }
  int first = range.begin / kTile * kTile;
  load_tile<Operands, kNative>(call, memory, table, kv_head, range, first, 0);
  for (int stage = 0; first < range.end; first += kTile, stage ^= 1) {
    wait_copies<0>();
    __syncthreads();  // this tile has arrived, and all warps have read the other stage and the weights
    if (first + kTile < range.end)
      load_tile<Operands, kNative>(call, memory, table, kv_head, range, first + kTile, stage ^ 1);
    score_tile<Operands>(call, memory, stage, warp, lane);
    __syncthreads();
    const bool inside = first + lane >= range.begin && first + lane < range.end;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = warp * kRows + r;
      const float s = inside ? capped(memory.s[row][lane], call.softcap) : -INFINITY;
      const float most = fmaxf(max[r], warp_max(s)), base = finite_max(most);
      const float weight = inside ? exp_of(s - base) : 0.0f, factor = exp_of(max[r] - base);
      max[r] = most;
      sum[r] = sum[r] * factor + warp_sum(weight);
      memory.p[row][lane] = static_cast<uint16_t>(Operands::pack(weight, 0.0f));
      if (lane == 0) memory.factor[row] = factor;
    }
    __syncthreads();
    const float low = memory.factor[lane / 4], high = memory.factor[lane / 4 + 8];
#pragma unroll
    for (int t = 0; t < kWarpColumns / 8; ++t) {
      acc[t][0] *= low;
      acc[t][1] *= low;
      acc[t][2] *= high;
      acc[t][3] *= high;
    }
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {
      uint32_t a[4], b[4];
      load_matrices(a, &memory.p[lane % 16][16 * step + lane / 16 * 8]);
#pragma unroll
      for (int t = 0; t < kWarpColumns / 8; t += 2) {
        if (column0 + 8 * t >= call.v.head_dim) break;
        load_matrices_trans(b, &memory.k[stage][16 * step + lane % 16][column0 + 8 * t + lane / 16 * 8]);
        Operands::multiply(acc[t], a, b[0], b[1]);
        Operands::multiply(acc[t + 1], a, b[2], b[3]);
      }
    }
  }

#pragma unroll
  for (int t = 0; t < kWarpColumns / 8; ++t) {
    const int column = column0 + 8 * t + lane % 4 * 2;
    if (column >= call.v.head_dim) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      if (row >= n_heads) continue;
      float* to = call.acc + call.partial(token, head0 + row, split) * call.v.head_dim + column;
      to[0] = acc[t][2 * half];
      to[1] = acc[t][2 * half + 1];
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = warp * kRows + r;
    if (lane != 0 || row >= n_heads) continue;
    call.max[call.partial(token, head0 + row, split)] = max[r];
    call.sum[call.partial(token, head0 + row, split)] = sum[r];
  }
}

template <class Operands, bool kNative>
AttentionKernel kernel_of() {
  return {attention_latent<Operands, kNative>, kThreads, sizeof(LatentMemory), kLatentHeads};
}

}  // namespace

AttentionKernel latent_kernel(const AttentionCall& call, size_t shared_limit) {
  const bool fits = call.k.head_dim <= kMaxKey && call.v.head_dim <= kMaxValue && call.k.head_dim % 8 == 0 &&
                    call.v.head_dim % 8 == 0;
  if (!fits || sizeof(LatentMemory) > shared_limit) return {};
  if (call.k.dtype == DType::F16) return kernel_of<HalfOperands, true>();
  if (call.k.dtype == DType::BF16) return kernel_of<BFloatOperands, true>();
  return is_half_like(call.k.dtype) ? kernel_of<HalfOperands, false>() : AttentionKernel{};
}

void launch_latent(const AttentionKernel& kernel, const AttentionCall& call, cudaStream_t stream) {
  const int n_parts = (call.group + kLatentHeads - 1) / kLatentHeads;
  const dim3 grid(static_cast<unsigned>(call.n_tokens), static_cast<unsigned>(call.n_head_kv * n_parts),
                  static_cast<unsigned>(call.n_splits));
  kernel.kernel<<<grid, kernel.n_threads, kernel.shared_bytes, stream>>>(call);
  check_launch("attention_latent");
}

}  // namespace tandem::cuda
