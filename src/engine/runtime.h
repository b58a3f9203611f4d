// Runtime: a model placed on devices and ready to run. It owns the KV cache, the executor and the compiled
// graphs, and knows several sequences at once: a step takes some tokens of each and gives logits. Which
// tokens, and what becomes of the logits, is the business of those above: a Session is one conversation, a
// Batcher many prompts.
//
// Memory that runs out, when it is made or later, does not end it: see RuntimeOptions::oom_ladder.
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
#include "kv/recent_part.h"
#include "kv/rows.h"
#include "kv/sequence.h"
#include "plan/session_plan.h"

namespace tandem {

struct RuntimeOptions {
  int64_t n_ctx = 0;       // tokens of context, of all sequences together; 0: what the model was trained with
  int64_t n_batch = 2048;  // upper bound of n_ubatch, as llama.cpp's users know it
  int64_t n_ubatch = 512;  // tokens that the graph takes at a time
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  bool all_logits = false;  // logits of every token of a step are kept room for
  Placement placement;      // empty: by `offload`
  OffloadFlags offload;     // with devices[1..]: what goes there
  // How fast the devices are; empty: not known, and what `offload` leaves open is as much on GPUs as fits.
  std::vector<DeviceRates> rates;
  bool ubatch_is_free = false;    // with rates: a smaller n_ubatch may be chosen
  bool kv_dtype_is_free = false;  // with rates: a quantized cache may be chosen
  // Where memory that was counted on is not to be had, a smaller micro-batch, the cache on the host and
  // layers on the host are tried in turn, each said in one line, and what was being computed goes on. Off:
  // Error(out_of_memory).
  bool oom_ladder = true;
  int64_t n_sequences = 1;     // that a step may have; at most one for each block of the cache
  int64_t n_ctx_sequence = 0;  // tokens that one of them may have; 0: n_ctx
  // What reads the layers that are left on disk; empty: open_disk_reader().
  std::function<std::unique_ptr<DiskReader>(std::vector<DiskFile>)> open_disk;
};

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
  Runtime(const Model& model, std::vector<Device*> devices, const RuntimeOptions& options,
          const Explain& before_allocation = nullptr);
  ~Runtime();

  const Model& model() const { return model_; }
  int64_t n_ctx() const { return options_.n_ctx; }
  int64_t n_ctx_sequence() const { return options_.n_ctx_sequence; }
  int64_t n_sequences() const { return options_.n_sequences; }
  // Tokens and outputs that a step may have. The ladder makes n_ubatch smaller.
  int64_t n_ubatch() const { return options_.n_ubatch; }
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

 private:
  void place(const Explain& before_allocation);
  SessionShape shape() const;
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
  RuntimeOptions options_;
  Fit fit_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<RecentPart> recent_;  // of a cache in two parts; there is one sequence then
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Program> decode_;   // up to a token of each sequence
  std::unique_ptr<Program> prefill_;  // up to n_ubatch tokens
  int64_t max_outputs_ = 1;

  // Step inputs, sized once.
  std::vector<int32_t> ids_, positions_, sequences_, slots_, outputs_, recent_slots_;
  std::vector<int32_t> block_table_;  // [n_sequences, max_blocks]
};

}  // namespace tandem
