// Session: one conversation with a model: a runtime, one sequence of its cache, and its tokens. Takes
// tokens and returns logits; the caller chooses the next token (see generate.h).
//
// If memory runs out, at construction or later, it continues with less: see EngineOptions::oom_ladder.
//
// A session belongs to one thread. Model and devices outlive it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/kept_cache.h"
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
  int64_t n_deferred() const { return runtime_.n_deferred(); }
  std::span<const int32_t> tokens() const { return tokens_; }
  // Tokens in the cache: all, unless a model with recurrent layers was cut back to where it has no state. The
  // others are computed again with the next tokens.
  int64_t n_cached() const { return sequence_.length(); }
  // Whether a text can only be cut back to where the cache has a state.
  bool is_recurrent() const { return runtime_.is_recurrent(); }
  int64_t n_past() const { return static_cast<int64_t>(tokens_.size()); }

  // Adds tokens (at least one) and returns the logits [n_vocab] after the last; they stay valid until the
  // next call. `progress`, when given, is called after every micro-batch with the number of tokens done so
  // far and may return false to stop: then the cache holds what was done and the result is empty. Throws
  // Error(usage) when the context cannot hold them or an id is not in the vocabulary, Error(numeric) for
  // NaN.
  using Progress = std::function<bool(int64_t n_done)>;
  std::span<const float> append(std::span<const int32_t> tokens, const Progress& progress = nullptr);
  // The same for those who may do with the largest logits.
  TokenLogits append(std::span<const int32_t> tokens, LogitsWanted wanted,
                     const Progress& progress = nullptr);

  // As append, for the session of an MTP model: each token comes with what the model made of the token before it,
  // hidden [n, n_embd].
  std::span<const float> append(std::span<const int32_t> tokens, std::span<const float> hidden);
  // What this session's model made of the last token, [n_embd], until the next call that adds some. Needs
  // options.context.keeps_hidden.
  std::span<const float> hidden() const;
  // Calls fn after every step with the position of its first token, its tokens, and what the model made of them,
  // [n, n_embd]. What fn throws, append() throws, with the tokens added. Needs options.context.keeps_hidden.
  using HiddenFn =
      std::function<void(int64_t first, std::span<const int32_t> tokens, std::span<const float> hidden)>;
  void on_hidden(HiddenFn fn) { on_hidden_ = std::move(fn); }

  // As append, in one step and for at most max_checked() tokens, and returns the logits [n, n_vocab] after each of
  // them.
  std::span<const float> append_all(std::span<const int32_t> tokens);
  StepLogits append_all(std::span<const int32_t> tokens, LogitsWanted wanted);
  // That append_all() takes next. Needs options.context.n_draft; 0 without.
  int64_t max_checked() const;

  // As append, but hands out the logits of every token: fn(first, logits [n, n_vocab]) for runs of n tokens
  // from index `first`. Needs options.context.all_logits.
  using LogitsFn = std::function<void(int64_t first, int64_t n, std::span<const float> logits)>;
  void evaluate(std::span<const int32_t> tokens, const LogitsFn& fn);

  // Drops the tokens from position n on. With recurrent layers, those between the newest checkpoint and n are
  // computed again with the next tokens.
  void truncate(int64_t n);

  // Drops n_drop tokens after the first n_keep, and moves the cache of those behind them to its new positions, so that they
  // need not be computed again (engine/moved_keys.h). Returns false, and changes nothing, where that is not possible.
  bool shift(int64_t n_keep, int64_t n_drop);
  // Tokens of the beginning whose cache is what they themselves give: all until a shift.
  int64_t n_exact() const { return std::min(n_exact_, n_cached()); }

  // The cache, for saving it: positions 0 .. n_cached() - 1 of a layer, as rows of the layer's dtypes
  // [n_cached, n_head_kv, head_dim]; of a recurrent layer, one row for each of state_positions().
  const KvConfig& kv_config() const { return runtime_.kv_config(); }
  std::vector<int64_t> state_positions() const;
  void read_kv(size_t layer, KvHalf half, std::byte* rows) const;
  // What a session was saved with.
  struct SavedCache {
    int64_t n_cached = 0;
    std::vector<int64_t> state_positions;
    // The first n rows, laid out as by read_kv: first the keys, then the values of each layer.
    std::function<std::span<const std::byte>(size_t layer, KvHalf half, int64_t n)> rows;
    int64_t n_exact = INT64_MAX;  // as n_exact() was
  };
  // Replaces the session's content by these tokens and the saved cache of as many of them as it has. If it
  // throws, the session is empty.
  void restore(std::span<const int32_t> tokens, const SavedCache& cache);

  // From now on, keeps what it computes in this store, which outlives the session.
  void keep_in(BlockStore& store);
  // Extends the session by what is kept of these tokens, of which it has the first n_past() already. At least the last one
  // is left to append. Returns n_past(). Without a store, does nothing.
  int64_t load_kept(std::span<const int32_t> tokens);
  // Hands what it has computed to the store, up to what was moved. May wait for the disk, so it is for the end of a text.
  void keep();

  // Bytes taken, for reports.
  size_t kv_bytes() const { return runtime_.kv_bytes(); }
  size_t arena_bytes() const { return runtime_.arena_bytes(); }
  const Executor& executor() const { return runtime_.executor(); }
  ExpertCounts expert_counts() const { return runtime_.expert_counts(); }
  const Fit& placement() const { return runtime_.placement(); }
  std::string generic_kernels() const { return runtime_.generic_kernels(); }

 private:
  void check_tokens(std::span<const int32_t> tokens) const;
  int64_t step_size(int64_t n_left, int64_t n_most) const;
  std::vector<int32_t> with_missing(std::span<const int32_t> tokens) const;
  void restore_states(const SavedCache& cache);
  void hand_out_hidden(const BatchSlice& slice) const;

  Runtime runtime_;
  KvSequence sequence_;
  std::vector<int32_t> tokens_;
  int64_t n_exact_ = INT64_MAX;      // INT64_MAX: all, as nothing was moved
  std::unique_ptr<KeptCache> kept_;  // null: nothing is kept
  HiddenFn on_hidden_;
};

}  // namespace tandem
