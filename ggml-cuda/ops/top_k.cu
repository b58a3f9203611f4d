// top_k: the largest columns of each row, of logits. A block has a part of a row; a warp takes groups of 64 columns in turn,
// two a lane, and keeps the 64 largest so far in order. Groups are sorted by shuffles (a bitonic network) unless all of it is
// smaller. The warps' lists are merged in shared memory, the blocks' by the last of them, so one launch does all. Keys with
// the column in them (graph/top_k.h) make the order unique, so the result does not depend on how the row was divided.
//
// Bytes: 4 c read, from the L2 cache; 513 KB for 128256 logits. About 410 instructions for a group that is sorted and merged:
// with 63 blocks of 8 warps, four groups each, and eight lists for each warp of the last one, 2 to 3 us. The copy of all
// logits to the host, 10 us at 55 GB/s, falls away, and what the host did with them.
#include "graph/top_k.h"

#include "ggml-cuda/ops/rows.cuh"
#include "ggml-cuda/ordering.cuh"
#include "ggml-cuda/products.cuh"

namespace tandem::cuda {
namespace {

using Key = unsigned long long;

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kGroup = static_cast<int>(kMaxTopK), kOwn = kGroup / kWarp;
constexpr int kGroupsOfWarp = 4, kMaxParts = 64;
static_assert(kOwn == 2);

struct TopKCall {
  const float* x;  // [n, n_cols]
  float* y;        // [n, 2 * k]
  Key* lists;      // [rows of the launch, n_parts, kGroup]
  int* counters;   // [rows of the launch], all 0
  int64_t row0;
  int n_cols, k, n_parts;
};

// A list of kGroup keys of a warp, descending: the lane has numbers `lane` and kWarp + lane. 0: nothing.
struct WarpList {
  Key key[kOwn] = {};

  // Puts the pairs of keys that are `distance` apart in order; ascending where a bit of `flip` is set in their number.
  __device__ void compare(int distance, int flip, int lane) {
    if (distance == kWarp) {
      const Key a = key[0], b = key[1];
      key[0] = a > b ? a : b;
      key[1] = a > b ? b : a;
      return;
    }
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const Key other = __shfl_xor_sync(kAllLanes, key[j], distance);
      const int number = lane + kWarp * j;
      const bool takes_greater = ((number & distance) == 0) == ((number & flip) == 0);
      key[j] = (key[j] > other) == takes_greater ? key[j] : other;
    }
  }

  __device__ void sort(int lane) {
#pragma unroll
    for (int size = 2; size <= kGroup; size *= 2) {
#pragma unroll
      for (int distance = size / 2; distance > 0; distance /= 2)
        compare(distance, size < kGroup ? size : 0, lane);
    }
  }

  // Takes the greatest of both lists; `other` in reverse order.
  __device__ void merge_reversed(const Key (&other)[kOwn], int lane) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) key[j] = key[j] > other[j] ? key[j] : other[j];
#pragma unroll
    for (int distance = kWarp; distance > 0; distance /= 2) compare(distance, 0, lane);
  }

  __device__ void store(Key* to, int lane) const {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) to[lane + kWarp * j] = key[j];
  }
};

// The list that another warp of this or, past the L1 cache, of another block has stored.
__device__ inline void merge_stored(WarpList& list, const Key* from, int lane) {
  Key other[kOwn];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) other[j] = __ldcg(from + kGroup - 1 - lane - kWarp * j);
  list.merge_reversed(other, lane);
}

// The warp's groups of the part.
__device__ inline WarpList list_of_columns(const float* x, int n_cols, int first, int step, int lane) {
  WarpList list;
  for (int group = first; group * kGroup < n_cols; group += step) {
    WarpList next;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int column = group * kGroup + lane + kWarp * j;
      if (column < n_cols) next.key[j] = top_key(__float_as_uint(x[column]), static_cast<uint32_t>(column));
    }
    const Key least = __shfl_sync(kAllLanes, list.key[kOwn - 1], kWarp - 1);
    if (!__any_sync(kAllLanes, next.key[0] > least || next.key[1] > least)) continue;
    next.sort(lane);
    const Key reversed[kOwn] = {__shfl_xor_sync(kAllLanes, next.key[1], kWarp - 1),
                                __shfl_xor_sync(kAllLanes, next.key[0], kWarp - 1)};
    list.merge_reversed(reversed, lane);
  }
  return list;
}

