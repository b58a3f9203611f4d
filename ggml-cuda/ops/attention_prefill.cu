// Attention of many tokens on tensor cores: flash attention (arXiv:2205.14135, 2307.08691) over the block
// cache.
//
// Layout: a block of 4 warps has 64 or 128 query rows (the query heads of one key-value head, token after token) and
// one split of the positions that they see; a warp has 16 or 32 rows as f16 or bf16 operands of mma.m16n8k16, with the running
// sums in registers. What a warp reads of a tile from shared memory, which bounds 16 rows a warp, serves 32 rows. Tiles of 64 positions (32 for heads over 128) go from the cache blocks
// to shared memory, two deep: cp.async where the cache has the operands' type, through registers where it is
// quantized. Rows of 16-byte padded stride let ldmatrix read without bank conflicts. Tokens of several
// sequences in a tile are served one sequence after the other, each with the other rows masked.
//
// Floors, for n tokens at positions 0..n-1: 2 n^2 / 2 * H * (hd_k + hd_v) operations at about 600 TFLOP/s
// (what mma.sync reaches on sm_90): Llama-3.1-8B at n = 4096: 137 GFLOP a layer, 0.23 ms. Bytes: 4 n H (hd_k
// + hd_v) of q and y plus the cache once a query tile, which the L2 cache serves.
#include "ggml-cuda/attention_rows.cuh"
#include "ggml-cuda/attention_warp.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;

// Where the rows of two tiles are. Of caches of the operands' type: bytes in the pools.
struct alignas(16) BytePlaces {
  int64_t k, v;
};
template <bool kNative, int kTile>
struct TilePlaces {
  BytePlaces row[2][kTile];
};
template <int kTile>
struct TilePlaces<false, kTile> {
  int block[2][kTile], offset[2][kTile];
  int place[2][kTile];  // among the open blocks, or -1
};

// Head dims up to kDim; 16-bit elements.
template <int kDim, bool kNative, int kParts>
struct PrefillMemory {
  static constexpr int kTile = kDim <= 128 ? 64 : 32;  // positions
  static constexpr int kRows = kQueryTile * kParts;    // queries
  using Warp = QueryWarp<HalfOperands, kDim, kTile, kParts>;
  static constexpr int kStride = Warp::kStride;  // elements
  uint16_t k[2][kTile][kStride], v[2][kTile][kStride];
  TilePlaces<kNative, kTile> places;
  int32_t positions[kRows], sequences[kRows];
  uint4 q[kThreads / kWarp][Warp::kStoredBytes / 16 + 1];  // one more, because an array is not empty
};

// Key and value tiles of one sequence, from cache blocks to shared memory. kNative: both have the operands'
// type. What a tile's rows need of the block table, and the divisions for it, is found once a row, two tiles ahead.
template <class Operands, int kDim, bool kNative, int kParts>
struct TileLoader {
  using Memory = PrefillMemory<kDim, kNative, kParts>;
  const AttentionCall& call;
  Memory& memory;
  int kv_head;

  // Columns past the head dim are read as operands and must be zero; only this function writes them.
  __device__ void clear_padding() const {
    for (int i = threadIdx.x; i < 2 * Memory::kTile; i += kThreads) {
      for (int d = call.k.head_dim; d < kDim; ++d) memory.k[i & 1][i >> 1][d] = 0;
      for (int d = call.v.head_dim; d < kDim; ++d) memory.v[i & 1][i >> 1][d] = 0;
    }
  }

  // The places of the rows of positions first .. first + kTile - 1 are found in two steps, so that nobody waits for the block table:
  // look_up() asks it, and put_places() leaves them for load() behind a barrier. Outside of the range the first row in it
  // stands for others, which may hold anything, NaN too: they have weight 0, and 0 times anything finite is 0.
  struct Found {
    int block, offset;  // of the thread's row, if it has one
  };
  static constexpr int kThreadsARow = kThreads / Memory::kTile;  // every so many threads have a row: all warps have as many
  __device__ Found look_up(const int32_t* table, PositionRange range, int first) const {
    static_assert(kThreads % Memory::kTile == 0);
    const int r = static_cast<int>(threadIdx.x) / kThreadsARow;
    const bool inside = first + r >= range.begin && first + r < range.end;
    const int position = inside ? first + r : range.begin;
    const int in_table = position / call.block_size;
    return {table[in_table], position - in_table * call.block_size};
  }
  __device__ void put_places(const Found& found, int stage) const {
    const int r = static_cast<int>(threadIdx.x) / kThreadsARow;
    if (static_cast<int>(threadIdx.x) % kThreadsARow != 0) return;
    if constexpr (kNative) {
      memory.places.row[stage][r] = {call.row_in(call.k, found.block, kv_head, found.offset) * call.k.row_bytes,
                                     call.row_in(call.v, found.block, kv_head, found.offset) * call.v.row_bytes};
    } else {
      memory.places.block[stage][r] = found.block;
      memory.places.offset[stage][r] = found.offset;
      memory.places.place[stage][r] = call.place_of(found.block);
    }
  }

