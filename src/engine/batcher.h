// Batcher: many prompts at once over one paged KV cache. Every step takes the next token of each text that is
// being generated and fills the rest of the micro-batch with tokens of prompts, so texts begin and end at any
// step and the weights are read once for all of them.
//
// Beginnings that prompts have in common are computed once (see PrefixCache). When the cache is full, what
// came last makes room and is computed again later; nothing of it is lost. The cache must have room for one
// text of the longest kind, no more.
//
// A batcher belongs to one thread; the runtime outlives it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/continuation.h"
#include "engine/kept_cache.h"
#include "engine/runtime.h"
#include "kv/prefix_cache.h"

namespace tandem {

struct BatchRequest {
  int64_t index = 0;            // the caller's name for it
  std::vector<int32_t> prompt;  // 1 .. n_ctx_sequence tokens
  SamplerParams sampling;
  GenerateOptions generation;  // without context shift
};

struct BatchAnswer {
  int64_t index = 0;
  std::string text;  // the stop text that ended it is taken off
  StopReason reason = StopReason::limit;
  int64_t n_prompt = 0, n_generated = 0;
  std::optional<Error> error;                          // what ended this one alone
  std::optional<std::vector<TokenLogprobs>> logprobs;  // of each generated token, if the request asks
};

struct BatchStats {
  int64_t n_prompt = 0;  // tokens of the prompts of the texts that are done
  int64_t n_reused = 0;  // of those, found computed or kept
  int64_t n_loaded = 0;  // of those, kept by another run
  int64_t n_generated = 0;
  int64_t n_preempted = 0;   // texts that made room
  int64_t n_recomputed = 0;  // tokens of those that were computed again
  int64_t n_steps = 0;
};

class Batcher {
 public:
  // As many texts at once as the runtime takes, or fewer. Throws Error(usage) for a split cache. `store`: where beginnings
  // are kept that texts have in common, and loaded from; null: nowhere.
  explicit Batcher(Runtime& runtime, int64_t n_parallel = INT64_MAX, BlockStore* store = nullptr);
  ~Batcher();

  // Whether another request would get a place right away; more may be added all the same.
  bool has_room() const { return n_room() > 0; }
  int64_t n_room() const { return n_parallel_ - n_open(); }  // less than 0 if more were added
  int64_t n_open() const { return static_cast<int64_t>(running_.size() + waiting_.size()); }
  // Throws Error(usage) for a sampling that cannot be.
  void add(BatchRequest request);

  // One step of what is open; `done` is called for each that it ends. Throws what Runtime::step throws; what
  // goes wrong with one text alone is in its answer.
  using Done = std::function<void(BatchAnswer answer)>;
  void step(const Done& done);

  const BatchStats& stats() const { return stats_; }

 private:
  struct Text;
  using Texts = std::deque<std::unique_ptr<Text>>;  // by age, the oldest first

  bool would_fit(const Text& text) const;
  void admit(const Done& done);
  void plan_step();
  bool make_room(const Text& text, int64_t n_tokens);
  void preempt_newest();
  bool shares_beginnings() const;
  void share_beginning(Text& text);
  void load_beginning(Text& text);
  void keep_beginning(const Text& text);
  int64_t n_common(const Text& a, const Text& b) const;
  bool waits_for_a_beginning(const Text& text) const;
  int64_t n_until_others_part(Text& text, int64_t n);
  void publish(Text& text);
  void publish_state(Text& text);
  LogitsWanted wanted() const;
  void take_logits(const StepLogits& logits, const Done& done);
  void choose(Text& text, const TokenLogits& logits, const Done& done);
  void finish(Text& text, StopReason reason, const Done& done);

  Runtime& runtime_;
  int64_t block_size_, n_parallel_;
  PrefixCache prefixes_;
  std::unique_ptr<KeptCache> kept_;                             // null: nothing is kept
  std::unordered_set<PrefixCache::Beginning> kept_beginnings_;  // handed to it
  Texts running_, waiting_;
  std::vector<BatchSlice> slices_;
  std::vector<Text*> of_part_;
  int64_t n_planned_blocks_ = 0;
  std::shared_ptr<const TokenTrie> trie_;  // for grammars, once there is one
  int64_t n_added_ = 0;
  BatchStats stats_;
};

}  // namespace tandem