// Merges the lists of the block's warps into that of the first.
__device__ inline void merge_warps(WarpList& list, Key (*shared)[kGroup], int warp, int lane) {
  for (int half = kWarps / 2; half > 0; half /= 2) {
    if (warp >= half && warp < 2 * half) list.store(shared[warp], lane);
    __syncthreads();
    if (warp < half) {
      Key other[kOwn];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) other[j] = shared[warp + half][kGroup - 1 - lane - kWarp * j];
      list.merge_reversed(other, lane);
    }
    __syncthreads();
  }
}

// Grid: x part, y row.
__global__ void __launch_bounds__(kThreads) top_k_kernel(const __grid_constant__ TopKCall call) {
  __shared__ Key shared[kWarps][kGroup];
  __shared__ bool is_last;
  let_next_begin();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  const float* x = call.x + (call.row0 + row) * call.n_cols;
  WarpList list = list_of_columns(x, call.n_cols, part * kWarps + warp, call.n_parts * kWarps, lane);
  merge_warps(list, shared, warp, lane);
  if (call.n_parts > 1) {
    Key* const lists = call.lists + static_cast<int64_t>(row) * call.n_parts * kGroup;
    if (warp == 0) list.store(lists + part * kGroup, lane);
    __syncthreads();
    if (threadIdx.x == 0) {
      is_last = count(&call.counters[row], 1) == call.n_parts - 1;
      if (is_last) call.counters[row] = 0;
    }
    __syncthreads();
    if (!is_last) return;
    list = {};
    for (int i = warp; i < call.n_parts; i += kWarps) merge_stored(list, lists + i * kGroup, lane);
    merge_warps(list, shared, warp, lane);
  }
  if (warp > 0) return;
  float* y = call.y + (call.row0 + row) * 2 * call.k;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int number = lane + kWarp * j;
    if (number >= call.k) continue;
    y[number] = __uint_as_float(column_of_key(list.key[j]));
    y[call.k + number] = __uint_as_float(bits_of_key(list.key[j]));
  }
}

class CompiledTopK final : public CompiledOp {
 public:
  CompiledTopK(const CompileContext& context, const Node& node, const TopKOp& op, ScratchLayout scratch = {})
      : shape_(context.tensor(op.x)) {
    call_.x = context.address<const float>(op.x);
    call_.y = context.address<float>(node.output);
    call_.n_cols = static_cast<int>(shape_.n_cols);
    call_.k = static_cast<int>(op.k);
    call_.n_parts =
        std::min<int>(kMaxParts, blocks_of(shape_.n_cols, int64_t{kGroup} * kWarps * kGroupsOfWarp));
    const size_t n_rows = std::min<size_t>(kCounters, static_cast<size_t>(shape_.n_rows));
    lists_at_ = scratch.take(n_rows * static_cast<size_t>(call_.n_parts) * kGroup * sizeof(Key));
    scratch_bytes = scratch.n_bytes();
  }

  void launch(const LaunchContext& context) const override {
    TopKCall call = call_;
    call.lists = reinterpret_cast<Key*>(context.scratch + lists_at_);
    call.counters = context.counters;
    const int64_t n = row_count(shape_, context.shape);
    for (call.row0 = 0; call.row0 < n; call.row0 += static_cast<int64_t>(kCounters)) {
      const dim3 grid(static_cast<unsigned>(call.n_parts),
                      static_cast<unsigned>(std::min<int64_t>(kCounters, n - call.row0)));
      launch_overlapping(top_k_kernel, grid, kThreads, 0, context.stream, call);
    }
  }

 private:
  const Tensor& shape_;  // of x
  TopKCall call_{};
  size_t lists_at_ = 0;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const TopKOp& op) {
  return std::make_unique<CompiledTopK>(context, node, op);
}

}  // namespace tandem::cuda
