// Attention of few tokens on tensor cores: split-KV flash decoding, with the query heads of a key-value head and the tokens of a
// sequence packed as the 16 rows of a product.
//
// Layout: a block has the rows of one key-value head (of more than 16 heads, a part of them), for those of as many tokens as fit into 16
// rows that are of one sequence, and one split of the positions that they see; the first of these tokens has the block, those of the
// others end at once. A warp takes tiles of 16 positions in turn, alone, each copied 16 bytes a lane, two deep, keys and values as
// groups of their own: rows of the operands' type to padded rows, which ldmatrix reads; rows of codes as they are, to be unpacked
// to such rows when they are there. At the end the warps' sums are joined, and the splits merged, as attention_decode does.
//
// Floors, for n positions: n * Hkv * (row_bytes_k + row_bytes_v) / 3 TB/s. What a tile takes a warp to issue does not depend on
// the number of rows: see FLOORS.md, "Decode attention on tensor cores". attention_decode, in floats, takes as much for each
// head more.
#include "ggml-cuda/attention_decode.cuh"
#include "ggml-cuda/attention_warp.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128, kTile = kDecodeTile;  // threads: at most
constexpr size_t kReservedBytes = 1024;             // of shared memory, for each block by the driver; and a little is static

// How a cache's rows become operands: copied, or unpacked.
template <class O>
struct CopiedRows {
  using Operands = O;
  static constexpr bool kUnpacked = false;
};
template <class H>
struct UnpackedRows {
  using Operands = HalfOperands;
  using Halves = H;
  static constexpr bool kUnpacked = true;
};

// Shared memory of a warp: two stages of a tile of keys and one of values, as operands or as they are in the cache; of the latter
// also a tile as operands, of keys or of values.
template <class Format, int kDim>
struct PackedMemory {
  static constexpr int kOperands = kTile * (kDim + 8) * 2;
  int k_bytes, v_bytes;  // a tile of a stage; multiples of 16

  __host__ __device__ PackedMemory(const CachePool& k, const CachePool& v)
      : k_bytes(Format::kUnpacked ? tile_bytes(k) : kOperands), v_bytes(Format::kUnpacked ? tile_bytes(v) : kOperands) {}
  __host__ __device__ int stage(int index) const { return (index & 1) * (k_bytes + v_bytes); }
  __host__ __device__ int operands() const { return 2 * (k_bytes + v_bytes); }
  __host__ __device__ int size() const { return operands() + (Format::kUnpacked ? kOperands : 0); }
};

template <class Format, int kDim>
struct PackedWarp {
  using Operands = typename Format::Operands;
  using Rows = QueryWarp<Operands, kDim, kTile>;
  using Row = typename Rows::Row;
  const AttentionCall& call;
  const PackedMemory<Format, kDim> layout;
  uint8_t* memory;  // of this warp
  int kv_head;
  Rows rows;

  __device__ Row* operands_at(int offset) const { return reinterpret_cast<Row*>(memory + offset); }

  // Columns between the head dim and the next 16 are read as operands.
  __device__ void clear_padding() const {
    if constexpr (!Format::kUnpacked) {  // heads of codes have whole blocks of 32
      for (int stage = 0; stage < 2; ++stage) {
        for (int i = rows.lane; i < 2 * kTile; i += kWarp) {
          Row* const tile = operands_at(layout.stage(stage) + (i < kTile ? 0 : layout.k_bytes));
          const int begin = i < kTile ? call.k.head_dim : call.v.head_dim;
          for (int d = begin; d < (begin + 15) / 16 * 16; ++d) tile[i % kTile][d] = 0;
        }
      }
    }
  }

