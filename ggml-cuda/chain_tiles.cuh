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

// Which row of eight a lane copies 16 bytes of, and which of the row's units. Where there are less than 32 units several lanes copy the
// same: a copy under a condition costs seven instructions more.
template <int kPiece>
struct LaneUnit {
  static constexpr int kUnits = kTilePieces * kPiece / 16, kRows = 32 / kUnits;  // of a row; at once
  __device__ static int row(int lane) { return lane / kUnits % kTilePairs; }
  __device__ static int unit(int lane) { return lane % kUnits; }
};

// Copies kUnit bytes, 4 or 16, to a shared address.
template <int kUnit>
__device__ inline void copy_unit_async(unsigned to, const std::byte* from, const ReadOnce& once) {
  if constexpr (kUnit == 16) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(once.policy)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kUnit), "r"(kUnit) : "memory");
  }
}

// Copies a plane's rows of a tile to `to`.
template <int kPiece>
__device__ inline void copy_tile(const std::byte* const* from, uint32_t tile, unsigned to, int lane, const ReadOnce& once) {
  if constexpr (kPiece != 0) {
    using L = LaneUnit<kPiece>;
    const unsigned place = to + static_cast<unsigned>(tile_place<kPiece>(L::row(lane), L::unit(lane) * 16 / kPiece));
#pragma unroll
    for (int i = 0; i < std::max(1, kTilePairs / L::kRows); ++i) {  // rows four further lie in the same order
      const std::byte* const unit = from[i] + static_cast<uint64_t>(tile) * (kTilePieces * kPiece);
      const unsigned at = place + static_cast<unsigned>(i * L::kRows * kTilePieces * kPiece);
      copy_unit_async<16>(at, unit, once);
    }
  }
}

// Slots are given by a lane's place in them, an address of shared memory: with a part of it that is the same for all lanes, ptxas 13.0
// writes copies with a cache hint that no GPU can execute (LDGSTS with a descriptor in an odd register).
TANDEM_HD constexpr unsigned lane_place(int lane) {
  return static_cast<unsigned>(tile_place<16>(lane / 8, lane % 8));
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
  // rows [8]: of the warp, in shared memory.
  __device__ TileCursor(const ChainArgs& args, uint32_t* rows, int warp, int lane)
      : args_(args), first_pieces_(rows), warp_(warp), lane_(lane), run_(args.stages[0], warp) {
    at_ = run_.first;
    aim();
  }

  // Asks for the next turn, if there is one. kSecond: of the second rows of the pairs, every other time.
  template <int kSecond>
  __device__ TANDEM_FLAT void request(unsigned slot) {
    if (left_ == 0) return;
    Kind::for_type(dtype_, [&]<DType T>() TANDEM_FLAT {
      using L = TileLayout<T>;
      const TileSource& from = rows_[kSecond];
      const unsigned base = slot - lane_place(lane_);
      copy_tile<L::kPiece.low>(from.low, tile_, base, lane_, once_);
      copy_tile<L::kPiece.high>(from.high, tile_, base + L::kHigh, lane_, once_);
      copy_tile<L::kPiece.scale>(&from.scale, tile_, base + L::kScale, lane_, once_);
      if constexpr (L::kSuperUnit != 0) {
        const uint32_t at = tile_ * L::kPiece.super;
        copy_unit_async<L::kSuperUnit>(base + static_cast<unsigned>(L::kSuper + L::kSuperUnit * (lane_ % kTilePairs)),
                                       from.super + at / L::kSuperUnit * L::kSuperUnit, once_);
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
      __syncwarp();
      if (lane_ < kTilePairs) first_pieces_[lane_] = first;
      __syncwarp();
      Kind::for_type(dtype_, [&]<DType T>() TANDEM_FLAT {
        constexpr PieceBytes kPiece = piece_bytes(T);
        aim_plane<kPiece.low>(planes.low, rows_[r].low);
        aim_plane<kPiece.high>(planes.high, rows_[r].high);
        aim_plane<kPiece.scale>(planes.scale, &rows_[r].scale);
        rows_[r].super = planes.super + static_cast<uint64_t>(first / kSuperBlocks) * kPiece.super;
      });
    }
  }
  template <int kPiece>
  __device__ void aim_plane(const std::byte* plane, const std::byte** to) const {
    if constexpr (kPiece != 0) {
      using L = LaneUnit<kPiece>;
#pragma unroll
      for (int i = 0; i < std::max(1, kTilePairs / L::kRows); ++i) {
        const uint32_t piece = first_pieces_[(L::row(lane_) + i * L::kRows) % kTilePairs];
        to[i] = plane + static_cast<uint64_t>(piece) * kPiece + 16 * L::unit(lane_);
      }
    }
  }

  const ChainArgs& args_;
  const ReadOnce once_;
  uint32_t* const first_pieces_;  // of the rows of a tile
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

// A stage's input, as a lane reads it: of its column of B, if that is not all zeros, and what belongs to blocks 2 t and 2 t + 1.
struct TilePlaces {
  bool has_column;
  const std::byte *first, *second, *meta;

  __device__ TilePlaces(const std::byte* input, int k, int lane) {
    const int g = lane / 4, t = lane % 4;
    has_column = g % 4 == t;
    first = input + 16 * g, second = first + k / 2, meta = input + k + 16 * t;
  }
};

// What a lane multiplies the turns of a tile with.
struct TileInput {
  uint32_t first[4] = {}, second[4] = {};  // the halves of the block of the column
  float scale[2];                          // of blocks 2 t and 2 t + 1
  uint32_t sums[2];                        // two 16-bit integers each, as in BlockMeta

  __device__ void load(const TilePlaces& places, int tile) {
    constexpr int kBytes = kTilePieces * 16;
    if (places.has_column) {
      read_piece<16>(places.first + kBytes * tile, 0, first);
      read_piece<16>(places.second + kBytes * tile, 0, second);
    }
    uint32_t of_blocks[4];
    read_piece<16>(places.meta + kTilePieces * static_cast<int>(sizeof(BlockMeta)) * tile, 0, of_blocks);
    scale[0] = __uint_as_float(of_blocks[0]), scale[1] = __uint_as_float(of_blocks[2]);
    sums[0] = of_blocks[1], sums[1] = of_blocks[3];
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
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  // Sums of a task [2][8] that a warp has not all tiles of: where it begins before the warp's run, and where within.
  __shared__ float partial[kMaxChainWarps][2][2 * kTilePairs];
  const unsigned ring = static_cast<unsigned>(__cvta_generic_to_shared(shared)) + lane_place(lane) +
                        static_cast<unsigned>(args.front_bytes + warp * Kind::kSlots * Kind::kSlotBytes),
                 last = ring + static_cast<unsigned>(kAhead * Kind::kSlotBytes);
  __shared__ uint32_t rows[kMaxChainWarps][kTilePairs];
  TileCursor<Kind> next(args, rows[warp], warp, lane);
  unsigned slot = ring, before = last;
  const auto turn = [&] { return slot == last ? ring : slot + Kind::kSlotBytes; };
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
    const TilePlaces places(shared, stage.k, lane);
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
          if constexpr (kSecond == 0) x.load(places, tile);
          sums[kSecond] +=
              tile_product<T>(static_cast<const std::byte*>(__cvta_shared_to_generic(slot - lane_place(lane))), x, tile, lane);
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
