// The kernel of chain.h whose warps multiply eight pairs of rows at once, on the tensor cores. Of quantized dtypes.
//
//   task   eight pairs of rows. A block has the tasks block, block + grid, ...
//   tile   256 columns of a task. The tiles of a block's tasks, one task after the other, are cut into equal runs, one for each warp;
//          where a run ends within a task, the sums of its warps are added up at the end of the stage, in their order
//   turn   the eight first or the eight second rows of a tile: what a slot has room for
//
// What is multiplied: lane 4 g + t has the blocks t and t + 4 of row g in registers, as 8 words each of the first (A's rows 0..7) and of
// the second (A's rows 8..15). A product of 16 x 32 x 8 takes two words of each; its index along k is a place in the block of lane t, so
// B's column t has the input's block t in the places of lane t, column t + 4 block t + 4, and zeros in all other places. After four
// products lane 4 g + t has the sums of blocks 2 t and 2 t + 1 of row g: in the sums of A's first rows if t < 2, else of its second.
//
// The six-bit and eight-bit scales of the K types are integers, and so are their sums over the blocks of a super-block, whose input has
// one scale: a lane converts one or two sums to floats a turn.
#pragma once

#include "ggml-cuda/chain_stage.cuh"

namespace tandem::cuda {

inline constexpr int kTilePairs = 8, kTilePieces = kSuperBlocks;

// A turn in a slot: rows of eight pieces of each plane, then of a super piece.
template <DType T>
struct TileLayout {
  static constexpr PieceBytes kPiece = piece_bytes(T);
  static constexpr int kRow = kTilePieces * kTilePairs;
  static constexpr int kSuperUnit = kPiece.super == 0 ? 0 : std::max(kPiece.super, 4);  // the word that has one of two bytes
  static constexpr int kHigh = kRow * kPiece.low, kScale = kHigh + kRow * kPiece.high, kSuper = kScale + kRow * kPiece.scale;
  static constexpr int kBytes = kSuper + kTilePairs * kSuperUnit;
  static_assert(kBytes % 16 == 0);
};

// Place of a piece of a row of a turn, so that lanes read and write different banks.
template <int kPiece>
TANDEM_HD constexpr int tile_place(int row, int piece) {
  if constexpr (kPiece < 4) return (kTilePieces * row + piece) * kPiece;
  return (kTilePieces * row + (piece ^ (row / (16 / kPiece) & 1) * 4)) * kPiece;
}

template <DType... kDTypes>
struct TileKind : ChainDTypes<kDTypes...> {
  static constexpr int kTaskPairs = kTilePairs;
  static constexpr int kSlotBytes = std::max({TileLayout<kDTypes>::kBytes...});
  static constexpr int kSlots = std::min(8, (17 << 9) / kSlotBytes);
  static_assert(kSlots >= 3);
};

// Formats whose high four bits are a code of their own, which is multiplied where it lies: 16 times as much.
template <DType T>
inline constexpr bool kHighInPlace = T == DType::Q4_0 || T == DType::Q4_K;

// Where a lane copies from, of one row of every pair: the rows of the low plane, and of a high one as large, are two for a lane.
struct TileSource {
  const std::byte *low[2], *high[2], *scale, *super;
};

// Which row of eight a lane copies 16 bytes of, and which of the row's units.
template <int kPiece>
struct LaneUnit {
  static constexpr int kUnits = kTilePieces * kPiece / 16, kRows = 32 / kUnits;  // of a row; at once
  __device__ static int row(int lane) { return lane / kUnits % kTilePairs; }
  __device__ static int unit(int lane) { return lane % kUnits; }
};

// Copies a plane's rows of a tile to `to`.
template <int kPiece>
__device__ inline void copy_tile(const std::byte* const* from, uint32_t tile, std::byte* to, int lane, const ReadOnce& once) {
  if constexpr (kPiece != 0) {
    using L = LaneUnit<kPiece>;
    std::byte* const place = to + tile_place<kPiece>(L::row(lane), L::unit(lane) * 16 / kPiece);
#pragma unroll
    for (int i = 0; i < std::max(1, kTilePairs / L::kRows); ++i) {  // rows four further lie in the same order
      copy_unit_async<16>(place + i * L::kRows * kTilePieces * kPiece,
                          from[i] + static_cast<uint64_t>(tile) * (kTilePieces * kPiece), lane < kTilePairs * L::kUnits, once);
    }
  }
}

// A warp's run of the tiles of a stage: [first, last) of those of its block's tasks, one after the other, n_task_tiles each.
struct TileRun {
  int first, last, n_task_tiles, length;  // length: of the runs of all warps but the last ones

