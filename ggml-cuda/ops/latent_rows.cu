// Rows of keys and values from latent rows, for the expanded form of latent attention: [c k_up_h, r] and c v_up_h^T.
//
// Layout: a block of 8 warps makes up to 128 columns of a head's keys or values for 128 positions, each warp those of 16
// positions. Latent columns and the matrix go through shared memory 64 at a time; k_up, whose rows are latent columns,
// is read transposed by ldmatrix. Rows of 16-byte padded stride avoid bank conflicts.
//
// Floors: 2 * H * rank * (n_key + n_value) operations a position at about 600 TFLOP/s (DeepSeek V3: 33.6 MFLOP, 4096
// positions 0.23 ms), and 2 H (n_key + n_rot + n_value) bytes written, 82 KB (4096 positions: 0.11 ms). Every slab of 64
// columns is 32 KB from the L2 cache for 2.1 MFLOP, so that at 5.5 TB/s of L2 at most 360 TFLOP/s are reached.
#include "ggml-cuda/attention_fragments.h"
#include "ggml-cuda/attention_mma.cuh"
#include "ggml-cuda/attention_unpack.h"
#include "ggml-cuda/latent_rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kTile = 128;  // positions, and columns
constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kSlab = 64;  // latent columns at a time
constexpr int kStride = kSlab + 8, kWideStride = kTile + 8;

struct alignas(16) LatentRowsMemory {
  uint16_t latent[kTile][kStride];
  union {
    uint16_t v[kTile][kStride];      // rows are columns of the result
    uint16_t k[kSlab][kWideStride];  // rows are latent columns
  };
};

// Eight elements of a cached row as operands.
template <class Operands>
__device__ uint4 eight_of(const CachePool& cache, const uint8_t* row, int chunk) {
  if (cache.dtype == Operands::kDType) return *reinterpret_cast<const uint4*>(row + 16 * chunk);
  float x[8];
  read_eight(cache.dtype, row, chunk, x);
  return {Operands::pack(x[0], x[1]), Operands::pack(x[2], x[3]), Operands::pack(x[4], x[5]),
          Operands::pack(x[6], x[7])};
}

__device__ inline const uint8_t* row_of(const LatentRowsCall& call, const int32_t* table, int position) {
  return call.cache.row(
      block_row(table[position / call.block_size], 0, position % call.block_size, 1, call.block_size));
}

template <class Operands>
__device__ void load_latent(const LatentRowsCall& call, LatentRowsMemory& memory, const int32_t* table,
                            int row0, int column0) {
  for (int i = threadIdx.x; i < kTile * kSlab / 8; i += kThreads) {
    const int r = i / (kSlab / 8), column = column0 + i % (kSlab / 8) * 8;
    const bool inside = row0 + r < call.n && column < call.rank;
    uint4* to = reinterpret_cast<uint4*>(&memory.latent[r][column - column0]);
    *to = inside ? eight_of<Operands>(call.cache, row_of(call, table, call.first + row0 + r), column / 8)
                 : uint4{0, 0, 0, 0};
  }
}

// Some rows of 8 * n_chunks elements to shared memory, zeros where they end.
template <int kTo>
__device__ void load_matrix(uint16_t (*to)[kTo], int n_chunks, int n_to, const uint16_t* from, int ld,
                            int n_rows, int n_cols) {
  for (int i = threadIdx.x; i < n_to * n_chunks; i += kThreads) {
    const int r = i / n_chunks, column = i % n_chunks * 8;
    const bool inside = r < n_rows && column < n_cols;
    uint4* target = reinterpret_cast<uint4*>(&to[r][column]);
    *target = inside ? *reinterpret_cast<const uint4*>(from + static_cast<int64_t>(r) * ld + column)
                     : uint4{0, 0, 0, 0};
  }
}

// c += the slab's latent columns, of a warp's positions, times the matrix.
template <class Operands, bool kKeys>
__device__ void multiply_slab(const LatentRowsMemory& memory, int warp, int lane, float (&c)[kTile / 8][4]) {
  const Place at = kKeys ? value_row_of(lane) : key_row_of(lane);
#pragma unroll
  for (int step = 0; step < kSlab / 16; ++step) {
    uint32_t a[4], b[4];
    load_matrices(a, &memory.latent[16 * warp + lane % 16][16 * step + lane / 16 * 8]);
#pragma unroll
    for (int tile = 0; tile < kTile / 8; tile += 2) {
      if constexpr (kKeys) {
        load_matrices_trans(b, &memory.k[16 * step + at.row][8 * tile + at.col]);
      } else {
        load_matrices(b, &memory.v[8 * tile + at.row][16 * step + at.col]);
      }
      Operands::multiply(c[tile], a, b[0], b[1]);
      Operands::multiply(c[tile + 1], a, b[2], b[3]);
    }
  }
}

