// The kernel of chain.h whose warps have a pair of rows each.
#pragma once

#include "ggml-cuda/chain_stage.cuh"

namespace tandem::cuda {

// A row's part of a slot: up to 32 pieces of each plane.
template <DType T>
struct TurnLayout {
  static constexpr PieceBytes kPiece = is_plain(T) ? PieceBytes{kFloatPiece, 0, 0, 0} : piece_bytes(T);
  static constexpr int kHigh = 32 * kPiece.low, kScale = kHigh + 32 * kPiece.high, kSuper = kScale + 32 * kPiece.scale;
  static constexpr int kBytes = (kSuper + 32 / kSuperBlocks * kPiece.super + 15) / 16 * 16;
};

// A kernel whose tasks are pairs of rows.
template <DType... kDTypes>
struct ChainKind : ChainDTypes<kDTypes...> {
  static constexpr int kTaskPairs = 1;
  static constexpr int kSlotBytes = 2 * std::max({TurnLayout<kDTypes>::kBytes...});
  static constexpr int kSlots = std::min(8, (17 << 9) / kSlotBytes);
  static_assert(kSlots >= 3);
};

// What a lane copies at once of a plane with pieces of this many bytes.
constexpr int copy_unit(int piece_bytes, bool is_super) {
  return is_super && piece_bytes % 16 != 0 ? 4 : 16;
}

// Asks for the next run of up to 32 pieces of a plane, `n` of them, into a slot: the first lanes copy a unit each. `from` is the
// lane's unit, and moves on.
template <int kPiece, bool kSuper>
__device__ inline void request_run(const std::byte*& from, std::byte* to, int n, int lane, const ReadOnce& once) {
  if constexpr (kPiece != 0) {
    constexpr int kUnit = copy_unit(kPiece, kSuper), kPerRun = kSuper ? 32 / kSuperBlocks : 32;
    if (kUnit * lane < (kSuper ? n / kSuperBlocks : n) * kPiece)
      copy_async<kUnit>(static_cast<unsigned>(__cvta_generic_to_shared(to + kUnit * lane)), from, once);
    from += kPerRun * kPiece;
  }
}

// Planes at the units of a lane.
struct LanePlanes {
  const std::byte *low, *high, *scale, *super;
};
template <DType T>
__device__ inline LanePlanes lane_planes(const Planes& planes, uint32_t first, int lane) {
  constexpr PieceBytes kPiece = TurnLayout<T>::kPiece;
  if constexpr (is_plain(T)) {
    return {planes.low + (static_cast<uint64_t>(first) + static_cast<uint32_t>(lane)) * kFloatPiece, nullptr, nullptr, nullptr};
  } else {
    const Planes at = advance<T>(planes, first);
    return {at.low + 16 * lane, at.high + 16 * lane, at.scale + 16 * lane, at.super + copy_unit(kPiece.super, true) * lane};
  }
}

// Adds what a lane's piece of both rows gives with the input, `piece` of its row of n_pieces.
template <DType T>
__device__ inline void add_piece(const std::byte* slot, const std::byte* input, int n_pieces, int piece, int lane,
                                 float (&sums)[2]) {
  using L = TurnLayout<T>;
  if constexpr (is_plain(T)) {
    uint32_t x[8];
    read_piece<16>(input, piece, x);
    read_piece<16>(input, n_pieces + piece, x + 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t w[4];
      read_piece<16>(slot + r * L::kBytes, lane, w);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[r] += float_of<T>(w[i / 2] >> i % 2 * 16) * __uint_as_float(x[i]);
    }
  } else {
    uint32_t first[4], second[4], meta[2];
    read_piece<16>(input, piece, first);
    read_piece<16>(input, n_pieces + piece, second);
    read_piece<8>(input + n_pieces * kBlockColumns, piece, meta);
    const BlockMeta of_input = std::bit_cast<BlockMeta>(static_cast<uint64_t>(meta[1]) << 32 | meta[0]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::byte* row = slot + r * L::kBytes;
      RawBlock raw;
      read_piece<L::kPiece.low>(row, lane, raw.low);
      read_piece<L::kPiece.high>(row + L::kHigh, lane, raw.high);
      read_piece<L::kPiece.scale>(row + L::kScale, lane, &raw.scale);
      read_piece<L::kPiece.super>(row + L::kSuper, lane / kSuperBlocks, raw.super);
      CodeWords codes[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) codes[w] = unpack_word<T>(raw, w);
      const BlockScales scales = block_scales<T>(scale_of<T>(raw), raw.super, lane % kSuperBlocks);
      sums[r] += block_product<T>(codes, scales, first, second, of_input);
    }
  }
}

// The turns of a warp, in the order in which it asks for them: of the tasks first, first + step, ... of every stage.
template <class Kind>
class ChainCursor {
 public:
  __device__ ChainCursor(const ChainArgs& args, int first, int step, int lane)
      : args_(args), first_(first), step_(step), lane_(lane), task_(first) {
    aim();
  }