  __device__ TileRun(const ChainStage& stage, int warp) {
    const int n_blocks = static_cast<int>(gridDim.x), n_warps = static_cast<int>(blockDim.x) / 32;
    const int n_tasks = (stage.n_tasks - static_cast<int>(blockIdx.x) + n_blocks - 1) / n_blocks;
    n_task_tiles = stage.k / (kTilePieces * kBlockColumns);
    const int n_tiles = n_tasks * n_task_tiles;
    length = (n_tiles + n_warps - 1) / n_warps;
    first = min(warp * length, n_tiles);
    last = min(first + length, n_tiles);
  }
  __device__ static int task(int number) {  // of a block's task
    return number * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  }
};

// The turns of a warp, in the order in which it asks for them.
template <class Kind>
class TileCursor {
 public:
  __device__ TileCursor(const ChainArgs& args, int warp, int lane)
      : args_(args), warp_(warp), lane_(lane), run_(args.stages[0], warp) {
    at_ = run_.first;
    aim();
  }

  // Asks for the next turn, if there is one. kSecond: of the second rows of the pairs, every other time.
  template <int kSecond>
  __device__ TANDEM_FLAT void request(std::byte* slot) {
    if (left_ == 0) return;
    Kind::for_type(dtype_, [&]<DType T>() TANDEM_FLAT {
      using L = TileLayout<T>;
      const TileSource& from = rows_[kSecond];
      copy_tile<L::kPiece.low>(from.low, tile_, slot, lane_, once_);
      copy_tile<L::kPiece.high>(from.high, tile_, slot + L::kHigh, lane_, once_);
      copy_tile<L::kPiece.scale>(&from.scale, tile_, slot + L::kScale, lane_, once_);
      if constexpr (L::kSuperUnit != 0) {
        const uint32_t at = tile_ * L::kPiece.super;
        copy_unit_async<L::kSuperUnit>(slot + L::kSuper + L::kSuperUnit * lane_, from.super + at / L::kSuperUnit * L::kSuperUnit,
                                       lane_ < kTilePairs, once_);
      }
    });
    if constexpr (kSecond == 1) {
      ++tile_;
      if (--left_ == 0) aim();
    }
  }

 private:
  // At the tile at_ of the run, or the first of the next stage that has one.
  __device__ void aim() {
    while (at_ >= run_.last) {
      if (++stage_ >= args_.n_stages) return;
      run_ = TileRun(args_.stages[stage_], warp_);
      at_ = run_.first;
    }
    const int number = at_ / run_.n_task_tiles, task = TileRun::task(number);
    tile_ = static_cast<uint32_t>(at_ - number * run_.n_task_tiles);
    left_ = min(run_.last - at_, run_.n_task_tiles - static_cast<int>(tile_));
    at_ += left_;
    const ChainStage& stage = args_.stages[stage_];
    const int target = target_of(stage, task);
    const MatvecTarget* const of = stage.targets + target;
    const int pair = min((task - of->first_block) * kTilePairs + lane_ % kTilePairs, n_pairs(stage.mode, of->w.m) - 1);
    dtype_ = of->w.dtype;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const DeviceWeight& w = of[is_paired(stage.mode) ? r : 0].w;
      const uint32_t first = static_cast<uint32_t>(row_of_task(stage, target, pair, r)) * static_cast<uint32_t>(w.n_pieces);
      const Planes planes = expert_planes(w, 0);
      Kind::for_type(dtype_, [&]<DType T>() TANDEM_FLAT {
        constexpr PieceBytes kPiece = piece_bytes(T);
        aim_plane<kPiece.low>(planes.low, first, rows_[r].low);
        aim_plane<kPiece.high>(planes.high, first, rows_[r].high);
        aim_plane<kPiece.scale>(planes.scale, first, &rows_[r].scale);
        rows_[r].super = planes.super + static_cast<uint64_t>(first / kSuperBlocks) * kPiece.super;
      });
    }
  }
  template <int kPiece>
  __device__ void aim_plane(const std::byte* plane, uint32_t first, const std::byte** to) const {
    if constexpr (kPiece != 0) {
      using L = LaneUnit<kPiece>;
#pragma unroll
      for (int i = 0; i < std::max(1, kTilePairs / L::kRows); ++i) {
        const uint32_t row = __shfl_sync(0xffffffffu, first, L::row(lane_) + i * L::kRows);
        to[i] = plane + static_cast<uint64_t>(row) * kPiece + 16 * L::unit(lane_);
      }
    }
  }