  // Eight columns of a row.
  __device__ void put(uint16_t* to, const CachePool& pool, int block, int place, int offset, int chunk) const {
    uint4* target = reinterpret_cast<uint4*>(to + 8 * chunk);
    const RowAt row = row_at(call, pool, block, place, kv_head, offset);
    if (row.dtype == Operands::kDType) return copy_16_async(target, row.from + 16 * chunk);
    float x[8];
    row.eight(chunk, x);
    *target = {Operands::pack(x[0], x[1]), Operands::pack(x[2], x[3]), Operands::pack(x[4], x[5]),
               Operands::pack(x[6], x[7])};
  }

  // Loads the tile whose places are there.
  __device__ void load(int stage) const {
    constexpr int kChunks = kDim / 8, kRows = kThreads / kChunks;  // rows at a time
    static_assert(Memory::kTile % kRows == 0);
    const int chunk = static_cast<int>(threadIdx.x) % kChunks, row0 = static_cast<int>(threadIdx.x) / kChunks;
    const bool has_k = 8 * chunk < call.k.head_dim, has_v = 8 * chunk < call.v.head_dim;
    if constexpr (kNative) {
      const uint8_t *k = call.k.data + 16 * chunk, *v = call.v.data + 16 * chunk;
#pragma unroll
      for (int i = 0; i < Memory::kTile; i += kRows) {
        const BytePlaces place = memory.places.row[stage][i + row0];
        if (has_k) copy_16_async(&memory.k[stage][i + row0][8 * chunk], k + place.k);
        if (has_v) copy_16_async(&memory.v[stage][i + row0][8 * chunk], v + place.v);
      }
    } else {
#pragma unroll 1
      for (int r = row0; r < Memory::kTile; r += kRows) {
        const int block = memory.places.block[stage][r], place = memory.places.place[stage][r],
                  offset = memory.places.offset[stage][r];
        if (has_k) put(memory.k[stage][r], call.k, block, place, offset, chunk);
        if (has_v) put(memory.v[stage][r], call.v, block, place, offset, chunk);
      }
    }
    commit_copies();
  }
};

// The query rows of a warp among those of the block.
template <class Operands, int kDim, bool kNative, int kParts>
struct PrefillWarp {
  using Memory = PrefillMemory<kDim, kNative, kParts>;
  const AttentionCall& call;
  const Memory& memory;
  using Rows = QueryWarp<Operands, kDim, Memory::kTile, kParts>;
  Rows rows;
  int flat[Rows::kLaneRows];  // of this lane's rows; past the end for rows that are not there

  __device__ bool exists(int r, int n_rows) const { return flat[r] < n_rows; }

  __device__ void load_q(int kv_head, int n_rows) {
    const float* from[Rows::kLaneRows];
    bool exist[Rows::kLaneRows];
#pragma unroll
    for (int r = 0; r < Rows::kLaneRows; ++r) {
      exist[r] = exists(r, n_rows);
      const QueryRow row = query_row(exist[r] ? flat[r] : 0, call.group);
      const int64_t head = static_cast<int64_t>(row.token) * call.n_head + kv_head * call.group + row.head;
      from[r] = call.q + head * call.k.head_dim;
    }
    rows.start(from, exist, call.k.head_dim, call.scale);
  }

