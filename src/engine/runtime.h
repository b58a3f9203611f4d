// Runtime: a model placed on devices and ready to run. It owns the KV cache, the executor and the compiled
// graphs. A step takes some tokens of one or more sequences and returns logits. Session (one conversation)
// and Batcher (many prompts) choose the tokens and use the logits.
//
// If memory runs out, at construction or later, it continues with less: see EngineOptions::oom_ladder.
//
// A runtime and its sequences belong to one thread. Model and devices outlive it; it outlives its
// sequences.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/model.h"
#include "engine/moved_keys.h"
#include "engine/step_logits.h"
#include "exec/executor.h"
#include "exec/expert_counts.h"
#include "kv/cache.h"
#include "kv/hot_cache.h"
#include "kv/rows.h"
#include "kv/sequence.h"
#include "plan/session_plan.h"

namespace tandem {

// The new tokens of one sequence in a step.
struct BatchSlice {
  KvSequence* sequence = nullptr;
  std::span<const int32_t> tokens;  // appended to the sequence; at least one
  int64_t n_outputs = 0;            // returns the logits of the last n_outputs tokens
  std::span<const float> hidden;    // [n_tokens, n_embd], for an MTP layer (Input::hidden)
};

class Runtime {
 public:
  // devices[0] works on host memory. Allocates everything it will need. Throws Error(usage |
  // out_of_memory). Calls `before_allocation`, if given, with the table of the placement.
  using Explain = std::function<void(const std::string& table)>;
  Runtime(const Model& model, std::vector<Device*> devices, const EngineOptions& options,
          const Explain& before_allocation = nullptr);
  ~Runtime();

  const Model& model() const { return model_; }
  int64_t n_ctx() const { return shape_.n_ctx; }
  int64_t n_ctx_sequence() const { return shape_.n_ctx_sequence; }
  int64_t n_sequences() const { return shape_.n_sequences; }
  // Maximum tokens and outputs of a step. The out-of-memory ladder lowers n_ubatch.
  int64_t n_ubatch() const { return shape_.n_ubatch; }
  int64_t max_outputs() const { return max_outputs_; }
  // Tokens of each step of a prompt of n.
  int64_t micro_batch(int64_t n_tokens) const;
  int64_t n_deferred() const { return shape_.n_deferred; }
  SparseReads sparse_kv() const { return shape_.sparse_kv; }
  // Of a step that computes where single tokens are computed: see ContextOptions::n_draft.
  int64_t max_decode_tokens() const { return n_sequences() + shape_.n_draft; }

  // Returns an empty sequence of this cache: the only one, which has all checkpoints, or one of several, which
  // has none and so cannot be cut back with recurrent layers.
  enum class Sequences { one, several };
  KvSequence new_sequence(Sequences sequences = Sequences::one) {
    return {pool(), cache_->config().block_size, state_slots(),
            sequences == Sequences::one ? shape_.n_state_checkpoints : 0, cache_->open_groups()};
  }
  // Whether layers have states, so that a sequence can only be cut back to where it has one.
  bool is_recurrent() const { return cache_->config().is_recurrent(); }
  // Whether a sequence may be cut back to less than was asked for (KvSequence::truncate); what is missing is computed again.
  bool cuts_more() const { return is_recurrent() || cache_->open_groups() != nullptr; }
  BlockPool& pool() { return cache_->pool(); }
  BlockPool* state_slots() {
    return is_recurrent() ? &cache_->state_slots() : nullptr;
  }  // null without states

  // Appends the slices' tokens, each of another sequence, and returns the logits of the outputs in the order
  // of the slices, valid until the next step. Returns nothing, and changes nothing, if memory
  // ran out and the ladder freed some: call it again with at most n_ubatch() tokens. If it throws, the
  // sequences are as before. Throws Error(out_of_memory) also if the cache has no free blocks.
  std::optional<StepLogits> step(std::span<const BatchSlice> slices, LogitsWanted wanted = LogitsWanted::all);
  // What the last step made of its tokens, [n_tokens, n_embd], valid until the next one; empty unless
  // ContextOptions::keeps_hidden.
  std::span<const float> hidden() const { return executor_->hidden(); }

  // Throws Error(usage) for an id that is not in the vocabulary.
  void check_vocabulary(std::span<const int32_t> tokens) const;
  // Throws Error(numeric) when the logits of the token at `position` are not finite.
  void check_finite(const TokenLogits& logits, int64_t position) const;