  // Two groups of copies, empty past the end, so every step of the loop has the same number in flight.
  __device__ void fetch(int block, int offset, int step) const {
    const int at = layout.stage(step);
    if (block >= 0) copy_tile(at, call.k, block, offset);
    commit_copies();
    if (block >= 0) copy_tile(at + layout.k_bytes, call.v, block, offset);
    commit_copies();
  }
  __device__ void copy_tile(int to, const CachePool& pool, int block, int offset) const {
    const uint8_t* from = pool.row(call.row_in(pool, block, kv_head, offset));
    if constexpr (Format::kUnpacked) {
#pragma unroll 4
      for (int i = 16 * rows.lane; i < tile_bytes(pool); i += 16 * kWarp) copy_16_async(memory + to + i, from + i);
    } else {
      constexpr int kLanes = kDim / 8;  // of a row
      const int chunk = rows.lane % kLanes;
      if (8 * chunk >= pool.head_dim) return;
      Row* const tile = operands_at(to) + rows.lane / kLanes;
      const auto copy = [&](int row_bytes) {
        const uint8_t* const own = from + rows.lane / kLanes * row_bytes + 16 * chunk;
#pragma unroll
        for (int row = 0; row < kTile; row += kWarp / kLanes) copy_16_async(&tile[row][8 * chunk], own + row * row_bytes);
      };
      pool.row_bytes == 2 * kDim ? copy(2 * kDim) : copy(pool.row_bytes);  // most: with offsets that the instructions have
    }
  }

  // The tile of a stage as operands; `at`: its bytes. Rows outside of the range may hold anything, NaN too: of values they are zeros.
  __device__ const Row* operands_of(int at, const CachePool& pool, PositionRange range, int first) const {
    const bool whole = first >= range.begin && first + kTile <= range.end;
    const auto is_outside = [&](int r) { return !whole && (first + r < range.begin || first + r >= range.end); };
    if constexpr (Format::kUnpacked) {
      using Halves = typename Format::Halves;
      constexpr int kLanes = kDim / Halves::kElements;  // of a row
      Row* const to = operands_at(layout.operands());
      const int unit = rows.lane % kLanes;
      if (Halves::kElements * unit < pool.head_dim) {
#pragma unroll
        for (int row = 0; row < kTile; row += kWarp / kLanes) {
          const int r = row + rows.lane / kLanes;
          uint32_t pairs[Halves::kEights][4] = {};
          if (!is_outside(r)) Halves::unpack(memory + at + r * pool.row_bytes, unit, pairs);
#pragma unroll
          for (int e = 0; e < Halves::kEights; ++e) {
            uint4* eight = reinterpret_cast<uint4*>(&to[r][Halves::column_of(unit, e)]);
            *eight = {pairs[e][0], pairs[e][1], pairs[e][2], pairs[e][3]};
          }
        }
      }
      __syncwarp();
      return to;
    } else {
      if (pool.half == Half::values && !whole) {
        for (int i = rows.lane; i < kTile * (kDim / 8); i += kWarp) {
          const int r = i / (kDim / 8);
          uint4* eight = reinterpret_cast<uint4*>(&operands_at(at)[r][8 * (i % (kDim / 8))]);
          if (is_outside(r)) *eight = {0, 0, 0, 0};
        }
        __syncwarp();
      }
      return operands_at(at);
    }
  }

  // The warp's share of a range of one sequence's positions.
  __device__ void run(const int32_t* table, PositionRange range, int warp, int n_warps) {
    const int end_tile = (range.end + kTile - 1) / kTile;
    int tile = range.begin / kTile + warp;
    // The tile that is fetched next. Its block is read from the table when the one in front of it has been asked for, so that nothing
    // waits for it; and a turn divides nothing.
    int next = tile, offset = tile * kTile % call.block_size;
    const int32_t* entry = table + tile * kTile / call.block_size;
    const int turn = n_warps * kTile, turn_entries = turn / call.block_size, turn_offset = turn % call.block_size;
    int block = next < end_tile ? *entry : -1;
    const auto fetch_next = [&](int step) {
      fetch(block, offset, step);
      next += n_warps, entry += turn_entries, offset += turn_offset;
      if (offset >= call.block_size) offset -= call.block_size, ++entry;
      block = next < end_tile ? *entry : -1;
    };
    fetch_next(0);
    fetch_next(1);
    for (int step = 0; tile < end_tile; ++step, tile += n_warps) {
      const int at = layout.stage(step), first = tile * kTile;
      typename Rows::Scores s;
      wait_copies<3>();
      __syncwarp();
      rows.scores(operands_of(at, call.k, range, first), call.k.head_dim, s);
      rows.cap_and_mask(call.softcap, first, s);
      rows.soften(s);
      wait_copies<2>();
      __syncwarp();  // the values are there, and all lanes have read the keys
      rows.add_values(operands_of(at + layout.k_bytes, call.v, range, first), call.v.head_dim, s);
      __syncwarp();  // all lanes have read this stage
      fetch_next(step);
    }
  }

