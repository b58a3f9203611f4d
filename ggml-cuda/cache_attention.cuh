// Attention over a layer's cache, of steps whose tensors are given when they are launched (ops/attention.cu): the
// attention op, and the absorbed form of latent attention.
#pragma once

#include "ggml-cuda/attention_call.cuh"
#include "ggml-cuda/products.cuh"

namespace tandem::cuda {

// Some tokens of a step.
struct AttentionTensors {
  int64_t n_tokens = 0;
  const float* q = nullptr;            // [n_tokens, n_head * head_dim_k]
  const int32_t* positions = nullptr;  // [n_tokens]
  const int32_t* sequences = nullptr;  // [n_tokens]
  float* y = nullptr;                  // [n_tokens, n_head * head_dim_v], of a part n_head more
  MadeBytes made;                      // of y, if makes_bytes()
};

class CacheAttention {
 public:
  // Of the op, its parameters and block_table, sinks and hot_from are read. Steps have up to max_tokens.
  CacheAttention(const CompileContext& context, const KvLayer& kv, const AttentionOp& op, int64_t max_tokens,
                 ScratchLayout& scratch);

  // In steps of few tokens, of up to max_tokens.
  bool makes_bytes(int64_t max_tokens) const;
  void launch(const AttentionTensors& tensors, const LaunchContext& context) const;

 private:
  AttentionCall call_of(const AttentionTensors& tensors, int n_splits, const LaunchContext& context) const;
  enum class Kind { decode, packed, prefill, latent, simple };
  // How a step runs; depends only on its number of tokens.
  struct Way {
    Kind kind;
    int n_splits;
    bool is_wide = false;  // prefill: of twice the rows
  };
  Way way_of(int64_t n_tokens) const;
  Way decode_way(int64_t n_tokens) const;
  static bool is_partial(const Way& way);
  void choose_kernels(const CompileContext& context, bool values_in_keys);
  size_t partial_bytes(int64_t n_tokens, int n_splits) const;

  AttentionCall call_{};
  bool is_packed_ = false;  // of steps of few tokens
  AttentionKernel decode_, packed_, prefill_, wide_prefill_, latent_;  // empty: does not support these shapes
  int n_multiprocessors_;
  int64_t max_positions_ = 0;  // of a sequence
  int64_t n_few_tokens_ = 0;   // one token per sequence counts as few, for any number of sequences
  size_t partial_at_ = 0;
};

// Lets a kernel use all shared memory of a block, `limit` bytes with its static part: the kernel serves other plans too,
// which may need more than this one. Nothing without a kernel.
void allow_shared(const AttentionKernel& kernel, size_t limit);

}  // namespace tandem::cuda