  const ChainArgs& args_;
  const ReadOnce once_;
  const int warp_, lane_;
  int stage_ = 0;
  TileRun run_;
  int at_;             // the tile of the run behind those of the task
  int left_ = 0;       // tiles of the task
  uint32_t tile_ = 0;  // of its row
  DType dtype_{};
  TileSource rows_[2];
};

// c [16, 8] += a [16, 32] b [32, 8], of bytes; those of b are signed.
template <bool kSigned>
__device__ inline void add_product(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kSigned) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
        "%1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
        "%1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// sum + the products of the two 16-bit integers of x with bytes 0 and 1 of y, or 2 and 3; signed.
template <int kAt>
__device__ inline int add_2_products(uint32_t x, uint32_t y, int sum) {
#ifdef __CUDA_ARCH__
  return kAt == 0 ? __dp2a_lo(static_cast<int>(x), static_cast<int>(y), sum)
                  : __dp2a_hi(static_cast<int>(x), static_cast<int>(y), sum);
#else
  for (int i = 0; i < 2; ++i) sum += static_cast<int16_t>(x >> 16 * i) * static_cast<int8_t>(y >> 8 * (kAt + i));
  return sum;
#endif
}

// What a lane multiplies the turns of a tile with.
struct TileInput {
  uint32_t first[4] = {}, second[4] = {};  // the halves of the block of the lane's column of B, where it is not zero
  float scale[2];                          // of blocks 2 t and 2 t + 1
  uint32_t sums[2];                        // two 16-bit integers each, as in BlockMeta

  __device__ void load(const std::byte* input, int k, int tile, int lane) {
    const int g = lane / 4, t = lane % 4, n_pieces = k / kBlockColumns;
    if (g % 4 == t) {
      read_piece<16>(input, kTilePieces * tile + g, first);
      read_piece<16>(input, n_pieces + kTilePieces * tile + g, second);
    }
    uint32_t meta[4];
    read_piece<16>(input + k, kTilePieces / 2 * tile + t, meta);
    scale[0] = __uint_as_float(meta[0]), scale[1] = __uint_as_float(meta[2]);
    sums[0] = meta[1], sums[1] = meta[3];
  }
};

// What blocks 2 t and 2 t + 1 of row g give with the input.
template <DType T>
__device__ inline float tile_product(const std::byte* slot, const TileInput& x, int tile, int lane) {
  using F = Format<T>;
  using L = TileLayout<T>;
  constexpr bool kApart = kHighInPlace<T> || F::kHalves;  // sums of the two halves of blocks
  const int g = lane / 4, t = lane % 4;
  RawBlock blocks[2];  // t and t + 4
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    read_piece<L::kPiece.low>(slot + tile_place<L::kPiece.low>(g, t + 4 * i), 0, blocks[i].low);
    if constexpr (L::kPiece.high != 0)
      read_piece<L::kPiece.high>(slot + L::kHigh + tile_place<L::kPiece.high>(g, t + 4 * i), 0, blocks[i].high);
  }
  int first[4] = {}, second[4] = {};
  int(&of_second)[4] = kApart ? second : first;