  // Into shared memory: acc [kPackedRows, head_dim_v], max [kPackedRows], sum [kPackedRows].
  __device__ void store(float* to) {
    rows.add_up();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = rows.row(r);
#pragma unroll
      for (int tile = 0; tile < kDim / 8; ++tile) {
        if (8 * tile >= call.v.head_dim) break;
        float2* two = reinterpret_cast<float2*>(to + row * call.v.head_dim + 8 * tile + place_in_c(rows.lane, 0).col);
        *two = {rows.o[0][tile][2 * r], rows.o[0][tile][2 * r + 1]};
      }
      if (rows.lane % 4 != 0) continue;
      to[kPackedRows * call.v.head_dim + row] = rows.max[r];
      to[kPackedRows * (call.v.head_dim + 1) + row] = rows.sum[r];
    }
  }
};

// Grid: x token, y key-value head x part of its group, z split. Positions, sequences and tables are inputs of the step, there before
// any of its kernels (fence.h).
template <class Format, int kDim>
__global__ void __launch_bounds__(kThreads, 3) attention_packed(const __grid_constant__ AttentionCall call) {
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_begin();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            n_warps = static_cast<int>(blockDim.x) / kWarp;
  const int leader = static_cast<int>(blockIdx.x), split = static_cast<int>(blockIdx.z);
  const int token0 = leader / packed_tokens(call.group) * packed_tokens(call.group),
            n_tokens = int_min(packed_tokens(call.group), call.n_tokens - token0);
  const int32_t *sequences = call.sequences + token0, *positions = call.positions + token0;
  if (!leads_sequence(sequences, leader - token0)) return wait_for_previous();
  const int32_t sequence = sequences[leader - token0];
  const PositionRange any =
      call.in_part(seen_by_any(positions, sequences, n_tokens, sequence, call.window), sequence);
  const int n_splits = call.counters ? splits_in_use(any, call.n_splits) : call.n_splits;
  if (split >= n_splits) return wait_for_previous();
  const PositionRange range = split_of(any, split, call.n_splits);
  const int32_t* table = call.block_table + static_cast<int64_t>(sequence) * call.max_blocks;

  const int n_parts = (call.group + kPackedRows - 1) / kPackedRows;
  const int kv_head = static_cast<int>(blockIdx.y) / n_parts, part = static_cast<int>(blockIdx.y) % n_parts;
  const int head0 = kv_head * call.group + part * kPackedRows,
            n_heads = int_min(kPackedRows, call.group - part * kPackedRows);
  const auto is_mine = [&](int row) {
    return row < n_tokens * n_heads && call.sequences[token0 + row / n_heads] == sequence;
  };

  const PackedMemory<Format, kDim> layout(call.k, call.v);
  PackedWarp<Format, kDim> work{call, layout, shared + warp * layout.size(), kv_head, {lane}};
  bool mine[2];
  const float* q[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = work.rows.row(r);
    mine[r] = is_mine(row);
    const int token = mine[r] ? token0 + row / n_heads : leader;
    q[r] = call.q + (static_cast<int64_t>(token) * call.n_head + head0 + row % n_heads) * call.k.head_dim;
    // Rows that are not there see all: nothing is masked for them, and nobody reads what they add up.
    const PositionRange seen = mine[r] ? call.in_part(seen_by(call.positions[token], call.window), sequence) : range;
    work.rows.seen[r] = {int_max(seen.begin, range.begin), int_min(seen.end, range.end)};
  }
  work.clear_padding();
  if (range.begin < range.end) prefetch_tiles<ReadF16, ReadF16>(call, table, range, kv_head, warp, n_warps, lane);  // of any dtype here
  wait_for_previous();
  work.rows.start(q, mine, call.k.head_dim, call.scale);
  if (range.begin < range.end) work.run(table, range, warp, n_warps);
  wait_copies<0>();
  __syncthreads();  // the tiles have been read: their memory takes the sums
  float* left = reinterpret_cast<float*>(shared);
  work.store(left + warp * left_floats(kPackedRows, call.v.head_dim));
  __syncthreads();
  const WarpSums sums{left, kPackedRows, n_warps, call.v.head_dim};
  const bool is_alone = call.counters && n_splits == 1;
  if (!is_alone) {
    join_warps(call, sums, n_tokens * n_heads, [&](int row) {
      return is_mine(row) ? call.partial(token0 + row / n_heads, head0 + row % n_heads, split) : -1;
    });
    if (!call.counters || !is_last_to_count(call.counters + blockIdx.x * gridDim.y + blockIdx.y, n_splits)) return;
  }
  for (int token = leader; token < token0 + n_tokens; ++token) {
    if (call.sequences[token] != sequence) continue;
    if (is_alone) {
      finish_heads(call, sums, (token - token0) * n_heads, token, head0, n_heads);
    } else {
      merge_heads(call, left, n_splits, token, head0, n_heads);
      __syncthreads();  // the next one uses the same memory
    }
  }
}

