// What the kernels of chain.h have in common: their arguments, the waits between stages, the input of a stage, and where results go.
#pragma once

#include <algorithm>

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
  int stage = -1;                // none
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

// The dtypes of a kernel: of one kind, which reads its input in one form.
template <DType kFirst, DType... kOthers>
struct ChainDTypes {
  static constexpr bool kFloats = is_plain(kFirst);
  static constexpr Encoding kEncoding = encoding_of(kFirst);
  static_assert((kFloats || ((encoding_of(kOthers) == kEncoding) && ...)));

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
      case DType::F16:
        reinterpret_cast<fp16_t*>(row)[column] = float_to_half(y[r]);
        break;
      case DType::BF16:
        reinterpret_cast<bf16_t*>(row)[column] = float_to_bfloat(y[r]);
        break;
      default:
        reinterpret_cast<float*>(row)[column] = y[r];
    }
  }
}

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

// Stores the sums of a pair of rows of a target, of stage number s. By one lane. turns [kChainPairs], of the rotation.
__device__ inline void store_sums(const ChainArgs& args, int s, int target, int pair, float first, float second,
                                  const float2* turns) {
  const ChainStage& stage = args.stages[s];
  if (s == args.rotation.stage) {
    store_rotated(args.rotation, stage, target, pair, first, second, turns);
  } else {
    store_pair(stage.targets + target, stage.mode, stage.activation, pair, 0, first, second);
  }
}

// The stages one after the other. fill() asks for the first turns, before anything is there but weights; multiply(s, turns) is the
// work on stage number s, whose input lies in shared memory.
template <class Kind, class Fill, class Multiply>
__device__ TANDEM_FLAT inline void run_stages(const ChainArgs& args, std::byte* shared, Fill&& fill, Multiply&& multiply) {
  let_next_begin();
  fill();
  prefetch_norm(args.stages[0]);
  __shared__ float2 turns[kChainPairs];
  if (args.rotation.stage >= 0)  // of a position that is an input of the step
    compute_rotations(args.rotation.table, args.rotation.call.positions[0], args.rotation.call.n_pairs, turns);
  wait_for_previous();
#pragma unroll 1
  for (int s = 0; s < args.n_stages; ++s) {
    if (s > 0) {
      prefetch_norm(args.stages[s]);
      wait_for_grid(args.counters, s);
    }
    make_input<Kind>(args.stages[s], shared);
    __syncthreads();
    multiply(s, turns);
  }
  if (args.n_stages > 1) end_waits(args.counters);
}

}  // namespace tandem::cuda
