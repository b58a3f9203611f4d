// Attention of few queries (decode) for key-value heads whose rows of a block are neighbours: of each block the keys of all heads,
// which are one stretch of memory, then their softmax, then their values, another one. What one head has in a block is 8 KiB: keys
// and values of one head in turn, a core of a Zen 4 read 20 GB/s of halves (heads of 128 columns, one query) where plain loads read
// 29, and so 24, because in long stretches the hardware has more lines under way than the core. With four queries the multipliers
// are the limit (19 GB/s; 22 from the L2).
// On Intel the blocks are read in several streams (attention_streams.h).
#pragma once

#include "cpu/linear_kernels.h"
#include "cpu/simd/attention_few.h"
#include "cpu/simd/attention_streams.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

bool takes_heads(const AttentionCall& call) {
  const auto direct = [&](DType dtype, int64_t head_dim) {
    return (dtype == DType::F16 || dtype == DType::BF16 || dtype == DType::F32) && head_dim % kLanes == 0 &&
           static_cast<size_t>(call.block_size) * cache_row_bytes(dtype, head_dim) <= 2 * kPanelBytes;
  };
  const int64_t most = reads_in_streams() ? kFewQueries : kFewQueries / 2;
  return call.n_queries <= most && !call.values_in_keys && call.window == 0 &&
         call.block_size % kLanes == 0 && call.block_size <= kPanel &&
         direct(call.k_dtype, call.head_dim_k) && direct(call.v_dtype, call.head_dim_v);
}

// A block's rows of one of the two pools, of all heads.
struct AdjacentRows {
  const std::byte* first;  // of the first head
  const ptrdiff_t* heads;  // from there to each head's
  int64_t n;               // of a head
  size_t row_bytes;

  PanelRows of_head(int64_t h) const {
    PanelRows rows;
    rows.row_bytes = row_bytes;
    if (n > 0) rows.runs[rows.n_runs++] = {first + heads[h], n};
    return rows;
  }
};

// Heads under way. What is read of each for a block is packed: apart, it would be in the same few sets of the L1.
class AdjacentHeads {
 public:
  // `scratch` has room for n times scratch_bytes().
  AdjacentHeads(const AttentionCall* calls, int64_t n, std::byte* scratch)
      : call_(calls[0]),
        n_(n),
        shape_(call_, scratch),
        keys_(keys_of(call_, shape_)),
        values_(values_of(call_, shape_)),
        dot_(panel_fns_of(reading_of(call_.k_dtype, keys_, kLanes), call_.n_queries).dot),
        update_(panel_fns_of(reading_of(call_.v_dtype, values_, 1), call_.n_queries).update),
        in_streams_dot_(stream_fns_of(call_.k_dtype, call_.n_queries).dot),
        in_streams_update_(stream_fns_of(call_.v_dtype, call_.n_queries).update),
        softmax_(softmax_panel_fn(stride())) {
    uintptr_t end = reinterpret_cast<uintptr_t>(scratch);
    const auto take = [&](int64_t n_floats) {
      float* piece = reinterpret_cast<float*>(end);
      end += static_cast<size_t>(whole_vecs(n_floats)) * sizeof(float);
      return piece;
    };
    float* seen = take(2 * shape_.n_q);  // the same for all heads
    for (int64_t h = 0; h < n; ++h) {
      Panels& p = panels_[h] = shape_;
      p.lowest = reinterpret_cast<int32_t*>(seen);
      p.highest = p.lowest + p.n_q;
      p.q = take(call_.n_queries * p.ld_k);
      p.acc = take(call_.n_queries * p.ld_v);
      p.s = take(kStreams * call_.block_size * stride());
      p.max = take(p.n_q);
      p.sum = take(p.n_q);
      p.factor = take(p.n_q);
      scale_queries(calls[h], p);
      seen_ = find_seen(calls[h], p);
      zero(p.acc, call_.n_queries * p.ld_v);
      k_heads_[h] = calls[h].k - call_.k;
      v_heads_[h] = calls[h].v - call_.v;
    }
  }

  void attend() const {
    const int64_t end = call_.kv_end;
    for (int64_t first = call_.kv_begin; first < end; first += call_.block_size) {
      const int64_t in_streams = kStreams * call_.block_size;
      if (in_streams_ && first + in_streams <= end && first >= seen_.all_from && first + in_streams - 1 <= seen_.all_to) {
        attend_streams(first, end + call_.kv_then);
        first += in_streams - call_.block_size;
        continue;
      }
      const int64_t n = lesser(end - first, call_.block_size), last = first + n - 1;
      if (last < seen_.any_from || first > seen_.any_to) continue;
      attend_block(first, n, lesser(end + call_.kv_then - first - n, call_.block_size));
    }
  }

