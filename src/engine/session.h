// Session: one conversation with a model. It owns the KV cache and the compiled graphs, and keeps the tokens it has
// seen. Tokens go in, logits come out; choosing the next token is the caller's business (see generate.h).
//
// Memory that runs out, when it is made or later, does not end it: see SessionOptions::oom_ladder.
//
// A session belongs to one thread. Model and devices outlive it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/model.h"
#include "exec/executor.h"
#include "kv/cache.h"
#include "kv/rows.h"
#include "kv/sequence.h"
#include "plan/session_plan.h"

namespace tandem {

struct SessionOptions {
  int64_t n_ctx = 0;       // tokens of context; 0: what the model was trained with
  int64_t n_batch = 2048;  // upper bound of n_ubatch, as llama.cpp's users know it
  int64_t n_ubatch = 512;  // tokens that the graph takes at a time
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  bool all_logits = false;  // evaluate() will be used: logits of every token are kept room for
  Placement placement;      // empty: by `offload`
  OffloadFlags offload;     // with devices[1..]: what goes there
  // How fast the devices are; empty: not known, and what `offload` leaves open is as much on GPUs as fits.
  std::vector<DeviceRates> rates;
  bool ubatch_is_free = false;    // with rates: a smaller n_ubatch may be chosen
  bool kv_dtype_is_free = false;  // with rates: a quantized cache may be chosen
  // Where memory that was counted on is not to be had, a smaller micro-batch, the cache on the host and layers on the
  // host are tried in turn, each said in one line, and what was being computed goes on. Off: Error(out_of_memory).
  bool oom_ladder = true;
};

class Session {
 public:
  // devices[0] works on host memory. Allocates all that is ever needed. Throws Error(usage | out_of_memory).
  // `before_allocation`, when given, sees the table of where everything will live.
  using Explain = std::function<void(const std::string& table)>;
  Session(const Model& model, std::vector<Device*> devices, const SessionOptions& options,
          const Explain& before_allocation = nullptr);
  ~Session();

  const Model& model() const { return model_; }
  int64_t n_ctx() const { return options_.n_ctx; }
  int64_t n_ubatch() const { return options_.n_ubatch; }
  std::span<const int32_t> tokens() const { return tokens_; }  // those in the cache
  int64_t n_past() const { return static_cast<int64_t>(tokens_.size()); }

  // Adds tokens (at least one) and returns the logits [n_vocab] after the last; they stay valid until the next call.
  // `progress`, when given, is called after every micro-batch with the number of tokens done so far and may return
  // false to stop: then the cache holds what was done and the result is empty.
  // Throws Error(usage) when the context cannot hold them or an id is not in the vocabulary, Error(numeric) for NaN.
  using Progress = std::function<bool(int64_t n_done)>;
  std::span<const float> append(std::span<const int32_t> tokens, const Progress& progress = nullptr);

  // As append, but hands out the logits of every token: fn(first, logits [n, n_vocab]) for runs of n tokens from
  // index `first`. Needs options.all_logits.
  using LogitsFn = std::function<void(int64_t first, int64_t n, std::span<const float> logits)>;
  void evaluate(std::span<const int32_t> tokens, const LogitsFn& fn);

  // Forgets the tokens from position n on.
  void truncate(int64_t n);

  // What is cached for the tokens, for saving it: positions 0 .. n_past() - 1 of a layer, as rows of the cache's dtype
  // [n_past, n_head_kv, head_dim].
  const KvConfig& kv_config() const { return cache_->config(); }
  void read_kv(size_t layer, KvHalf half, std::byte* rows) const;
  // Replaces what this session holds by tokens whose cache rows() gives, laid out as read_kv does; it is asked for every
  // layer's keys, then values. When it throws, the session is left empty.
  using KvRows = std::function<std::span<const std::byte>(size_t layer, KvHalf half)>;
  void restore(std::span<const int32_t> tokens, const KvRows& rows);

  // Bytes taken, for reports.
  size_t kv_bytes() const { return cache_->n_bytes(); }
  size_t arena_bytes() const;
  const Executor& executor() const { return *executor_; }
  const Fit& placement() const { return fit_; }

 private:
  void place(const Explain& before_allocation);
  SessionShape shape() const;
  void build();
  void build_down_the_ladder();
  bool step_down(const std::string& reason);
  bool recover(const Error& error);
  std::span<const float> step(Program& program, std::span<const int32_t> tokens, int64_t n_outputs);
  void check_tokens(std::span<const int32_t> tokens) const;
  const KvLayer& kv_layer(size_t layer) const;
  Device& kv_device(size_t layer) const;
  void check_finite(std::span<const float> logits, int64_t n_rows) const;

  const Model& model_;
  std::vector<Device*> devices_;
  SessionOptions options_;
  Fit fit_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<KvSequence> sequence_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Program> decode_;   // one token
  std::unique_ptr<Program> prefill_;  // up to n_ubatch tokens
  std::vector<int32_t> tokens_;

  // Step inputs, sized once.
  std::vector<int32_t> positions_, sequences_, slots_, outputs_, block_table_;
};

}  // namespace tandem
