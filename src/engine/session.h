// Session: one conversation with a model: a runtime, one sequence of its cache, and its tokens. Takes
// tokens and returns logits; the caller chooses the next token (see generate.h).
//
// If memory runs out, at construction or later, it continues with less: see EngineOptions::oom_ladder.
//
// A session belongs to one thread. Model and devices outlive it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/runtime.h"

namespace tandem {

class Session {
 public:
  // One sequence. devices[0] works on host memory. Allocates everything it will need. Throws
  // Error(usage | out_of_memory). Calls `before_allocation`, if given, with the table of the placement.
  using Explain = Runtime::Explain;
  Session(const Model& model, std::vector<Device*> devices, const EngineOptions& options,
          const Explain& before_allocation = nullptr);

  const Model& model() const { return runtime_.model(); }
  int64_t n_ctx() const { return runtime_.n_ctx(); }
  int64_t n_ubatch() const { return runtime_.n_ubatch(); }
  std::span<const int32_t> tokens() const { return tokens_; }  // those in the cache
  int64_t n_past() const { return static_cast<int64_t>(tokens_.size()); }

  // Adds tokens (at least one) and returns the logits [n_vocab] after the last; they stay valid until the
  // next call. `progress`, when given, is called after every micro-batch with the number of tokens done so
  // far and may return false to stop: then the cache holds what was done and the result is empty. Throws
  // Error(usage) when the context cannot hold them or an id is not in the vocabulary, Error(numeric) for
  // NaN.
  using Progress = std::function<bool(int64_t n_done)>;
  std::span<const float> append(std::span<const int32_t> tokens, const Progress& progress = nullptr);

  // As append, but hands out the logits of every token: fn(first, logits [n, n_vocab]) for runs of n tokens
  // from index `first`. Needs options.context.all_logits.
  using LogitsFn = std::function<void(int64_t first, int64_t n, std::span<const float> logits)>;
  void evaluate(std::span<const int32_t> tokens, const LogitsFn& fn);

  // Drops the tokens from position n on.
  void truncate(int64_t n);

  // The cache, for saving it: positions 0 .. n_past() - 1 of a layer, as rows of the cache's dtype
  // [n_past, n_head_kv, head_dim].
  const KvConfig& kv_config() const { return runtime_.kv_config(); }
  void read_kv(size_t layer, KvHalf half, std::byte* rows) const;
  // Replaces the session's content by these tokens and the cache that rows() returns, laid out as by
  // read_kv: first the keys, then the values of each layer. If it throws, the session is empty.
  using KvRows = std::function<std::span<const std::byte>(size_t layer, KvHalf half)>;
  void restore(std::span<const int32_t> tokens, const KvRows& rows);

  // Bytes taken, for reports.
  size_t kv_bytes() const { return runtime_.kv_bytes(); }
  size_t arena_bytes() const { return runtime_.arena_bytes(); }
  const Executor& executor() const { return runtime_.executor(); }
  const Fit& placement() const { return runtime_.placement(); }
  std::string generic_kernels() const { return runtime_.generic_kernels(); }

 private:
  void check_tokens(std::span<const int32_t> tokens) const;

  Runtime runtime_;
  KvSequence sequence_;
  std::vector<int32_t> tokens_;
};

}  // namespace tandem