  // Writes the calls' results.
  void finish(const AttentionCall* calls) const {
    for (int64_t h = 0; h < n_; ++h) {
      add_lanes(panels_[h], stride());
      return_results(calls[h], panels_[h]);
    }
  }

 private:
  int64_t stride() const { return stride_of(static_cast<int>(call_.n_queries)); }

  AdjacentRows keys(int64_t first, int64_t n) const {
    return {n > 0 ? keys_.row(first) : nullptr, k_heads_, n, keys_.row_bytes};
  }

  // Fetches n_then rows of the next block meanwhile.
  void attend_block(int64_t first, int64_t n, int64_t n_then) const {
    const AdjacentRows k = keys(first, n), v{values_.row(first), v_heads_, n, values_.row_bytes},
                       next_k = keys(first + n, n_then);
    for (int64_t h = 0; h < n_; ++h) dot_(panels_[h], k.of_head(h), ahead_of(k, h, v));
    const int64_t last = first + n - 1;
    const bool masked = first < seen_.all_from || last > seen_.all_to || n % kLanes != 0;
    for (int64_t h = 0; h < n_; ++h) {
      const Panels& p = panels_[h];
      if (call_.softcap > 0) cap_scores(p.s, whole_vecs(n * stride()), call_.softcap);
      softmax_(p, first, n, masked);
    }
    for (int64_t h = 0; h < n_; ++h) update_(panels_[h], v.of_head(h), ahead_of(v, h, next_k));
  }

  // The same of kStreams whole blocks that all queries see; positions before `end` are attended to next.
  void attend_streams(int64_t first, int64_t end) const {
    const int64_t n = call_.block_size, next = first + kStreams * n;
    const std::byte *k[kStreams], *v[kStreams], *next_k[kStreams];
    for (int64_t b = 0; b < kStreams; ++b) {
      k[b] = keys_.row(first + b * n);
      v[b] = values_.row(first + b * n);
      next_k[b] = next + b * n < end ? keys_.row(next + b * n) : k[b];
    }
    for (int64_t h = 0; h < n_; ++h) in_streams_dot_(panels_[h], of_head(k, k_heads_, h, keys_.row_bytes, v));
    for (int64_t h = 0; h < n_; ++h) {
      const Panels& p = panels_[h];
      if (call_.softcap > 0) cap_scores(p.s, kStreams * n * stride(), call_.softcap);
      softmax_(p, first, kStreams * n, false);
    }
    for (int64_t h = 0; h < n_; ++h) in_streams_update_(panels_[h], of_head(v, v_heads_, h, values_.row_bytes, next_k));
  }

  // A head's rows of blocks, behind whose last head those at `then` are read.
  StreamRows of_head(const std::byte* const (&blocks)[kStreams], const ptrdiff_t* heads, int64_t h, size_t row_bytes,
                     const std::byte* const (&then)[kStreams]) const {
    StreamRows rows{{}, row_bytes, call_.block_size, {}, call_.block_size};
    const auto n_bytes = static_cast<ptrdiff_t>(row_bytes) * call_.block_size;
    for (int64_t b = 0; b < kStreams; ++b) {
      rows.rows[b] = blocks[b] + heads[h];
      rows.then[b] = then[b] - (rows.rows[b] + n_bytes) + static_cast<ptrdiff_t>(kAheadInL2);
    }
    if (h + 1 == n_) rows.then_from = (n_bytes - static_cast<ptrdiff_t>(kAheadInL2)) / static_cast<ptrdiff_t>(row_bytes);
    return rows;
  }

  // What to fetch with a head's rows: those of the next head, or of the first one in `then`. Only its own for one query on a Zen 4,
  // which takes whole rows in the order of memory: there the hardware goes on by itself, with more under way than a core may ask for.
  Ahead ahead_of(const AdjacentRows& rows, int64_t h, const AdjacentRows& then) const {
    if (kLanes == 16 && fetches_into_l2() && call_.n_queries == 1) return {};
    return {h + 1 < n_ ? rows.of_head(h + 1) : then.of_head(0)};
  }

  const AttentionCall& call_;
  const int64_t n_;
  const bool in_streams_ = reads_in_streams();
  const Panels shape_;
  const CacheRows keys_, values_;
  const PanelFn dot_, update_;
  const StreamFn in_streams_dot_, in_streams_update_;
  const SoftmaxPanel softmax_;
  Seen seen_;
  Panels panels_[kHeadsAtOnce];
  ptrdiff_t k_heads_[kHeadsAtOnce], v_heads_[kHeadsAtOnce];
};

void attend_heads(const AttentionCall* calls, int64_t n, std::byte* scratch) {
  for (int64_t first = 0; first < n; first += kHeadsAtOnce) {
    AdjacentHeads heads(calls + first, lesser(kHeadsAtOnce, n - first), scratch);
    heads.attend();
    heads.finish(calls + first);
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