  // Asks for the next turn, if there is one.
  __device__ void request(std::byte* slot) {
    if (left_ <= 0) return;
    const int n = min(32, left_);
    Kind::for_type(dtype_, [&]<DType T>() TANDEM_FLAT {
      using L = TurnLayout<T>;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        std::byte* const to = slot + r * L::kBytes;
        request_run<L::kPiece.low, false>(rows_[r].low, to, n, lane_, once_);
        request_run<L::kPiece.high, false>(rows_[r].high, to + L::kHigh, n, lane_, once_);
        request_run<L::kPiece.scale, false>(rows_[r].scale, to + L::kScale, n, lane_, once_);
        request_run<L::kPiece.super, true>(rows_[r].super, to + L::kSuper, n, lane_, once_);
      }
    });
    left_ -= 32;
    if (left_ > 0) return;
    task_ += step_;
    aim();
  }

  // At the first turn of the task, or of the first of the next stage that has one.
  __device__ void aim() {
    while (stage_ < args_.n_stages && task_ >= args_.stages[stage_].n_tasks) ++stage_, task_ = first_;
    if (stage_ < args_.n_stages) point(0);
  }

  // At a turn of the task, behind n pieces.
  __device__ void point(int n) {
    const ChainStage& stage = args_.stages[stage_];
    const int target = target_of(stage, task_);
    const MatvecTarget* const of = stage.targets + target;
    RowPair rows = row_pair(of, stage.mode, task_ - of->first_block);
    if (stage.halves != 0) {
      for (int r = 0; r < 2; ++r)
        rows.first[r] =
            static_cast<uint32_t>(row_of_task(stage, target, task_ - of->first_block, r)) * static_cast<uint32_t>(of->w.n_pieces);
    }
    dtype_ = stage.targets[target].w.dtype;
    left_ = stage.targets[target].w.n_pieces - n;
    Kind::for_type(dtype_, [&]<DType T>() TANDEM_FLAT {
#pragma unroll
      for (int r = 0; r < 2; ++r) rows_[r] = lane_planes<T>(rows.planes[r], rows.first[r] + static_cast<uint32_t>(n), lane_);
    });
  }

  const ChainArgs& args_;
  const ReadOnce once_;
  const int first_, step_, lane_;
  int task_, stage_ = 0;
  int left_ = 0;  // pieces of the task
  DType dtype_{};
  LanePlanes rows_[2];
};

template <class Kind>
__device__ TANDEM_FLAT inline void run_chain(const ChainArgs& args, std::byte* shared) {
  constexpr int kAhead = Kind::kSlots - 1;  // turns that are asked for before they are used
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_blocks = static_cast<int>(gridDim.x);
  const int first = warp * n_blocks + static_cast<int>(blockIdx.x), step = static_cast<int>(blockDim.x) / 32 * n_blocks;
  std::byte* const ring = shared + args.front_bytes + warp * Kind::kSlots * Kind::kSlotBytes;
  ChainCursor<Kind> next(args, first, step, lane);
  // The same turn of slots as below: with an offset that is the same for all lanes ptxas 13.0 writes a copy with a cache hint
  // that no GPU can execute (LDGSTS with a descriptor in an odd register).
  std::byte *slot = ring, *before = ring + kAhead * Kind::kSlotBytes;
  const auto turn = [&] { return slot == ring + kAhead * Kind::kSlotBytes ? ring : slot + Kind::kSlotBytes; };
  const auto fill = [&]() TANDEM_FLAT {
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) {
      next.request(slot);
      commit_copies();
      slot = turn();
    }
    slot = ring;
  };
  run_stages<Kind>(args, shared, fill, [&](int s, const float2* turns) TANDEM_FLAT {
    const ChainStage& stage = args.stages[s];
#pragma unroll 1
    for (int task = first; task < stage.n_tasks; task += step) {
      const int target = target_of(stage, task);
      const int n_pieces = stage.targets[target].w.n_pieces;
      float sums[2] = {};
      Kind::for_type(stage.targets[target].w.dtype, [&]<DType T>() TANDEM_FLAT {
#pragma unroll 1
        for (int piece = lane; piece - lane < n_pieces; piece += 32) {
          wait_copies<kAhead - 1>();
          __syncwarp();  // the lanes' copies are there for all, and all have read the slot that is filled now
          next.request(before);
          commit_copies();
          if (piece < n_pieces) add_piece<T>(slot, shared, n_pieces, piece, lane, sums);
          before = slot;
          slot = turn();
        }
      });
      sum_over_lanes(sums);
      if (lane == 0) store_sums(args, s, target, task - stage.targets[target].first_block, sums[0], sums[1], turns);
    }
  });
}

// As few registers a thread, 80, as if there were half as many threads more: see chain.h.
template <class Kind>
__global__ void __launch_bounds__(32 * kMaxChainWarps * 3 / 2) chain_kernel(const __grid_constant__ ChainArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  run_chain<Kind>(args, shared);
}

}  // namespace tandem::cuda
