// Attention over a layer's cache, of steps whose tensors are given when they run: the attention op, and the absorbed
// form of latent attention.
#pragma once

#include <algorithm>

#include "cpu/ops/attention_tiles.h"
#include "cpu/ops/rows.h"
#include "cpu/ops/scratch_pieces.h"

namespace tandem::cpu {

// Some tokens of a step.
struct AttentionTensors {
  int64_t n_tokens = 0;
  const float* q = nullptr;            // [n_tokens, n_head * head_dim_k]
  const int32_t* positions = nullptr;  // [n_tokens]
  const int32_t* sequences = nullptr;  // [n_tokens]
  float* y = nullptr;                  // [n_tokens, n_head * head_dim_v], of a part n_head more
};

class CacheAttention {
 public:
  // Of the op, its parameters and block_table, sinks and hot_from are read. Steps have up to max_tokens.
  CacheAttention(const CompileContext& context, const KvLayer& kv, const AttentionOp& op, int64_t max_tokens);

  // Called by all workers; ends with a barrier. Scratch as in RunContext.
  void run(Worker& worker, const AttentionTensors& tensors, std::byte* shared, std::byte* scratch) const;

  size_t shared_bytes() const { return shared_bytes_; }
  size_t scratch_bytes() const { return scratch_bytes_; }  // per worker

 private:
  // Partial sums of some query rows over some positions.
  struct Partials {
    float* acc;  // [rows, head_dim_v]
    float* sum;  // [rows]
    float* max;  // [rows]

    Partials(ScratchPieces& pieces, int64_t n_rows, int64_t head_dim_v)
        : acc(pieces.take<float>(n_rows * head_dim_v)),
          sum(pieces.take<float>(n_rows)),
          max(pieces.take<float>(n_rows)) {}
  };
  struct Local;

  int64_t first_head(int64_t slot) const;
  int64_t head_count(int64_t slot) const;
  AttentionCall call_of_head(int64_t head_kv) const;
  std::span<const int32_t> hot_from() const;
  // An item of one slot, and of all of them.
  void attend(const AttentionTensors& t, const AttentionWork& work, const AttentionTile& tile, int64_t slot,
              int64_t chunk, const Local& local, const Partials* partials, std::byte* scratch) const;
  void attend_together(const AttentionTensors& t, const AttentionWork& work, const AttentionTile& tile,
                       int64_t chunk, const Local& local, const Partials& partials, std::byte* scratch) const;
  // The call for a slot's queries over a chunk, whose rows are listed from row `at` of `local` on; its results are row0 of `to`
  // and those behind it.
  AttentionCall call_of(const AttentionTensors& t, const AttentionWork& work, const AttentionTile& tile,
                        int64_t slot, int64_t chunk, const Local& local, int64_t at, const Partials& to,
                        int64_t row0) const;
  // Whether steps of n query rows of a head may read all heads together.
  bool takes_heads(int64_t n_rows) const;
  int64_t n_listed_rows() const { return std::max(max_rows_, n_calls_ * kTogetherRows); }
  int64_t partial_row(const AttentionTile& tile, int64_t slot, int64_t chunk) const;
  void merge(const AttentionTensors& t, const AttentionWork& work, int64_t slot, int64_t i,
             const Partials& partials) const;
  void finish(const AttentionTensors& t, int32_t token, int64_t head, const Partials& partials, int64_t row,
              int64_t stride, int64_t n) const;

  AttentionOp op_;
  AttentionKernels kernels_;
  decltype(RowKernels::scale) scale_row_;
  KvLayer kv_;
  HeadParts parts_;
  int64_t n_slots_, max_tokens_, max_blocks_;
  int64_t max_rows_ = 0;        // of a tile
  int64_t n_partial_rows_ = 0;  // capacity of the shared scratch, in rows
  int64_t n_calls_ = 0;         // of an item of all slots; 0: there are none
  const int32_t* block_table_;  // [n_sequences, max_blocks]
  VectorWeight sinks_;          // [n_head]
  const int32_t* hot_from_;     // [n_sequences], of a part
  int64_t n_sequences_, n_cols_ = 0;
  size_t shared_bytes_ = 0, scratch_bytes_ = 0;
};

}  // namespace tandem::cpu
