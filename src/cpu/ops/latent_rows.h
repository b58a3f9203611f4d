// The keys and values that each head makes from the latent rows of a cache, for the expanded form of latent attention:
// [c k_up_h, r] and c v_up_h^T (graph/ops.h), some positions at a time, so that the memory is bounded. They are rows of
// F16, or of the cache's dtype where that is F32 or BF16, so that attention kernels are as exact as over the cache.
#pragma once

#include "cpu/compiled_op.h"

namespace tandem::cpu {

class LatentRows {
 public:
  LatentRows(const CompileContext& context, const KvLayer& kv, const LatentAttentionOp& op);

  // The following are called by all workers and end with a barrier. Scratch as in RunContext.
  // Once before any make(): k_up transposed, which products with a cached row need.
  void unpack(Worker& worker, std::byte* shared, std::byte* scratch) const;
  // Makes the rows of positions [first, first + n), n up to chunk(), of the sequence with this row of the block table.
  void make(Worker& worker, const int32_t* table, int64_t first, int64_t n, std::byte* shared,
            std::byte* scratch) const;

  int64_t chunk() const { return chunk_; }
  DType dtype() const { return dtype_; }
  const std::byte* keys(std::byte* shared, int64_t head) const;    // [chunk, key]
  const std::byte* values(std::byte* shared, int64_t head) const;  // [chunk, value]
  size_t shared_bytes() const { return shared_bytes_; }
  size_t scratch_bytes() const { return scratch_bytes_; }  // per worker

 private:
  struct Shared;
  struct Local;
  // Some positions of a chunk, encoded together.
  struct Block {
    int64_t index, first, n;
  };
  Block block_at(int64_t index, int64_t n_positions) const;
  int64_t encode_step(int64_t n) const;
  void load(const Block& block, int64_t begin, int64_t end, const int32_t* table, int64_t first,
            const Shared& shared, float* row) const;
  void make_keys(int64_t head, const Block& block, const Shared& shared, const Local& local) const;
  void make_values(int64_t head, const Block& block, const Shared& shared, const Local& local) const;

  LatentAttentionParams op_;
  LinearKernels linear_;
  decltype(AttentionKernels::store_row) store_row_;
  decltype(RowKernels::dequantize) dequantize_;
  KvLayer kv_;
  const Weight &k_up_, &v_up_;
  const std::byte *k_data_, *v_data_;
  DType dtype_;                                                           // of the rows made
  DType transposed_;                                                      // of k_up transposed
  int64_t chunk_, block_;                                                 // positions
  size_t k_encoded_bytes_ = 0, v_encoded_bytes_ = 0, product_bytes_ = 0;  // the first two of a block
  size_t shared_bytes_ = 0, scratch_bytes_ = 0;
};

}  // namespace tandem::cpu
