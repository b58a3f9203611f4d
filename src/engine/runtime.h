// Runtime: a model placed on devices and ready to run. It owns the KV cache, the executor and the compiled
// graphs, and knows several sequences at once: a step takes some tokens of each and gives logits. Which
// tokens, and what becomes of the logits, is the business of those above: a Session is one conversation, a
// Batcher many prompts.
//
// Memory that runs out, when it is made or later, does not end it: see EngineOptions::oom_ladder.
//
// A runtime and its sequences belong to one thread. Model and devices outlive it; it outlives its sequences.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/model.h"
#include "exec/executor.h"
#include "kv/cache.h"
#include "kv/hot_cache.h"
#include "kv/rows.h"
#include "kv/sequence.h"
#include "plan/session_plan.h"

namespace tandem {

// What a step does with one sequence.
struct StepPart {
  KvSequence* sequence = nullptr;
  std::span<const int32_t> tokens;  // that follow those it has; at least one
  int64_t n_outputs = 0;            // the logits of its last n_outputs tokens are wanted
};

class Runtime {
 public:
  // devices[0] works on host memory. Allocates all that is ever needed. Throws Error(usage | out_of_memory).
  // `before_allocation`, when given, sees the table of where everything will live.
  using Explain = std::function<void(const std::string& table)>;
  Runtime(const Model& model, std::vector<Device*> devices, const EngineOptions& options,
          const Explain& before_allocation = nullptr);
  ~Runtime();

  const Model& model() const { return model_; }
  int64_t n_ctx() const { return shape_.n_ctx; }
  int64_t n_ctx_sequence() const { return shape_.n_ctx_sequence; }
  int64_t n_sequences() const { return shape_.n_sequences; }
  // Tokens and outputs that a step may have. The ladder makes n_ubatch smaller.
  int64_t n_ubatch() const { return shape_.n_ubatch; }
  int64_t max_outputs() const { return max_outputs_; }

  // A sequence of this cache, empty.
  KvSequence new_sequence() { return {cache_->pool(), cache_->config().block_size}; }
  BlockPool& pool() { return cache_->pool(); }

  // Appends the parts' tokens, of different sequences, and returns the logits [outputs, n_vocab] that are
  // wanted, in the order of the parts; they stay valid until the next step. Nothing is returned, and nothing
  // has changed, when memory ran out and has been found again: the caller asks again, for n_ubatch() tokens
  // at most. When it throws, the sequences are as before. Throws Error(out_of_memory) also when the cache's
  // blocks are used up.
  std::optional<std::span<const float>> step(std::span<const StepPart> parts);

  // Throws Error(usage) for an id that is not in the vocabulary.
  void check_vocabulary(std::span<const int32_t> tokens) const;
  // Throws Error(numeric) when the logits [n_vocab] of the token at `position` are not finite.
  void check_finite(std::span<const float> logits, int64_t position) const;

  // What is cached for a sequence, as rows of the cache's dtype [n_tokens, n_head_kv, head_dim].
  const KvConfig& kv_config() const { return cache_->config(); }
  size_t kv_token_bytes(size_t layer, KvHalf half) const {
    return tandem::kv_token_bytes(kv_layer(layer), half);
  }
  void read_kv(const KvSequence& sequence, size_t layer, KvHalf half, std::byte* rows) const;
  void write_kv(const KvSequence& sequence, size_t layer, KvHalf half, const std::byte* rows);

  // Bytes taken, for reports.
  size_t kv_bytes() const { return cache_->n_bytes(); }
  size_t arena_bytes() const;
  const Executor& executor() const { return *executor_; }
  const Fit& placement() const { return fit_; }
  // What has no kernels of its own where it is computed (plan/generic_kernels.h); empty: everything has.
  std::string generic_kernels() const;

 private:
  void place(const Explain& before_allocation);
  void build();
  void build_cache(const KvConfig& kv);
  void build_down_the_ladder();
  bool step_down(const std::string& reason);
  bool recover(const Error& error);
  std::span<const float> run(std::span<const StepPart> parts);
  StepShape fill_inputs(std::span<const StepPart> parts);
  const KvLayer& kv_layer(size_t layer) const;
  Device& kv_device(size_t layer) const;

  const Model& model_;
  std::vector<Device*> devices_;
  const EngineOptions options_;
  ContextOptions shape_;  // as it was chosen; the ladder makes n_ubatch smaller
  Fit fit_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<HotCache> hot_;  // of a split cache; there is one sequence then
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Program> decode_;   // up to a token of each sequence
  std::unique_ptr<Program> prefill_;  // up to n_ubatch tokens
  int64_t max_outputs_ = 1;

  // Step inputs, sized once.
  std::vector<int32_t> ids_, positions_, sequences_, slots_, outputs_, hot_slots_;
  std::vector<int32_t> block_table_;  // [n_sequences, max_blocks]
};

}  // namespace tandem
