// Attention of few tokens, in floats: split-KV flash decoding (arXiv:2205.14135, and its split over positions).
//
// Layout: a block has a token, up to kHeads query heads of one key-value head, and one split of the positions
// that the token sees; every key and value is read once for all those heads. A warp takes tiles of 16
// positions in turn. Rows of a head are contiguous in a cache block, so a tile is one run of bytes, in
// whatever dtype: it is copied as it is to shared memory, 16 bytes a lane, two tiles deep, keys and values as
// groups of their own. Out of shared memory kLanes lanes read a row, eight elements each. The split's range
// follows from the position in device memory: the grid is the same for every length.
//
// Floors, for n positions: n * Hkv * (row_bytes_k + row_bytes_v) / 3 TB/s, against n * H * (hd_k + hd_v) FMAs
// on 132 * 128 lanes. Llama-3.1-8B at 16k, f16: 67 MB, 22 us a layer; the FMAs are 4.7 us, but all that is issued takes two
// thirds of the slots, and with q8_0 or q4_0 more than there are (FLOORS.md): for these ops/attention_packed.cu is there.
#pragma once

#include "ggml-cuda/attention_rows.cuh"
#include "ggml-cuda/ordering.cuh"
#include "ggml-cuda/quantize.cuh"

namespace tandem::cuda {

inline constexpr int kDecodeThreads = 128;
inline constexpr int kMergeColumns = 256;  // with one scale, if the bytes are those of a K type

// Shared memory of a warp: two stages of a tile of keys and one of values, the tile's weights and the heads'
// factors.
struct WarpMemory {
  int k_bytes, v_bytes;  // a tile; multiples of 16

  __host__ __device__ WarpMemory(const CachePool& k, const CachePool& v)
      : k_bytes(tile_bytes(k)), v_bytes(tile_bytes(v)) {}
  __host__ __device__ int weights() const { return 2 * (k_bytes + v_bytes); }
  __host__ __device__ int factors(int heads) const { return weights() + kDecodeTile * heads * 4; }
  __host__ __device__ int size(int heads) const { return factors(heads) + (heads * 4 + 15) / 16 * 16; }
};

// Sums the products of every head over the lanes of a row; each lane gets its own head's sum (LaneMap).
template <class Map, int kHeads>
__device__ inline float sum_heads(float (&v)[kHeads], int lane) {
#pragma unroll
  for (int step = 0; step < Map::kSteps; ++step) {
    const int half = Map::heads_before(step) / 2, mask = Map::mask_of(step);
    const bool upper = lane & mask;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? v[i] : v[i + half], kept = upper ? v[i + half] : v[i];
      v[i] = kept + __shfl_xor_sync(kAllLanes, sent, mask);
    }
  }
#pragma unroll
  for (int mask = Map::kCopies / 2; mask > 0; mask /= 2) v[0] += __shfl_xor_sync(kAllLanes, v[0], mask);
  return v[0];
}

// Loads one value per head from shared memory.
template <int kHeads>
__device__ inline void load_heads(const float* from, float (&x)[kHeads]) {
  if constexpr (kHeads % 4 == 0) {
#pragma unroll
    for (int h = 0; h < kHeads; h += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + h);
      x[h] = four.x;
      x[h + 1] = four.y;
      x[h + 2] = four.z;
      x[h + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) x[h] = from[h];
  }
}