#pragma unroll
  for (int w = 0; w < 4; w += 2) {
    CodeWords codes[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const RawBlock& block = blocks[i % 2];
      codes[i % 2][i / 2] = kHighInPlace<T> ? CodeWords{block.low[w + i / 2] & 0x0f0f0f0fu, block.low[w + i / 2] & 0xf0f0f0f0u}
                                            : unpack_word<T>(block, w + i / 2);
    }
    const uint32_t a_first[4] = {codes[0][0].first, codes[1][0].first, codes[0][1].first, codes[1][1].first};
    const uint32_t a_second[4] = {codes[0][0].second, codes[1][0].second, codes[0][1].second, codes[1][1].second};
    add_product<!kHighInPlace<T>>(first, a_first, x.first[w], x.first[w + 1]);
    add_product<!kHighInPlace<T>>(of_second, a_second, x.second[w], x.second[w + 1]);
  }
  const bool low = t < 2;
  int sums[2];  // of blocks 2 t and 2 t + 1; 16 times that where the high codes are
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sums[i] = low ? first[i] : first[2 + i];
    if constexpr (kApart) second[i] = low ? second[i] : second[2 + i];
    if constexpr (kHighInPlace<T>) sums[i] = 16 * sums[i] + second[i];
  }
  constexpr float kUnit = kHighInPlace<T> ? 1.0f / 16 : 1.0f;
  constexpr uint32_t kOnes = 0x01010101u;
  uint32_t scales = 0, super[4];
  if constexpr (L::kPiece.scale == 2) read_piece<4>(slot + L::kScale + tile_place<2>(g, 2 * t), 0, &scales);
  if constexpr (L::kSuperUnit != 0) read_piece<L::kSuperUnit>(slot + L::kSuper, g, super);
  if constexpr (T == DType::Q4_K || T == DType::Q5_K) {
    const uint32_t bits[3] = {super[1] >> 8 * t, super[2] >> 8 * t, super[3] >> 8 * t};
    int of_codes = 0, minimums[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int factor;
      k4_scale(bits, i, &factor, &minimums[i]);
      of_codes += factor * sums[i];
    }
    const uint32_t bytes = static_cast<uint32_t>(minimums[0]) * 0x0101u | static_cast<uint32_t>(minimums[1]) * 0x01010000u;
    const int of_minimums = add_2_products<2>(x.sums[1], bytes, add_2_products<0>(x.sums[0], bytes, 0));
    return low_half(super[0]) * x.scale[0] * kUnit * static_cast<float>(of_codes) -
           high_half(super[0]) * x.scale[0] * static_cast<float>(of_minimums);
  } else if constexpr (T == DType::Q6_K) {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum += static_cast<int8_t>(scales >> 16 * i) * sums[i] + static_cast<int8_t>(scales >> (16 * i + 8)) * second[i];
    }
    sum -= F::kCodeOffset * add_2_products<2>(x.sums[1], scales, add_2_products<0>(x.sums[0], scales, 0));
    return half_to_float(static_cast<fp16_t>(super[0] >> 16 * (tile & 1))) * x.scale[0] * static_cast<float>(sum);
  } else {
    static_assert(T == DType::Q8_0 || T == DType::Q4_0);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (F::kCodeOffset != 0)
        sums[i] -= static_cast<int>(F::kCodeOffset / kUnit) * add_2_products<0>(x.sums[i], kOnes, 0);
      sum += (i == 0 ? low_half(scales) : high_half(scales)) * x.scale[i] * kUnit * static_cast<float>(sums[i]);
    }
    return sum;
  }
}