  // Processes one tile of positions; warps that see none of it have only waited for it.
  __device__ void attend(int first, int stage) {
    const int end = first + Memory::kTile;
    bool sees = false;
#pragma unroll
    for (const PositionRange& seen : rows.seen) sees |= first < seen.end && end > seen.begin;
    if (!__any_sync(kAllLanes, sees)) return;
    typename Rows::Scores s;
    rows.scores(memory.k[stage], call.k.head_dim, s);
    rows.cap_and_mask(call.softcap, first, s);
    rows.soften(s);
    rows.add_values(memory.v[stage], call.v.head_dim, s);
  }

  // Stores the whole result, or a split's partial one.
  __device__ void store(int kv_head, int n_rows, int split) {
    rows.add_up();
#pragma unroll
    for (int r = 0; r < Rows::kLaneRows; ++r) {
      if (!exists(r, n_rows)) continue;
      const float max = rows.max[r], sum = rows.sum[r];
      const QueryRow row = query_row(flat[r], call.group);
      const int head = kv_head * call.group + row.head;
      const int64_t to = call.partial(row.token, head, split);
      float factor = 1.0f;
      float* target = call.acc + to * call.v.head_dim;
      if (call.n_splits > 1) {
        if (rows.lane % 4 == 0) {
          call.max[to] = max;
          call.sum[to] = sum;
        }
      } else {
        const float sink = sink_of(call, head), most = finite_max(fmaxf(max, sink));
        factor = merge_weight(max, sum, most);
        const float total =
            (factor == 0.0f ? 0.0f : sum * factor) + (call.sinks.data ? exp_of(sink - most) : 0.0f);
        factor = total == 0.0f ? 0.0f : factor / total;
        target = call.y_of(row.token, head);
        if (rows.lane % 4 == 0) call.put_logarithm(row.token, head, most, total);
      }
#pragma unroll
      for (int tile = 0; tile < kDim / 8; ++tile) {
        const int col = 8 * tile + place_in_c(rows.lane, 0).col;
        if (8 * tile >= call.v.head_dim) break;
        const float(&c)[4] = rows.o[r / 2][tile];
        const float2 two{c[2 * (r % 2)] * factor, c[2 * (r % 2) + 1] * factor};
        if (call.y_cols % 2 == 0) {
          *reinterpret_cast<float2*>(target + col) = two;
        } else {  // a logarithm for each of an odd number of heads: every other row begins between two
          target[col] = two.x;
          target[col + 1] = two.y;
        }
      }
    }
  }
};

// Grid: x key-value head, y tile of query rows (the last first: they see most), z split.
template <class Operands, int kDim, bool kNative, int kParts>
__global__ void __launch_bounds__(kThreads, kDim * kParts <= 128 ? 3 : 2)
    attention_prefill(const __grid_constant__ AttentionCall call) {
  using Memory = PrefillMemory<kDim, kNative, kParts>;
  extern __shared__ __align__(16) uint8_t shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, kv_head = blockIdx.x;
  const int n_rows = call.n_tokens * call.group;
  const int row0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Memory::kRows;
  const int row_last = int_min(row0 + Memory::kRows, n_rows) - 1;
  const int token0 = query_row(row0, call.group).token,
            n_tokens = query_row(row_last, call.group).token - token0 + 1;

  const TileLoader<Operands, kDim, kNative, kParts> loader{call, memory, kv_head};
  loader.clear_padding();
  for (int i = threadIdx.x; i < n_tokens; i += kThreads) {
    memory.positions[i] = call.positions[token0 + i];
    memory.sequences[i] = call.sequences[token0 + i];
  }
  using Warp = PrefillWarp<Operands, kDim, kNative, kParts>;
  Warp work{call, memory, {lane, memory.q[warp]}};
#pragma unroll
  for (int r = 0; r < Warp::Rows::kLaneRows; ++r) work.flat[r] = row0 + Warp::Rows::kRows * warp + work.rows.row(r);
  work.load_q(kv_head, n_rows);
  __syncthreads();

  for (int leader = 0; leader < n_tokens; ++leader) {
    if (!leads_sequence(memory.sequences, leader)) continue;
    const int32_t sequence = memory.sequences[leader];
    const PositionRange any = call.in_part(
        seen_by_any(memory.positions, memory.sequences, n_tokens, sequence, call.window), sequence);
    const PositionRange range = split_of(any, blockIdx.z, call.n_splits);
    if (range.begin >= range.end) continue;
#pragma unroll
    for (int r = 0; r < Warp::Rows::kLaneRows; ++r) {
      const int i = work.exists(r, n_rows) ? query_row(work.flat[r], call.group).token - token0 : 0;
      const bool mine = work.exists(r, n_rows) && memory.sequences[i] == sequence;
      PositionRange& seen = work.rows.seen[r];
      seen = mine ? call.in_part(seen_by(memory.positions[i], call.window), sequence) : PositionRange{0, 0};
      seen = {int_max(seen.begin, range.begin), int_min(seen.end, range.end)};
    }
    const int32_t* table = call.block_table + static_cast<int64_t>(sequence) * call.max_blocks;
    int first = range.begin / Memory::kTile * Memory::kTile;
    loader.put_places(loader.look_up(table, range, first), 0);
    loader.put_places(loader.look_up(table, range, first + Memory::kTile), 1);
    __syncthreads();
    loader.load(0);
    for (int stage = 0; first < range.end; first += Memory::kTile, stage ^= 1) {
      wait_copies<0>();
      __syncthreads();  // this tile has arrived, and all warps have read the other stage
      if (first + Memory::kTile < range.end) loader.load(stage ^ 1);
      const auto found = loader.look_up(table, range, first + 2 * Memory::kTile);
      work.attend(first, stage);
      loader.put_places(found, stage);  // of two tiles further; this one's have been read before the barrier
    }
    __syncthreads();  // all warps have read the last tile
  }
  work.store(kv_head, n_rows, blockIdx.z);
}