__device__ inline void prefetch_tile(const TileSource& from, int lane) {
  for (int at = 128 * lane; at < from.n_scales; at += 128 * kWarp) prefetch_to_l2(from.scales + at);
  for (int at = 128 * lane; at < from.n_rows; at += 128 * kWarp) prefetch_to_l2(from.rows + at);
}
// Brings a warp's first tiles to the L2 cache, where what is still written arrives too.
template <class ReadK, class ReadV>
__device__ inline void prefetch_tiles(const AttentionCall& call, const int32_t* table, PositionRange range, int kv_head, int warp,
                                      int n_warps, int lane) {
  constexpr int kTiles = 8;
  const int end_tile = (range.end + kDecodeTile - 1) / kDecodeTile;
  int tile = range.begin / kDecodeTile + warp;
  for (int i = 0; i < kTiles && tile < end_tile; ++i, tile += n_warps) {
    const int first = tile * kDecodeTile, offset = first % call.block_size;
    const int block = table[first / call.block_size];
    const int place = kMayBeGrouped<ReadK> || kMayBeGrouped<ReadV> ? call.place_of(block) : -1;
    prefetch_tile(tile_source<ReadK>(call, call.k, kv_head, block, place, offset), lane);
    prefetch_tile(tile_source<ReadV>(call, call.v, kv_head, block, place, offset), lane);
  }
}

// A warp's share of a split.
template <class ReadK, class ReadV, int kLanes, int kHeads>
struct DecodeWarp {
  using Map = LaneMap<kLanes, kHeads>;
  const AttentionCall& call;
  uint8_t* memory;       // of this warp
  const int32_t* table;  // of the sequence
  PositionRange range;
  int lane, kv_head;
  float q[kHeads][8];     // of this lane's chunk, times scale
  float acc[kHeads][8];   // likewise, over the rows that this lane reads
  float max = -INFINITY;  // of this lane's head
  float sum = 0.0f;       // of this lane's head, over its own rows
  unsigned open = 0;      // bit i: the tile in stage i is of an open block of a grouped dtype

  static constexpr bool kGrouped = kMayBeGrouped<ReadK> || kMayBeGrouped<ReadV>;

  __device__ int chunk() const { return Map::chunk_of(lane); }

  __device__ void load_q(const float* rows, int n_heads) {
    const bool inside = 8 * chunk() < call.k.head_dim;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float4 a{}, b{};
      if (inside && h < n_heads) {
        const float4* from = reinterpret_cast<const float4*>(rows + h * call.k.head_dim) + 2 * chunk();
        a = from[0];
        b = from[1];
      }
      const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        q[h][i] = x[i] * call.scale;
        acc[h][i] = 0.0f;
      }
    }
  }

  __device__ uint8_t* stage(int index) const {
    const WarpMemory layout(call.k, call.v);
    return memory + (index & 1) * (layout.k_bytes + layout.v_bytes);
  }

  // Two groups of copies, empty past the end, so every step of the loop has the same number in flight.
  __device__ void fetch(int tile, int end_tile, int step) {
    uint8_t* to = stage(step);
    const int first = tile * kDecodeTile, offset = first % call.block_size;
    int block = 0, place = -1;
    if (tile < end_tile) {
      block = table[first / call.block_size];
      if constexpr (kGrouped) {
        place = call.place_of(block);
        open = (open & ~(1u << (step & 1))) | (place >= 0 ? 1u << (step & 1) : 0u);
      }
      copy_tile(to, tile_source<ReadK>(call, call.k, kv_head, block, place, offset));
    }
    commit_copies();
    if (tile < end_tile)
      copy_tile(to + tile_bytes(call.k), tile_source<ReadV>(call, call.v, kv_head, block, place, offset));
    commit_copies();
  }
  __device__ void copy_tile(uint8_t* to, const TileSource& from) const {
    for (int i = 16 * lane; i < from.n_scales; i += 16 * kWarp) copy_16_async(to + i, from.scales + i);
    to += from.n_scales;
#pragma unroll 8
    for (int i = 16 * lane; i < from.n_rows; i += 16 * kWarp) copy_16_async(to + i, from.rows + i);
  }

  __device__ void scores(const uint8_t* k, bool is_open, int first, float (&s)[Map::kPasses]) const {
    const bool inside = 8 * chunk() < call.k.head_dim;
    const TileRows<ReadK> rows(call.k, k, is_open, chunk(), inside);
#pragma unroll
    for (int pass = 0; pass < Map::kPasses; ++pass) {
      const int row = Map::row_of(lane, pass);
      float x[8] = {};
      if (inside) rows.eight(row, x);
      float dot[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        dot[h] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) dot[h] += q[h][i] * x[i];
      }
      const float total = sum_heads<Map>(dot, lane);
      const int position = first + row;
      s[pass] = position >= range.begin && position < range.end ? capped(total, call.softcap) : -INFINITY;
    }
  }

  // Turns scores into weights, in shared memory [16, kHeads], and scales older sums to the new maximum.
  __device__ void soften(float (&s)[Map::kPasses], float* weights, float* factors) {
    float most = max;
#pragma unroll
    for (int pass = 0; pass < Map::kPasses; ++pass) most = fmaxf(most, s[pass]);
#pragma unroll
    for (int mask = kLanes; mask < kWarp; mask *= 2)
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, mask));
    const float base = finite_max(most), factor = exp_of(max - base);
    max = most;
    sum *= factor;
