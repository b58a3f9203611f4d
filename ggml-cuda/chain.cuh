// The kernel of chain.h.
#pragma once

#include "ggml-cuda/async_copy.cuh"
#include "ggml-cuda/chain.h"
#include "ggml-cuda/matvec.cuh"
#include "ggml-cuda/ops/rope_kv.cuh"
#include "ggml-cuda/ordering.cuh"

namespace tandem::cuda {

// The rotation and the cache of the results of a stage.
inline constexpr int kChainPairs = 64;
struct ChainRopeTable {  // as RopeTable
  double turns_per_position[kChainPairs];
  float magnitude, temperature_scale;
  int temperature_length;
};
struct ChainRotation {
  int stage = -1;  // none
  int8_t queries, keys, values;  // its targets
  RopeStyle style;
  RopeKvCall call;
  ChainRopeTable table;
};

struct ChainArgs {
  ChainStage stages[kChainStages];
  ChainRotation rotation;
  int n_stages;
  int front_bytes;  // of shared memory before the rings, for the input of a stage
  int* counters;    // [2], all 0 before and after
};
static_assert(sizeof(ChainArgs) < 4096);

// A row's part of a slot: up to 32 pieces of each plane.
template <DType T>
struct TurnLayout {
  static constexpr PieceBytes kPiece = is_plain(T) ? PieceBytes{kFloatPiece, 0, 0, 0} : piece_bytes(T);
  static constexpr int kHigh = 32 * kPiece.low, kScale = kHigh + 32 * kPiece.high, kSuper = kScale + 32 * kPiece.scale;
  static constexpr int kBytes = (kSuper + 32 / kSuperBlocks * kPiece.super + 15) / 16 * 16;
};

// The dtypes of a kernel: of one kind, which reads its input in one form.
template <DType kFirst, DType... kOthers>
struct ChainKind {
  static constexpr bool kFloats = is_plain(kFirst);
  static constexpr Encoding kEncoding = encoding_of(kFirst);
  static_assert((kFloats || ((encoding_of(kOthers) == kEncoding) && ...)));
  static constexpr int kSlotBytes = 2 * std::max({TurnLayout<kFirst>::kBytes, TurnLayout<kOthers>::kBytes...});
  static constexpr int kSlots = std::min(8, (17 << 9) / kSlotBytes);
  static_assert(kSlots >= 3);

  static constexpr bool has(DType dtype) { return dtype == kFirst || ((dtype == kOthers) || ...); }
  // Bytes of shared memory for an input of k columns: floats as [2][k / 8][4], bytes and what belongs to them.
  static constexpr int input_bytes(int k) {
    return kFloats ? 4 * k : k + k / kBlockColumns * static_cast<int>(sizeof(BlockMeta));
  }
  template <class Fn>
  __device__ static void for_type([[maybe_unused]] DType dtype, Fn&& fn) {
    if constexpr (sizeof...(kOthers) == 0) {
      fn.template operator()<kFirst>();
    } else {
      (void)((dtype == kFirst && (fn.template operator()<kFirst>(), true)) ||
             ((dtype == kOthers && (fn.template operator()<kOthers>(), true)) || ...));
    }
  }
};

// What a lane copies at once of a plane with pieces of this many bytes.
constexpr int copy_unit(int piece_bytes, bool is_super) {
  return is_super && piece_bytes % 16 != 0 ? 4 : 16;
}

// Copies kUnit bytes to shared memory, if valid.
template <int kUnit>
__device__ inline void copy_unit_async(std::byte* to, const std::byte* from, bool valid, const ReadOnce& once) {
  if (!valid) return;
  if constexpr (kUnit == 16) {
    copy_16_async(to, from, once);
  } else {
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(from), "n"(kUnit), "r"(kUnit)
                 : "memory");
  }
}