template <class Kind>
__device__ TANDEM_FLAT inline void run_tile_chain(const ChainArgs& args, std::byte* shared) {
  constexpr int kAhead = Kind::kSlots - 1;  // turns that are asked for before they are used
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Sums of a task [2][8] that a warp has not all tiles of: where it begins before the warp's run, and where within.
  __shared__ float partial[kMaxChainWarps][2][2 * kTilePairs];
  std::byte* const ring = shared + args.front_bytes + warp * Kind::kSlots * Kind::kSlotBytes;
  TileCursor<Kind> next(args, warp, lane);
  std::byte *slot = ring, *before = ring + kAhead * Kind::kSlotBytes;  // as in chain.cuh
  const auto turn = [&] { return slot == ring + kAhead * Kind::kSlotBytes ? ring : slot + Kind::kSlotBytes; };
  const auto fill = [&]() TANDEM_FLAT {
#pragma unroll 1
    for (int i = 0; i < kAhead / 2; ++i) {
      next.template request<0>(slot);
      commit_copies();
      slot = turn();
      next.template request<1>(slot);
      commit_copies();
      slot = turn();
    }
    if constexpr (kAhead % 2 == 1) {
      next.template request<0>(slot);
      commit_copies();
    }
    slot = ring;
  };
  run_stages<Kind>(args, shared, fill, [&](int s, const float2* turns) TANDEM_FLAT {
    const ChainStage& stage = args.stages[s];
    const TileRun run(stage, warp);
    int open = -1;  // the block's task that the run begins and does not end
#pragma unroll 1
    for (int at = run.first; at < run.last;) {
      const int number = at / run.n_task_tiles, begin = at - number * run.n_task_tiles,
                end = min(run.last - number * run.n_task_tiles, run.n_task_tiles);
      at += end - begin;
      const int task = TileRun::task(number), target = target_of(stage, task);
      float sums[2] = {};
      Kind::for_type(stage.targets[target].w.dtype, [&]<DType T>() TANDEM_FLAT {
        TileInput x;
        const auto add = [&]<int kSecond>(int tile) TANDEM_FLAT {
          wait_copies<kAhead - 1>();
          __syncwarp();  // the lanes' copies are there for all, and all have read the slot that is filled now
          next.template request<(kAhead + kSecond) % 2>(before);
          commit_copies();
          if constexpr (kSecond == 0) x.load(shared, stage.k, tile, lane);
          sums[kSecond] += tile_product<T>(slot, x, tile, lane);
          before = slot;
          slot = turn();
        };
#pragma unroll 1
        for (int tile = begin; tile < end; ++tile) {
          add.template operator()<0>(tile);
          add.template operator()<1>(tile);
        }
      });
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int mask = 1; mask < 4; mask *= 2) sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], mask);
      }
      const bool is_whole = end - begin == run.n_task_tiles;
      if (begin == 0 && !is_whole) open = number;
      if (lane % 4 != 0) continue;
      const int pair = (task - stage.targets[target].first_block) * kTilePairs + lane / 4;
      if (!is_whole) {
        partial[warp][begin == 0][lane / 4] = sums[0], partial[warp][begin == 0][kTilePairs + lane / 4] = sums[1];
      } else if (pair < n_pairs(stage.mode, stage.targets[target].w.m)) {
        store_sums(args, s, target, pair, sums[0], sums[1], turns);
      }
    }
    __syncthreads();
    if (open < 0 || lane >= kTilePairs) return;
    float sums[2] = {partial[warp][1][lane], partial[warp][1][kTilePairs + lane]};
    for (int other = warp + 1; other * run.length < (open + 1) * run.n_task_tiles; ++other) {
#pragma unroll
      for (int r = 0; r < 2; ++r) sums[r] += partial[other][0][r * kTilePairs + lane];
    }
    const int task = TileRun::task(open), target = target_of(stage, task);
    const int pair = (task - stage.targets[target].first_block) * kTilePairs + lane;
    if (pair < n_pairs(stage.mode, stage.targets[target].w.m)) store_sums(args, s, target, pair, sums[0], sums[1], turns);
  });
}

// Registers as in chain.cuh.
template <class Kind>
__global__ void __launch_bounds__(32 * kMaxChainWarps * 3 / 2) tile_chain_kernel(const __grid_constant__ ChainArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  run_tile_chain<Kind>(args, shared);
}

}  // namespace tandem::cuda