// Columns [column0, column0 + kTile) of a head's keys without the rotated ones, or values.
template <class Operands, bool kKeys>
__device__ void make_columns(const LatentRowsCall& call, LatentRowsMemory& memory, const int32_t* table,
                             int row0, int column0, int head) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int n_cols = kKeys ? call.n_key : call.n_value;
  const uint16_t* matrix = (kKeys ? call.k_up : call.v_up) + static_cast<int64_t>(head) * n_cols * call.rank;
  float c[kTile / 8][4] = {};
  for (int slab = 0; slab < call.rank; slab += kSlab) {
    __syncthreads();  // all warps have read the slab before
    load_latent<Operands>(call, memory, table, row0, slab);
    if constexpr (kKeys) {
      load_matrix(memory.k, kTile / 8, kSlab, matrix + static_cast<int64_t>(slab) * n_cols + column0, n_cols,
                  call.rank - slab, n_cols - column0);
    } else {
      load_matrix(memory.v, kSlab / 8, kTile, matrix + static_cast<int64_t>(column0) * call.rank + slab,
                  call.rank, n_cols - column0, call.rank - slab);
    }
    __syncthreads();
    multiply_slab<Operands, kKeys>(memory, warp, lane, c);
  }
  const int ld = kKeys ? call.n_key + call.n_rot : call.n_value;
  uint16_t* to = (kKeys ? call.keys : call.values) + static_cast<int64_t>(head) * call.chunk * ld;
#pragma unroll
  for (int tile = 0; tile < kTile / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const Place at = place_in_c(lane, i);
      const int row = row0 + 16 * warp + at.row, column = column0 + 8 * tile + at.col;
      if (row >= call.n || column >= n_cols) continue;
      *reinterpret_cast<uint32_t*>(to + static_cast<int64_t>(row) * ld + column) =
          Operands::pack(c[tile][i], c[tile][i + 1]);
    }
  }
}

template <class Operands>
__device__ void copy_rotated(const LatentRowsCall& call, const int32_t* table, int row0, int head) {
  const int n_chunks = call.n_rot / 8, ld = call.n_key + call.n_rot;
  uint16_t* to = call.keys + static_cast<int64_t>(head) * call.chunk * ld;
  for (int i = threadIdx.x; i < kTile * n_chunks; i += kThreads) {
    const int row = row0 + i / n_chunks, chunk = i % n_chunks;
    if (row >= call.n) return;
    *reinterpret_cast<uint4*>(to + static_cast<int64_t>(row) * ld + call.n_key + 8 * chunk) =
        eight_of<Operands>(call.cache, row_of(call, table, call.first + row), call.rank / 8 + chunk);
  }
}

__host__ __device__ inline int tiles_of(int n) {
  return (n + kTile - 1) / kTile;
}

// Grid: x tile of positions, y tile of columns of keys and then of values, z head.
template <class Operands>
__global__ void __launch_bounds__(kThreads, 2) latent_rows(const __grid_constant__ LatentRowsCall call) {
  __shared__ LatentRowsMemory memory;
  const int32_t* table = call.block_table + static_cast<int64_t>(*call.sequence) * call.max_blocks;
  const int row0 = static_cast<int>(blockIdx.x) * kTile, tile = static_cast<int>(blockIdx.y);
  const int head = static_cast<int>(blockIdx.z), n_key_tiles = tiles_of(call.n_key);
  if (tile == 0) copy_rotated<Operands>(call, table, row0, head);
  if (tile < n_key_tiles) {
    make_columns<Operands, true>(call, memory, table, row0, tile * kTile, head);
  } else {
    make_columns<Operands, false>(call, memory, table, row0, (tile - n_key_tiles) * kTile, head);
  }
}

}  // namespace

bool makes_latent_rows(const LatentRowsCall& call) {
  return call.rank % 8 == 0 && call.n_rot % 8 == 0 && call.n_key % 8 == 0 && call.n_value % 8 == 0 &&
         call.cache.dtype != DType::F32;
}

void launch_latent_rows(DType dtype, const LatentRowsCall& call, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(tiles_of(call.n)),
                  static_cast<unsigned>(tiles_of(call.n_key) + tiles_of(call.n_value)),
                  static_cast<unsigned>(call.n_head));
  const auto kernel = dtype == DType::BF16 ? latent_rows<BFloatOperands> : latent_rows<HalfOperands>;
  kernel<<<grid, kThreads, 0, stream>>>(call);
  check_launch("latent_rows");
}

}  // namespace tandem::cuda