#pragma unroll
    for (int pass = 0; pass < Map::kPasses; ++pass) {
      const float weight = exp_of(s[pass] - base);
      sum += weight;
      if (Map::is_first_copy(lane)) weights[Map::row_of(lane, pass) * kHeads + Map::head_of(lane)] = weight;
    }
    if (Map::is_first_copy(lane) && lane < kLanes) factors[Map::head_of(lane)] = factor;
    const bool rescale = __any_sync(kAllLanes, factor != 1.0f);
    __syncwarp();
    if (!rescale) return;
    float f[kHeads];
    load_heads(factors, f);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[h][i] *= f[h];
    }
  }

  // Rows outside the range may hold anything, NaN too, and are skipped.
  __device__ void add_values(const uint8_t* v, bool is_open, int first, const float* weights) {
    if (8 * chunk() >= call.v.head_dim) return;
    const TileRows<ReadV> rows(call.v, v, is_open, chunk(), true);
#pragma unroll
    for (int pass = 0; pass < Map::kPasses; ++pass) {
      const int row = Map::row_of(lane, pass), position = first + row;
      if (position < range.begin || position >= range.end) continue;
      float x[8], w[kHeads];
      rows.eight(row, x);
      load_heads(weights + row * kHeads, w);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[h][i] += w[h] * x[i];
      }
    }
  }

  __device__ void run(int warp, int n_warps) {
    const WarpMemory layout(call.k, call.v);
    float* weights = reinterpret_cast<float*>(memory + layout.weights());
    float* factors = reinterpret_cast<float*>(memory + layout.factors(kHeads));
    const int end_tile = (range.end + kDecodeTile - 1) / kDecodeTile;
    int tile = range.begin / kDecodeTile + warp;
    fetch(tile, end_tile, 0);
    fetch(tile + n_warps, end_tile, 1);
    for (int step = 0; tile < end_tile; ++step, tile += n_warps) {
      const uint8_t* k = stage(step);
      const bool is_open = open >> (step & 1) & 1;
      float s[Map::kPasses];
      wait_copies<3>();
      __syncwarp();
      scores(k, is_open, tile * kDecodeTile, s);
      soften(s, weights, factors);
      wait_copies<2>();
      __syncwarp();
      add_values(k + layout.k_bytes, is_open, tile * kDecodeTile, weights);
      __syncwarp();  // all lanes have read this stage and the weights
      fetch(tile + 2 * n_warps, end_tile, step);
    }
#pragma unroll
    for (int mask = kLanes; mask < kWarp; mask *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, mask);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[h][i] += __shfl_xor_sync(kAllLanes, acc[h][i], mask);
      }
    }
  }

  // Into shared memory: acc [kHeads, head_dim_v], max [kHeads], sum [kHeads].
  __device__ void store(float* to) const {
    if (lane >= kLanes) return;
    if (8 * chunk() < call.v.head_dim) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float4* row = reinterpret_cast<float4*>(to + h * call.v.head_dim) + 2 * chunk();
        row[0] = {acc[h][0], acc[h][1], acc[h][2], acc[h][3]};
        row[1] = {acc[h][4], acc[h][5], acc[h][6], acc[h][7]};
      }
    }
    if (!Map::is_first_copy(lane)) return;
    to[kHeads * call.v.head_dim + Map::head_of(lane)] = max;
    to[kHeads * (call.v.head_dim + 1) + Map::head_of(lane)] = sum;
  }
};