// Asks for the next run of up to 32 pieces of a plane, `n` of them, into a slot: the first lanes copy a unit each. `from` is the
// lane's unit, and moves on.
template <int kPiece, bool kSuper>
__device__ inline void request_run(const std::byte*& from, std::byte* to, int n, int lane, const ReadOnce& once) {
  if constexpr (kPiece != 0) {
    constexpr int kUnit = copy_unit(kPiece, kSuper), kPerRun = kSuper ? 32 / kSuperBlocks : 32;
    copy_unit_async<kUnit>(to + kUnit * lane, from, kUnit * lane < (kSuper ? n / kSuperBlocks : n) * kPiece, once);
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

// Piece `piece` of a plane in a slot.
template <int kBytes>
__device__ inline void read_piece(const std::byte* plane, int piece, uint32_t* to) {
  if constexpr (kBytes == 1) {
    to[0] = reinterpret_cast<const uint8_t*>(plane)[piece];
  } else if constexpr (kBytes == 2) {
    to[0] = reinterpret_cast<const uint16_t*>(plane)[piece];
  } else if constexpr (kBytes == 4) {
    to[0] = reinterpret_cast<const uint32_t*>(plane)[piece];
  } else if constexpr (kBytes == 8) {
    const uint2 v = reinterpret_cast<const uint2*>(plane)[piece];
    to[0] = v.x, to[1] = v.y;
  } else if constexpr (kBytes == 16) {
    const uint4 v = reinterpret_cast<const uint4*>(plane)[piece];
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
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

// The target of a task.
__device__ inline int target_of(const ChainStage& stage, int task) {
  int target = 0;
  while (!is_paired(stage.mode) && target + 1 < stage.n_targets && task >= stage.targets[target + 1].first_block) ++target;
  return target;
}
// Row `r` of a pair of a target.
__device__ inline int row_of_task(const ChainStage& stage, int target, int pair, int r) {
  if (!(stage.halves >> target & 1)) return row_of_pair(stage.mode, pair, r, stage.targets[target].w.m);
  const int head = pair / (stage.head_dim / 2), j = pair % (stage.head_dim / 2);
  return head * stage.head_dim + (j < stage.n_pairs ? j + r * stage.n_pairs : 2 * j + r);
}

// Rotates the sums of a pair of rows of queries or keys, and stores them, or those of values. By one lane.
__device__ inline void store_rotated(const ChainRotation& rotation, const ChainStage& stage, int target, int pair, float first,
                                     float second, const float2* turns) {
  const RopeKvCall& call = rotation.call;
  const MatvecTarget& to = stage.targets[target];
  const int rows[2] = {row_of_task(stage, target, pair, 0), row_of_task(stage, target, pair, 1)};
  float y[2] = {first, second};
  if (to.bias) y[0] += to.bias[rows[0]], y[1] += to.bias[rows[1]];
  if (target != rotation.values) {
    const int column = rows[0] % stage.head_dim, turn = rotation.style == RopeStyle::pair ? column / 2 : column;
    if (turn < stage.n_pairs) {
      const float2 t = turns[turn];
      const float a = y[0], b = y[1];
      y[0] = add_rn(mul_rn(a, t.x), -mul_rn(b, t.y));
      y[1] = add_rn(mul_rn(a, t.y), mul_rn(b, t.x));
    }
  }
  if (target == rotation.queries) {
    to.y[rows[0]] = y[0], to.y[rows[1]] = y[1];
    return;
  }
  const Pool& pool = call.pools[target == rotation.values];
  const int head = rows[0] / pool.head_dim;
  std::byte* const row = pool.to + kv_row(call.slots[0], head, call.n_head_kv, call.block_size) * pool.row_bytes;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int column = rows[r] - head * pool.head_dim;
    switch (pool.dtype) {
      case DType::F16: reinterpret_cast<fp16_t*>(row)[column] = float_to_half(y[r]); break;
      case DType::BF16: reinterpret_cast<bf16_t*>(row)[column] = float_to_bfloat(y[r]); break;
      default: reinterpret_cast<float*>(row)[column] = y[r];
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
        rows.first[r] = static_cast<uint32_t>(row_of_task(stage, target, task_ - of->first_block, r)) * static_cast<uint32_t>(of->w.n_pieces);
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

// Waits until all threads of the grid have come here, for the n-th time. What they have stored is then there for loads past
// the L1 cache.
__device__ inline void wait_for_grid(int* counter, int n) {
  const int n_expected = n * static_cast<int>(gridDim.x);
  __syncthreads();
#ifdef TANDEM_EMULATED_CUDA
  if (threadIdx.x == 0) atomicAdd(counter, 1);
  ::emulator::wait_for_grid();
  if (__ldcg(counter) < n_expected) ::emulator::fail("the counter of a grid is %d", *counter);
#else
  if (threadIdx.x == 0) {
    tell(counter, 1);
    while (see(counter) < n_expected) {
    }
  }
  __syncthreads();
#endif
}

// The last block to come here sets the counters to 0 again: all have seen the last value before they add to the second.
__device__ inline void end_waits(int* counters) {
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(counters + 1, 1) + 1 < static_cast<int>(gridDim.x)) return;
  counters[0] = counters[1] = 0;
}

// Asks for what the input of a stage is normalized with, before x is there.
__device__ inline void prefetch_norm(const ChainStage& stage) {
  const int at = kLaneColumns * static_cast<int>(threadIdx.x);
  if (!stage.normalized || at >= stage.k) return;
  stage.weight.prefetch(at);
  stage.bias.prefetch(at);
}

// Makes the input of a stage in shared memory, by all threads of the block. The blocks share the storing of the norm.
template <class Kind>
__device__ inline void make_input(const ChainStage& stage, std::byte* to) {
  const int k = stage.k, n_threads = static_cast<int>(blockDim.x), own = kLaneColumns * static_cast<int>(threadIdx.x),
            step = kLaneColumns * n_threads;
  std::byte* const meta = to + k;
  if (!Kind::kFloats && stage.encoded.q) {
    const int n_meta = k / kBlockColumns * static_cast<int>(sizeof(BlockMeta));
    for (int at = 16 * static_cast<int>(threadIdx.x); at < k; at += 16 * n_threads)
      *reinterpret_cast<uint4*>(to + at) = __ldcg(reinterpret_cast<const uint4*>(stage.encoded.q + at));
    for (int at = 8 * static_cast<int>(threadIdx.x); at < n_meta; at += 8 * n_threads) {
      *reinterpret_cast<uint2*>(meta + at) =
          __ldcg(reinterpret_cast<const uint2*>(reinterpret_cast<const std::byte*>(stage.encoded.meta) + at));
    }
    return;
  }
  float mean = 0.0f, scale = 1.0f;
  float values[kLaneColumns] = {};  // the first of the thread's columns
  if (own < k) load_columns(stage.x + own, values);
  if (stage.normalized) {
    const auto sum_of_columns = [&](auto&& fn) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) sum += own < k ? fn(values[i]) : 0.0f;
      for (int at = own + step; at < k; at += step) {
        float more[kLaneColumns];
        load_columns(stage.x + at, more);
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) sum += fn(more[i]);
      }
      return BlockTeam::sum(sum) / static_cast<float>(k);
    };
    if (stage.norm == NormKind::layer) mean = sum_of_columns([](float x) { return x; });
    scale = 1.0f / sqrtf(sum_of_columns([&](float x) { return (x - mean) * (x - mean); }) + stage.eps);
  }
  for (int base = 0; base < k; base += step) {
    const int at = base + own;
    const bool inside = at < k;
    float next[kLaneColumns] = {};  // on their way while these are encoded
    if (at + step < k) load_columns(stage.x + at + step, next);
    if (inside && stage.normalized) {
#pragma unroll
      for (int i = 0; i < kLaneColumns; i += 4) {
        const float4 w = stage.weight.four(at + i);
        const float4 b = stage.bias.data ? stage.bias.four(at + i) : float4{0.0f, 0.0f, 0.0f, 0.0f};
        const float y[4] = {(values[i] - mean) * scale * w.x + b.x, (values[i + 1] - mean) * scale * w.y + b.y,
                            (values[i + 2] - mean) * scale * w.z + b.z, (values[i + 3] - mean) * scale * w.w + b.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) values[i + j] = y[j];
        if (at / 256 % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x))
          *reinterpret_cast<float4*>(stage.normalized + at + i) = {y[0], y[1], y[2], y[3]};
      }
    }
    if constexpr (Kind::kFloats) {
      if (!inside) continue;
      float4* floats = reinterpret_cast<float4*>(to);
      floats[at / 8] = {values[0], values[1], values[2], values[3]};
      floats[k / 8 + at / 8] = {values[4], values[5], values[6], values[7]};
    } else {
      encode_columns<Kind::kEncoding>(values, inside, 0, at, k, to, reinterpret_cast<BlockMeta*>(meta));
    }
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) values[i] = next[i];
  }
}