template <class Operands, int kDim, bool kNative, int kParts = 1>
AttentionKernel kernel_of() {
  using Memory = PrefillMemory<kDim, kNative, kParts>;
  return {attention_prefill<Operands, kDim, kNative, kParts>, kThreads, sizeof(Memory), 1, Memory::kRows};
}

template <class Operands, bool kNative>
AttentionKernel choose_dim(int head_dim) {
  if (head_dim <= 64) return kernel_of<Operands, 64, kNative>();
  if (head_dim <= 128) return kernel_of<Operands, 128, kNative>();
  return kernel_of<Operands, 256, kNative>();
}

}  // namespace

AttentionKernel prefill_kernel(const AttentionCall& call, size_t shared_limit) {
  const int most = int_max(call.k.head_dim, call.v.head_dim);
  if (most > 256 || call.k.head_dim % 8 != 0 || call.v.head_dim % 8 != 0) return {};
  AttentionKernel chosen;
  const auto both_are = [&](DType dtype) { return call.k.dtype == dtype && call.v.dtype == dtype; };
  if (both_are(DType::F16)) {
    chosen = choose_dim<HalfOperands, true>(most);
  } else if (both_are(DType::BF16)) {
    chosen = choose_dim<BFloatOperands, true>(most);
  } else if (is_half_like(call.k.dtype) && is_half_like(call.v.dtype)) {
    chosen = choose_dim<HalfOperands, false>(most);
  }
  return chosen.shared_bytes <= shared_limit ? chosen : AttentionKernel{};
}

AttentionKernel wide_prefill_kernel(const AttentionCall& call, size_t shared_limit) {
  const int most = int_max(call.k.head_dim, call.v.head_dim);
  if (!prefill_kernel(call, shared_limit).kernel || most > 128 || call.k.dtype != call.v.dtype) return {};
  AttentionKernel chosen;
  if (call.k.dtype == DType::F16)
    chosen = most <= 64 ? kernel_of<HalfOperands, 64, true, 2>() : kernel_of<HalfOperands, 128, true, 2>();
  if (call.k.dtype == DType::BF16)
    chosen = most <= 64 ? kernel_of<BFloatOperands, 64, true, 2>() : kernel_of<BFloatOperands, 128, true, 2>();
  return 2 * chosen.shared_bytes <= shared_limit ? chosen : AttentionKernel{};
}

void launch_prefill(const AttentionKernel& kernel, const AttentionCall& call, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(call.n_head_kv),
                  static_cast<unsigned>(query_tiles(call.n_tokens, call.group, kernel.query_rows)),
                  static_cast<unsigned>(call.n_splits));
  kernel.kernel<<<grid, kernel.n_threads, kernel.shared_bytes, stream>>>(call);
  check_launch("attention_prefill");
}

}  // namespace tandem::cuda