// Of n warps at most, as many as leave room for two blocks on a multiprocessor, one at least.
inline int warps_for_two_blocks(int n, size_t bytes_a_warp, size_t shared_limit) {
  while (n > 1 && static_cast<size_t>(n) * bytes_a_warp > shared_limit / 2) n /= 2;
  return n;
}

// Floats that a warp stores for its block, padded to 16 bytes.
__host__ __device__ inline int left_floats(int heads, int head_dim_v) {
  return (heads * (head_dim_v + 2) + 3) / 4 * 4;
}

// What the warps of a block have stored of their rows: of each warp acc [n_room, head_dim_v], max [n_room], sum [n_room], padded to
// left_floats(). A row's maximum is over all of them, or more.
struct WarpSums {
  const float* left;
  int n_room, n_warps, n_cols;

  __device__ const float* of(int warp) const { return left + warp * left_floats(n_room, n_cols); }
  __device__ float max(int warp, int row) const { return of(warp)[n_room * n_cols + row]; }
  __device__ float sum(int warp, int row) const { return of(warp)[n_room * (n_cols + 1) + row]; }
  __device__ float max_of_all(int row) const {
    float m = -INFINITY;
    for (int w = 0; w < n_warps; ++w) m = fmaxf(m, max(w, row));
    return m;
  }
  // Adds kColumns columns of a row to `values`, weighted, in the order of the warps; returns the weighted sum. m: finite.
  template <int kColumns>
  __device__ float add(int row, int column, float m, float (&values)[kColumns]) const {
    float total = 0.0f;
    for (int w = 0; w < n_warps; ++w) {
      const float weight = merge_weight(max(w, row), sum(w, row), m);
      if (weight == 0.0f) continue;
      total += weight * sum(w, row);
      const float4* from = reinterpret_cast<const float4*>(of(w) + row * n_cols + column);
#pragma unroll
      for (int i = 0; i < kColumns; i += 4) {
        const float4 four = from[i / 4];
        values[i] += weight * four.x, values[i + 1] += weight * four.y;
        values[i + 2] += weight * four.z, values[i + 3] += weight * four.w;
      }
    }
    return total;
  }
};

// Merges the warps' sums of n rows into the split's, a warp a row. partial_of(row): where the row's partial result is, or -1 for
// none. All threads call it.
template <class PartialOf>
__device__ inline void join_warps(const AttentionCall& call, const WarpSums& sums, int n, const PartialOf& partial_of) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int row = warp; row < n; row += static_cast<int>(blockDim.x) / kWarp) {
    const int64_t to = partial_of(row);
    if (to < 0) continue;
    const float m = sums.max_of_all(row);
    for (int column = 4 * lane; column < sums.n_cols; column += 4 * kWarp) {
      float values[4] = {};
      const float total = sums.add(row, column, finite_max(m), values);
      *reinterpret_cast<float4*>(call.acc + to * sums.n_cols + column) = {values[0], values[1], values[2], values[3]};
      if (lane != 0 || column != 0) continue;
      call.max[to] = m;
      call.sum[to] = total;
    }
  }
}

// The same of neighbouring heads of a token that no other block has a part of: makes their rows of y, and its bytes where they are
// wanted, as merge_heads does. The heads' rows begin at `row0`. All threads call it.
__device__ inline void finish_heads(const AttentionCall& call, const WarpSums& sums, int row0, int token, int head0, int n_heads) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int n_cols = sums.n_cols;
  for (int base = kWarp * kLaneColumns * warp; base < n_heads * n_cols; base += kLaneColumns * static_cast<int>(blockDim.x)) {
    const int at = base + kLaneColumns * lane;
    const bool inside = at < n_heads * n_cols;
    float own[kLaneColumns] = {};
    if (inside) {
      const int h = at / n_cols, column = at % n_cols;
      const float sink = sink_of(call, head0 + h);
      const float m = finite_max(fmaxf(sums.max_of_all(row0 + h), sink));
      const float total = sums.add(row0 + h, column, m, own) + (call.sinks.data ? exp_of(sink - m) : 0.0f);
      const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
      float* const y = call.y_of(token, head0 + h) + column;
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) y[i] = own[i] *= inverse;
      if (column == 0) call.put_logarithm(token, head0 + h, m, total);
    }
    if (call.made.any()) encode_columns(own, inside, token, head0 * n_cols + at, call.n_head * n_cols, call.made);
  }
}