template <class Kind>
__device__ TANDEM_FLAT inline void run_chain(const ChainArgs& args, std::byte* shared) {
  constexpr int kAhead = Kind::kSlots - 1;  // turns that are asked for before they are used
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_blocks = static_cast<int>(gridDim.x);
  const int first = warp * n_blocks + static_cast<int>(blockIdx.x), step = static_cast<int>(blockDim.x) / 32 * n_blocks;
  std::byte* const ring = shared + args.front_bytes + warp * Kind::kSlots * Kind::kSlotBytes;
  let_next_begin();
  ChainCursor<Kind> next(args, first, step, lane);
  // The same turn of slots as below: with an offset that is the same for all lanes ptxas 13.0 writes a copy with a cache hint
  // that no GPU can execute (LDGSTS with a descriptor in an odd register).
  std::byte *slot = ring, *before = ring + kAhead * Kind::kSlotBytes;
  const auto turn = [&] { return slot == ring + kAhead * Kind::kSlotBytes ? ring : slot + Kind::kSlotBytes; };
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) {
    next.request(slot);
    commit_copies();
    slot = turn();
  }
  slot = ring;
  prefetch_norm(args.stages[0]);
  __shared__ float2 turns[kChainPairs];
  if (args.rotation.stage >= 0)  // of a position that is an input of the step
    compute_rotations(args.rotation.table, args.rotation.call.positions[0], args.rotation.call.n_pairs, turns);
  wait_for_previous();
#pragma unroll 1
  for (int s = 0; s < args.n_stages; ++s) {
    const ChainStage& stage = args.stages[s];
    if (s > 0) {
      prefetch_norm(stage);
      wait_for_grid(args.counters, s);
    }
    make_input<Kind>(stage, shared);
    __syncthreads();
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
      const MatvecTarget* const to = stage.targets + target;
      if (lane != 0) continue;
      if (s == args.rotation.stage) {
        store_rotated(args.rotation, stage, target, task - to->first_block, sums[0], sums[1], turns);
      } else {
        store_pair(to, stage.mode, stage.activation, task - to->first_block, 0, sums[0], sums[1]);
      }
    }
  }
  if (args.n_stages > 1) end_waits(args.counters);
}

// As few registers a thread, 80, as if there were half as many threads more: see chain.h.
template <class Kind>
__global__ void __launch_bounds__(32 * kMaxChainWarps * 3 / 2) chain_kernel(const __grid_constant__ ChainArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  run_chain<Kind>(args, shared);
}

}  // namespace tandem::cuda