template <class Format, int kDim>
AttentionKernel kernel_of(const AttentionCall& call, size_t shared_limit) {
  const int tiles = PackedMemory<Format, kDim>(call.k, call.v).size();
  const int left = left_floats(kPackedRows, call.v.head_dim) * static_cast<int>(sizeof(float));
  const int n_warps = warps_for_two_blocks(kThreads / kWarp, static_cast<size_t>(int_max(tiles, left)), shared_limit);
  const size_t bytes = static_cast<size_t>(n_warps) * static_cast<size_t>(int_max(tiles, left));
  AttentionKernel kernel{attention_packed<Format, kDim>, n_warps * kWarp, bytes, kPackedRows};
  // A warp waits for what it does one after the other, so that a third block is worth a longer merge.
  if (kThreads == n_warps * kWarp && 3 * (bytes + kReservedBytes) <= shared_limit + kReservedBytes) kernel.n_resident = 3;
  return kernel;
}

template <class Format>
AttentionKernel choose_dim(const AttentionCall& call, size_t shared_limit) {
  return int_max(call.k.head_dim, call.v.head_dim) <= 64 ? kernel_of<Format, 64>(call, shared_limit)
                                                         : kernel_of<Format, 128>(call, shared_limit);
}

AttentionKernel choose(const AttentionCall& call, size_t shared_limit) {
  switch (call.k.dtype) {
    case DType::F16: return choose_dim<CopiedRows<HalfOperands>>(call, shared_limit);
    case DType::BF16: return choose_dim<CopiedRows<BFloatOperands>>(call, shared_limit);
    case DType::Q8_0: return choose_dim<UnpackedRows<HalvesOfQ8_0>>(call, shared_limit);
    case DType::Q4_0: return choose_dim<UnpackedRows<HalvesOfQ4_0>>(call, shared_limit);
    default: return {};
  }
}

}  // namespace

AttentionKernel packed_kernel(const AttentionCall& call, size_t shared_limit) {
  const bool fits = int_max(call.k.head_dim, call.v.head_dim) <= 128 && call.k.head_dim % 8 == 0 && call.v.head_dim % 8 == 0;
  const bool in_keys = call.v.half == Half::keys;
  if (!fits || call.block_size % kTile != 0 || call.k.dtype != call.v.dtype || in_keys) return {};
  const AttentionKernel chosen = choose(call, shared_limit);
  return chosen.shared_bytes + 64 <= shared_limit ? chosen : AttentionKernel{};  // a little is static
}

void launch_packed(const AttentionKernel& kernel, const AttentionCall& call, cudaStream_t stream) {
  const int n_parts = (call.group + kPackedRows - 1) / kPackedRows;
  const dim3 grid(static_cast<unsigned>(call.n_tokens), static_cast<unsigned>(call.n_head_kv * n_parts),
                  static_cast<unsigned>(call.n_splits));
  launch_overlapping(kernel.kernel, grid, kernel.n_threads, kernel.shared_bytes, stream, call);
}

}  // namespace tandem::cuda