// The weights of a token's and head's first n splits, by one warp: weights [n] in shared memory. Returns the inverse of the
// sum, with the sink in it. What other blocks have written is read past the L1 cache.
__device__ inline float weigh_splits(const AttentionCall& call, int64_t row, int n, float* weights) {
  const int lane = threadIdx.x % kWarp, head = static_cast<int>(row % call.n_head);
  const int64_t first = row * call.n_splits;
  const float sink = sink_of(call, head);
  float m = sink;
  for (int i = lane; i < n; i += kWarp) {
    if (__ldcg(call.sum + first + i) != 0.0f) m = fmaxf(m, __ldcg(call.max + first + i));
  }
  m = finite_max(warp_max(m));
  float total = 0.0f;
  for (int i = lane; i < n; i += kWarp) {
    const float sum = __ldcg(call.sum + first + i);
    weights[i] = merge_weight(__ldcg(call.max + first + i), sum, m);
    total += weights[i] * sum;
  }
  total = warp_sum(total) + (call.sinks.data ? exp_of(sink - m) : 0.0f);
  if (lane == 0) call.put_logarithm(static_cast<int>(row / call.n_head), head, m, total);
  return total == 0.0f ? 0.0f : 1.0f / total;
}

// The weighted sum of four columns of a token's and head's first n splits, in split order.
__device__ inline float4 merged_four(const AttentionCall& call, int64_t row, int n, int column, const float* weights,
                                     float inverse) {
  float4 value{};
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    if (weights[i] == 0.0f) continue;
    const float* from = call.acc + (row * call.n_splits + i) * call.v.head_dim + column;
    const float4 v = __ldcg(reinterpret_cast<const float4*>(from));
    value.x += weights[i] * v.x, value.y += weights[i] * v.y;
    value.z += weights[i] * v.z, value.w += weights[i] * v.w;
  }
  return {value.x * inverse, value.y * inverse, value.z * inverse, value.w * inverse};
}

// Floats of shared memory for the merge of some heads: their rows of y, the inverses of their sums, and their splits'
// weights.
__host__ __device__ inline int merge_floats(int n_heads, int n_splits, int head_dim_v) {
  return n_heads * (head_dim_v + 1 + n_splits);
}

// Merges the first n_splits splits of a token and neighbouring heads into their rows of y, in split order, and adds the sinks to the
// sums; makes the bytes of y (handed_bytes.h) where they are wanted: the heads then have whole runs of kMergeColumns
// columns. All threads of the block call it. Reads 4 * n_splits * head_dim_v bytes a head, from the L2 cache.
__device__ inline void merge_heads(const AttentionCall& call, float* shared, int n_splits, int token, int head0, int n_heads) {
  const int head_dim = call.v.head_dim, n_threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int64_t row0 = static_cast<int64_t>(token) * call.n_head + head0;
  float *values = shared, *inverse = values + n_heads * head_dim, *weights = inverse + n_heads;
  for (int h = warp; h < n_heads; h += n_threads / kWarp) {
    const float by_sum = weigh_splits(call, row0 + h, n_splits, weights + h * n_splits);
    if (lane == 0) inverse[h] = by_sum;
  }
  __syncthreads();
  for (int i = 4 * thread; i < n_heads * head_dim; i += 4 * n_threads) {
    const int h = i / head_dim, column = i % head_dim;
    const float4 v = merged_four(call, row0 + h, n_splits, column, weights + h * n_splits, inverse[h]);
    float* y = call.y_of(token, head0 + h) + column;
    y[0] = v.x, y[1] = v.y, y[2] = v.z, y[3] = v.w;
    *reinterpret_cast<float4*>(values + i) = v;
  }
  if (!call.made.any()) return;
  __syncthreads();
  for (int i = kMergeColumns * warp; i < n_heads * head_dim; i += kMergeColumns * (n_threads / kWarp)) {
    float own[kLaneColumns];
#pragma unroll
    for (int c = 0; c < kLaneColumns; ++c) own[c] = values[i + kLaneColumns * lane + c];
    encode_columns(own, true, token, head0 * head_dim + i + kLaneColumns * lane, call.n_head * head_dim,
                   call.made);
  }
}

