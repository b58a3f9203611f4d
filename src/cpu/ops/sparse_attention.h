// Attention that reads an indexed cache sparsely (SparseReads in graph/ops.h), of steps of a few tokens: each chooses its own
// positions, so what it gets does not depend on the others of the step. Tokens that would leave nothing out attend densely,
// and a step of such tokens is dense attention, bit for bit.
#pragma once

#include "cpu/ops/cache_attention.h"
#include "device/kv_index.h"

namespace tandem::cpu {

class SparseAttention {
 public:
  // Whether the op reads this cache sparsely.
  static bool applies(const KvLayer& kv, const AttentionOp& op) { return kv.indexed && op.sparse.on(); }

  SparseAttention(const CompileContext& context, const KvLayer& kv, const AttentionOp& op,
                  int64_t max_tokens);

  // As CacheAttention::run.
  void run(Worker& worker, const AttentionTensors& tensors, std::byte* shared, std::byte* scratch) const;
  // Returns the bytes of the cache that the last run has read, counted where they were.
  int64_t bytes_read(std::byte* shared) const;

  size_t shared_bytes() const { return shared_bytes_; }
  size_t scratch_bytes() const { return scratch_bytes_; }  // per worker

 private:
  struct Shared;
  struct Local;
  // One token of the step.
  struct Token {
    int64_t index, n_positions, position;
    const float* q;
    const int32_t* blocks;
  };

  Token token(const AttentionTensors& t, int64_t index) const;
  void run_sparse(Worker& worker, const AttentionTensors& t, const Token& token, const Shared& shared,
                  const Local& local) const;
  void choose_components(const Token& token, int64_t head_kv, const Local& local) const;
  void score(const Token& token, int64_t head_kv, int64_t chunk, const Shared& shared,
             const Local& local) const;
  void choose_positions(const Token& token, int64_t head_kv, const Shared& shared, const Local& local) const;
  void mean_values(const Token& token, int64_t head_kv, const Shared& shared) const;
  void attend(const Token& token, int64_t head_kv, int64_t piece, const Shared& shared,
              const Local& local) const;
  void gather(const Token& token, int64_t head_kv, std::span<const int32_t> positions,
              const Local& local) const;
  void finish(const AttentionTensors& t, const Token& token, int64_t head, const Shared& shared) const;

  int64_t n_listed(const Token& token) const {
    return always_read(op_.sparse, token.n_positions, token.position).n() + op_.sparse.n_positions;
  }
  int64_t list_room() const { return op_.sparse.n_read(); }

  CacheAttention dense_;
  AttentionOp op_;
  AttentionKernels kernels_;
  SparseKernels sparse_;
  KvLayer kv_;
  KvIndex index_;
  VectorWeight sinks_;          // [n_head]
  const int32_t* block_table_;  // [n_sequences, max_blocks]
  const int32_t* hot_from_;     // [n_sequences], of a cold part
  int64_t max_blocks_, max_positions_;
  int64_t group_, n_components_, chunk_, n_chunks_, n_pieces_;
  size_t k_row_bytes_, v_row_bytes_;
  size_t kernel_bytes_ = 0;  // of the attention kernel's scratch
  size_t shared_bytes_ = 0, scratch_bytes_ = 0;
};

}  // namespace tandem::cpu