  // The cache of a sequence, as rows of the layer's dtypes: [n_tokens, n_head_kv, head_dim]; of a recurrent
  // layer, one row for each of the sequence's states.
  const KvConfig& kv_config() const { return cache_->config(); }
  size_t kv_token_bytes(size_t layer, KvHalf half) const {
    return tandem::kv_token_bytes(*cache_, layer, half);
  }
  void read_kv(const KvSequence& sequence, size_t layer, KvHalf half, std::byte* rows) const;
  void write_kv(const KvSequence& sequence, size_t layer, KvHalf half, const std::byte* rows);
  // One whole block of the sequence, which has rows [block_size, n_head_kv, head_dim].
  void read_block(const KvSequence& sequence, int64_t block, size_t layer, KvHalf half,
                  std::byte* rows) const;
  void write_block(const KvSequence& sequence, int64_t block, size_t layer, KvHalf half,
                   const std::byte* rows);
  // Appends positions whose blocks (and state) the caller writes next, all of them at once.
  void append_unwritten(KvSequence& sequence, int64_t n_tokens);
  // Drops n_drop positions after the first n_keep and moves what follows to their place (engine/moved_keys.h), if this cache
  // can: false if not, and nothing is changed. If a device's copy throws, the sequence has its first n_keep positions.
  bool move(KvSequence& sequence, int64_t n_keep, int64_t n_drop);
  // Reads and writes one state of a recurrent layer.
  void read_state(int32_t slot, size_t layer, KvHalf half, std::byte* row) const;
  void write_state(int32_t slot, size_t layer, KvHalf half, const std::byte* row);

  // Bytes taken, for reports.
  size_t kv_bytes() const { return cache_->n_bytes(); }
  size_t arena_bytes() const;
  const Executor& executor() const { return *executor_; }
  // Of experts on disk or kept on GPUs, since construction.
  ExpertCounts expert_counts() const;
  const Fit& placement() const { return fit_; }
  // The dtypes that run on generic kernels (plan/generic_kernels.h); empty: none.
  std::string generic_kernels() const;

 private:
  void place(const Explain& before_allocation);
  void note_sparse_reads() const;
  void warn_of_unused_expert_cache() const;
  void build();
  void build_cache(const KvConfig& kv);
  void build_down_the_ladder();
  bool step_down(const std::string& reason);
  bool recover(const Error& error);
  StepLogits run(std::span<const BatchSlice> slices, LogitsWanted wanted);
  void bring_spilled(std::span<const BatchSlice> slices);
  StepShape fill_inputs(std::span<const BatchSlice> slices);
  size_t join_hidden(std::span<const BatchSlice> slices);
  void set_far_inputs(StepInputs& inputs);

  const Model& model_;
  std::vector<Device*> devices_;
  const EngineOptions options_;
  ContextOptions shape_;  // as planned; the out-of-memory ladder lowers n_ubatch
  Fit fit_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<HotCache> hot_;  // of a split cache; there is one sequence then
  std::unique_ptr<Executor> executor_;
  ExpertCounts earlier_counts_;                            // of executors before this one
  std::unique_ptr<Program> decode_;                        // up to a token of each sequence
  std::unique_ptr<Program> prefill_;                       // up to n_ubatch tokens
  std::optional<std::vector<KeyRotation>> key_rotations_;  // none: keys cannot be moved
  int64_t max_outputs_ = 1;

  // Step inputs, sized once.
  std::vector<int32_t> ids_, positions_, sequences_, slots_, outputs_, hot_slots_;
  std::array<std::vector<int32_t>, 3> far_;  // of SelfExtend: far_positions, grouped_queries, grouped_keys
  std::vector<int32_t> block_table_;         // [n_sequences, max_blocks]
  std::vector<int32_t> states_;              // [n_sequences, 2]
  std::vector<float> hidden_;                // [n_ubatch, n_embd], for an MTP layer
  std::vector<SequenceStep> sequence_steps_;
};

// The context and the micro-batch that a runtime with these options takes: those that the options leave open are planned.
// Throws as planning does.
ContextOptions planned_context(const Model& model, std::vector<Device*> devices,
                               const EngineOptions& options);

}  // namespace tandem