// Whether a block, whose split is stored, is the last one of those that count with one counter. All threads call it.
__device__ inline bool is_last_to_count(int* counter, int n_splits) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = count(counter, 1) == n_splits - 1;
    if (is_last) *counter = 0;
  }
  __syncthreads();
  return is_last;
}

// A split of some heads of a token, `heads` being a key-value head x part of its group, by all threads of a block. Positions and tables are inputs of the step, there before any of its kernels (fence.h); the
// rest of what is read was perhaps written by the kernel before.
template <class ReadK, class ReadV, int kLanes, int kHeads>
__device__ inline void decode_split(const AttentionCall& call, int token, int heads, int split, int* counter, uint8_t* shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int n_warps = static_cast<int>(blockDim.x) / kWarp;
  const int n_parts = (call.group + kHeads - 1) / kHeads;
  const int kv_head = heads / n_parts, part = heads % n_parts;
  const int head0 = kv_head * call.group + part * kHeads,
            n_heads = int_min(kHeads, call.group - part * kHeads);

  const PositionRange seen = call.in_part(seen_by(call.positions[token], call.window), call.sequences[token]);
  const int n_splits = counter ? splits_in_use(seen, call.n_splits) : call.n_splits;
  if (split >= n_splits) return wait_for_previous();
  const PositionRange range = split_of(seen, split, call.n_splits);
  if (range.begin >= range.end) {
    wait_for_previous();
    if (thread < n_heads) {
      call.max[call.partial(token, head0 + thread, split)] = -INFINITY;
      call.sum[call.partial(token, head0 + thread, split)] = 0.0f;
    }
    if (counter && is_last_to_count(counter, n_splits))
      merge_heads(call, reinterpret_cast<float*>(shared), n_splits, token, head0, n_heads);
    return;
  }
  const int32_t* table = call.block_table + static_cast<int64_t>(call.sequences[token]) * call.max_blocks;
  const WarpMemory layout(call.k, call.v);
  DecodeWarp<ReadK, ReadV, kLanes, kHeads> work{
      call, shared + warp * layout.size(kHeads), table, range, lane, kv_head};
  prefetch_tiles<ReadK, ReadV>(call, table, range, kv_head, warp, n_warps, lane);
  wait_for_previous();
  work.load_q(call.q + (static_cast<int64_t>(token) * call.n_head + head0) * call.k.head_dim, n_heads);
  work.run(warp, n_warps);
  wait_copies<0>();
  __syncthreads();  // the tiles have been read: their memory takes the sums
  float* left = reinterpret_cast<float*>(shared);
  work.store(left + warp * left_floats(kHeads, call.v.head_dim));
  __syncthreads();
  const WarpSums sums{left, kHeads, n_warps, call.v.head_dim};
  if (counter && n_splits == 1) return finish_heads(call, sums, 0, token, head0, n_heads);
  join_warps(call, sums, n_heads, [&](int h) { return call.partial(token, head0 + h, split); });
  if (counter && is_last_to_count(counter, n_splits)) merge_heads(call, left, n_splits, token, head0, n_heads);
}

// The kernel for a cache that is read so (attention_decode_kernels.cuh).
template <class ReadK, class ReadV>
AttentionKernel decode_kernel_of(const AttentionCall& call);

}  // namespace tandem::cuda
