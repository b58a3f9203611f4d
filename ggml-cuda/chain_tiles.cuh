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
#include "ggml-cuda/mma.cuh"

namespace tandem::cuda {

inline constexpr int kTilePairs = 8, kTilePieces = kSuperBlocks;
inline constexpr int kTileHalf = 16 * 32;  // bytes that the lanes copy at once, 16 each

// A turn in a slot. Pieces of 16 bytes: [2][8][4], of lane 4 g + t piece t, then piece t + 4, of row g, so that a lane copies what it
// multiplies. Smaller ones [8][8], by row; then the super pieces of the rows.
template <DType T>
struct TileLayout {
  static constexpr PieceBytes kPiece = piece_bytes(T);
  static constexpr int kRow = kTilePieces * kTilePairs;
  static constexpr int kSuperUnit = kPiece.super == 0 ? 0 : std::max(kPiece.super, 4);  // the word that has one of two bytes
  static constexpr int kHigh = kRow * kPiece.low, kScale = kHigh + kRow * kPiece.high, kSuper = kScale + kRow * kPiece.scale;
  static constexpr int kBytes = kSuper + kTilePairs * kSuperUnit;
  static_assert(kPiece.low == 16 && kBytes % 16 == 0);
};

// Slots are given by a lane's place in them, an address of shared memory.
TANDEM_HD constexpr int lane_place(int lane) {
  return 16 * lane;
}
// From there to a piece of less than 16 bytes of a plane; of 4 or 8 bytes so that lanes read different banks.
template <int kPiece>
TANDEM_HD constexpr int place_in_plane(int row, int piece, int lane) {
  const int swapped = kPiece >= 4 ? (row / (16 / kPiece) & 1) * 4 : 0;
  return (kTilePieces * row + (piece ^ swapped)) * kPiece - lane_place(lane);
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

// What a lane copies of one row of every pair: its pieces of row lane / 4 in planes of 16 bytes a piece; in others the 16 bytes of the
// row that are its own, or several lanes', which then copy the same: a copy under a condition costs seven instructions more.
struct TileSource {
  const std::byte *low, *high, *scale, *super;
};

// Of a plane with less than 16 bytes a piece, which 16 bytes of a row of eight pieces a lane copies.
template <int kPiece>
TANDEM_HD constexpr int lane_unit(int lane) {
  return lane % 4 * kPiece / 8;  // of kPiece / 2
}

// Copies a plane's part of a tile, and moves on to the next.
template <int kPiece, int kPlane>
__device__ inline void copy_tile(const std::byte*& from, unsigned slot, int lane, const ReadOnce& once) {
  if constexpr (kPiece == 16) {
    copy_async<16>(slot + kPlane, from, once);
    copy_async<16>(slot + kPlane + kTileHalf, from + 4 * 16, once);
  } else if constexpr (kPiece != 0) {
    const int place = place_in_plane<kPiece>(lane / 4, lane_unit<kPiece>(lane) * 16 / kPiece, lane);
    copy_async<16>(slot + static_cast<unsigned>(kPlane + place), from, once);
  }
  from += kTilePieces * kPiece;
}

// From a lane's place in a slot to the super piece of row lane / 4.
template <DType T>
TANDEM_HD constexpr int super_place(int lane) {
  return TileLayout<T>::kSuper + TileLayout<T>::kSuperUnit * (lane / 4) - lane_place(lane);
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
  __device__ TileCursor(const ChainArgs& args, int warp, int lane) : args_(args), warp_(warp), lane_(lane), run_(args.stages[0], warp) {
    at_ = run_.first;
    aim();
  }

  // Asks for the next turn, if there is one. kSecond: of the second rows of the pairs, every other time.
  template <int kSecond>
  __device__ TANDEM_FLAT void request(unsigned slot) {
    if (left_ == 0) return;
    Kind::for_type(dtype_, [&]<DType T>() TANDEM_FLAT {
      using L = TileLayout<T>;
      TileSource& from = rows_[kSecond];
      copy_tile<L::kPiece.low, 0>(from.low, slot, lane_, once_);
      copy_tile<L::kPiece.high, L::kHigh>(from.high, slot, lane_, once_);
      copy_tile<L::kPiece.scale, L::kScale>(from.scale, slot, lane_, once_);
      if constexpr (L::kSuperUnit != 0) {
        constexpr uint64_t kMask = L::kSuperUnit > L::kPiece.super ? L::kSuperUnit - 1 : 0;  // from the word's start on
        const auto* const at = reinterpret_cast<const std::byte*>(reinterpret_cast<uint64_t>(from.super) & ~kMask);
        copy_async<L::kSuperUnit>(slot + static_cast<unsigned>(super_place<T>(lane_)), at, once_);
        from.super += L::kPiece.super;
      }
    });
    if constexpr (kSecond == 1) {
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
    const int tile = at_ - number * run_.n_task_tiles;
    left_ = min(run_.last - at_, run_.n_task_tiles - tile);
    at_ += left_;
    const ChainStage& stage = args_.stages[stage_];
    const int target = target_of(stage, task);
    const MatvecTarget* const of = stage.targets + target;
    const int pair = min((task - of->first_block) * kTilePairs + lane_ / 4, n_pairs(stage.mode, of->w.m) - 1);
    dtype_ = of->w.dtype;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const DeviceWeight& w = of[is_paired(stage.mode) ? r : 0].w;
      const uint32_t first = static_cast<uint32_t>(row_of_task(stage, target, pair, r)) * static_cast<uint32_t>(w.n_pieces) +
                             static_cast<uint32_t>(kTilePieces * tile);
      const Planes planes = expert_planes(w, 0);
      Kind::for_type(dtype_, [&]<DType T>() TANDEM_FLAT {
        constexpr PieceBytes kPiece = piece_bytes(T);
        const Planes at = advance<T>(planes, first);
        rows_[r] = {at.low + lane_ % 4 * 16, at.high + (kPiece.high == 16 ? lane_ % 4 : lane_unit<kPiece.high>(lane_)) * 16,
                    at.scale + lane_unit<kPiece.scale>(lane_) * 16, at.super};
      });
    }
  }

  const ChainArgs& args_;
  const ReadOnce once_;
  const int warp_, lane_;
  int stage_ = 0;
  TileRun run_;
  int at_;        // the tile of the run behind those of the task
  int left_ = 0;  // tiles of the task
  DType dtype_{};
  TileSource rows_[2];
};

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
  uint32_t first[4] = {}, second[4] = {};  // the halves of the block of its column of B, if that is not all zeros
  float scale[2];                          // of blocks 2 t and 2 t + 1
  uint32_t sums[2];                        // two 16-bit integers each, as in BlockMeta

  // Of k columns, from a tile on.
  __device__ TileInput(const std::byte* input, int k, int tile, unsigned lane)
      : has_column_(((lane / 4 ^ lane) & 3) == 0),
        first_(input + 16 * (kTilePieces * tile + lane / 4)),
        second_(first_ + k / 2),
        meta_(input + k + 16 * (kTilePieces / 2 * tile + lane % 4)) {}

  // Reads what belongs to the tile, and moves on to the next.
  __device__ void load() {
    if (has_column_) {
      read_piece<16>(first_, 0, first);
      read_piece<16>(second_, 0, second);
    }
    uint32_t of_blocks[4];
    read_piece<16>(meta_, 0, of_blocks);
    scale[0] = __uint_as_float(of_blocks[0]), scale[1] = __uint_as_float(of_blocks[2]);
    sums[0] = of_blocks[1], sums[1] = of_blocks[3];
    first_ += 16 * kTilePieces, second_ += 16 * kTilePieces, meta_ += kTilePieces * static_cast<int>(sizeof(BlockMeta));
  }

 private:
  bool has_column_;
  const std::byte *first_, *second_, *meta_;
};

// What blocks 2 t and 2 t + 1 of row g give with the input. slot: the lane's place in it.
template <DType T>
__device__ inline float tile_product(const std::byte* slot, const TileInput& x, int tile, int lane) {
  using F = Format<T>;
  using L = TileLayout<T>;
  constexpr bool kApart = kHighInPlace<T> || F::kHalves;  // sums of the two halves of blocks
  const int g = lane / 4, t = lane % 4;
  RawBlock blocks[2];  // t and t + 4
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    read_piece<16>(slot + kTileHalf * i, 0, blocks[i].low);
    if constexpr (L::kPiece.high == 16) read_piece<16>(slot + L::kHigh + kTileHalf * i, 0, blocks[i].high);
    if constexpr (L::kPiece.high == 8 || L::kPiece.high == 4)
      read_piece<L::kPiece.high>(slot + L::kHigh + place_in_plane<L::kPiece.high>(g, t + 4 * i, lane), 0, blocks[i].high);
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
    add_byte_product<!kHighInPlace<T>>(first, a_first, x.first[w], x.first[w + 1]);
    add_byte_product<!kHighInPlace<T>>(of_second, a_second, x.second[w], x.second[w + 1]);
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
  if constexpr (L::kPiece.scale == 2) read_piece<4>(slot + L::kScale + place_in_plane<2>(g, 2 * t, lane), 0, &scales);
  if constexpr (L::kSuperUnit != 0) read_piece<L::kSuperUnit>(slot + super_place<T>(lane), 0, super);
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
  // The slots' places for this lane. With a part of the address that is the same for all lanes ptxas 13.0 writes copies with a cache hint
  // that no GPU can execute (LDGSTS with a descriptor in an odd register): by threadIdx.y, which is 0, it does not see such a part.
  const auto place_of = [&](int slot) {
    const int at = args.front_bytes + (warp * Kind::kSlots + slot) * Kind::kSlotBytes + lane_place(lane);
    return (static_cast<unsigned>(__cvta_generic_to_shared(shared)) + static_cast<unsigned>(at)) ^ threadIdx.y;
  };
  const unsigned ring = place_of(0), last = place_of(kAhead);
  TileCursor<Kind> next(args, warp, lane);
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
    int open = -1;  // the block's task that the run begins and does not end
#pragma unroll 1
    for (int at = run.first; at < run.last;) {
      const int number = at / run.n_task_tiles, begin = at - number * run.n_task_tiles,
                end = min(run.last - number * run.n_task_tiles, run.n_task_tiles);
      at += end - begin;
      const int task = TileRun::task(number), target = target_of(stage, task);
      float sums[2] = {};
      Kind::for_type(stage.targets[target].w.dtype, [&]<DType T>() TANDEM_FLAT {
        TileInput x(shared, stage.k, begin, static_cast<unsigned>(lane));
        const auto add = [&]<int kSecond>(int tile) TANDEM_FLAT {
          wait_copies<kAhead - 1>();
          __syncwarp();  // the lanes' copies are there for all, and all have read the slot that is filled now
          next.template request<(kAhead + kSecond) % 2>(before);
          commit_copies();
          if constexpr (kSecond == 0) x.load();
          sums[kSecond] +=
              tile_product<T>(static_cast<const std::byte*>(__cvta_shared_to_generic(slot)), x, tile, lane);
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
#pragma unroll 4
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
