#include "engine/batcher.h"

#include <algorithm>

#include "base/checked.h"
#include "base/setting.h"
#include "engine/generate.h"

namespace tandem {
namespace {

// Room that is kept for what a text will generate next, in tokens: with less, texts would be begun only to
// be thrown out again; with room for all that they may generate, few would be begun.
constexpr int64_t kHeadroom = 64;

// Where the first of the stop texts begins that ends behind `from`.
size_t find_stop(const std::string& text, size_t from, const std::vector<std::string>& stops) {
  size_t first = std::string::npos;
  for (const std::string& s : stops) {
    if (s.empty()) continue;
    first = std::min(first, text.find(s, from >= s.size() ? from - s.size() + 1 : 0));
  }
  return first;
}

}  // namespace

// A request on its way.
struct Batcher::Text {
  Text(BatchRequest r, int64_t n, Runtime& runtime, SamplerModel sampler_model)
      : request(std::move(r)),
        age(n),
        sampler(request.sampling, std::move(sampler_model)),
        continuation(runtime.model().vocab(), sampler, request.generation, request.prompt),
        tokens(request.prompt),
        sequence(runtime.new_sequence(Runtime::Sequences::several)) {
    for (int32_t id : request.prompt) sampler.accept_prompt(id);
    if (request.generation.n_logprobs >= 0) logprobs.emplace();
  }

  int64_t n_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t n_computed() const { return sequence.length(); }
  int64_t n_missing() const { return n_tokens() - n_computed(); }  // at least one
  std::span<const int32_t> tokens_at(int64_t first, int64_t n) const {
    return std::span(tokens).subspan(first, n);
  }

  // Gives its room back.
  void forget() {
    sequence.truncate(0);
    beginning = PrefixCache::kEmpty;
    n_published = 0;
    asks_store = true;
  }

  BatchRequest request;
  int64_t age;
  Sampler sampler;
  Continuation continuation;
  std::vector<int32_t> tokens;  // the prompt and what was chosen
  std::string text;
  std::optional<std::vector<TokenLogprobs>> logprobs;  // if the request asks for them
  KvSequence sequence;
  PrefixCache::Beginning beginning = PrefixCache::kEmpty;  // its first n_published blocks
  int64_t n_published = 0;
  int64_t parting = 0;      // where another text that begins alike may go on from the state
  int64_t n_reused = 0;     // tokens of the prompt that were found computed
  int64_t n_recompute = 0;  // tokens that were computed before it made room
  bool asks_store = true;   // for what follows its beginning, which it does once
  bool ended = false;
};

Batcher::Batcher(Runtime& runtime, int64_t n_parallel, BlockStore* store)
    : runtime_(runtime),
      block_size_(runtime.kv_config().block_size),
      n_parallel_(std::min(n_parallel, runtime.n_sequences())),
      prefixes_(runtime.pool(), runtime.state_slots(),
                runtime.kv_config().n_state_slots - 2 * runtime.n_sequences()) {
  if (runtime.placement().placement.splits_caches()) {
    throw_error(ErrorCode::usage, "a split KV cache ({}) has one sequence, and a batch has several",
                setting_text(Setting::kv_split));
  }
  if (store && shares_beginnings()) kept_ = std::make_unique<KeptCache>(*store, runtime);
}

Batcher::~Batcher() = default;

void Batcher::add(BatchRequest request) {
  TANDEM_CHECK(!request.prompt.empty() &&
               static_cast<int64_t>(request.prompt.size()) <= runtime_.n_ctx_sequence());
  runtime_.check_vocabulary(request.prompt);
  SamplerModel model = sampler_model(runtime_.model(), runtime_.n_ctx_sequence());
  if (request.sampling.grammar) {
    if (!trie_) trie_ = make_token_trie(model);
    model.trie = trie_;
  }
  waiting_.push_back(std::make_unique<Text>(std::move(request), n_added_++, runtime_, std::move(model)));
}

// Whether there are blocks for all that is missing of the running texts and this one, and for what they
// generate next.
bool Batcher::would_fit(const Text& text) const {
  if (running_.empty()) return true;
  const auto blocks_soon = [&](const Text& t) {
    const int64_t n_more = t.request.generation.n_predict < 0
                               ? kHeadroom
                               : t.request.generation.n_predict - t.continuation.n_generated();
    const int64_t n = std::min(t.n_tokens() + std::min(n_more, kHeadroom), runtime_.n_ctx_sequence());
    return ceil_div(n, block_size_) - static_cast<int64_t>(t.sequence.blocks().size());
  };
  int64_t n_needed = blocks_soon(text);
  for (const auto& t : running_) n_needed += blocks_soon(*t);
  const int64_t n_free = runtime_.pool().n_free();
  return n_needed <= n_free || n_needed <= n_free + prefixes_.n_unused();
}

void Batcher::admit(const Done& done) {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < n_parallel_) {
    Text& text = *waiting_.front();
    if (const auto reason = text.continuation.ended()) {  // nothing was to be generated
      finish(text, *reason, done);
      waiting_.pop_front();
      continue;
    }
    const int64_t n_reused = text.n_reused;
    share_beginning(text);
    if (!would_fit(text)) {
      text.forget();
      text.n_reused = n_reused;
      return;
    }
    const auto place =
        std::find_if(running_.begin(), running_.end(), [&](const auto& t) { return t->age > text.age; });
    running_.insert(place, std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// With recurrent layers, states must be kept for it.
bool Batcher::shares_beginnings() const {
  return !runtime_.is_recurrent() || runtime_.kv_config().n_state_slots > 2 * runtime_.n_sequences();
}

// Goes on with blocks that others have computed; with recurrent layers, as far as a state was kept. The last token
// is left to compute, for its logits.
void Batcher::share_beginning(Text& text) {
  const int64_t at = text.n_computed();
  if (!shares_beginnings() || at != text.n_published * block_size_) return;
  std::vector<int32_t> blocks;
  size_t n_shared = 0;
  PrefixCache::Found last{text.beginning, 0, {}};
  for (PrefixCache::Beginning end = text.beginning;;) {
    const int64_t next = at + static_cast<int64_t>(blocks.size()) * block_size_;
    text.parting = next;
    if (text.n_tokens() - next <= block_size_) break;
    const auto found = prefixes_.find(end, text.tokens_at(next, block_size_));
    if (!found) break;
    end = found->beginning;
    blocks.push_back(found->block);
    if (runtime_.is_recurrent() && !found->state) continue;
    last = *found;
    n_shared = blocks.size();
  }
  if (n_shared == 0) return;
  text.sequence.append_shared(std::span(blocks).first(n_shared), last.state);
  text.beginning = last.beginning;
  text.n_published += static_cast<int64_t>(n_shared);
  if (text.n_recompute == 0) text.n_reused += text.n_computed() - at;
  keep_beginning(text);
}

// Goes on with blocks that another run has kept, if there is room for them.
void Batcher::load_beginning(Text& text) {
  if (!kept_ || !text.asks_store) return;
  text.asks_store = false;
  const int64_t at = text.n_computed();
  if (at != text.n_published * block_size_) return;
  const int64_t n = kept_->loadable(text.sequence, text.tokens);
  if (n == 0 || !prefixes_.make_free(n_planned_blocks_ + (n - at) / block_size_)) return;
  kept_->load(text.sequence, text.tokens);
  const int64_t n_loaded = text.n_computed() - at;
  if (n_loaded == 0) return;
  publish(text);
  publish_state(text);
  kept_beginnings_.insert(text.beginning);
  if (text.n_recompute > 0) return;
  text.n_reused += n_loaded;
  stats_.n_loaded += n_loaded;
}

// Keeps a beginning that two texts had in common.
void Batcher::keep_beginning(const Text& text) {
  if (!kept_ || !kept_beginnings_.insert(text.beginning).second) return;
  kept_->keep(text.sequence, text.tokens, KeptCache::WhenBusy::leave_out);
}

// Tokens of the whole blocks with which both texts begin, and which either could leave to the other.
int64_t Batcher::n_common(const Text& a, const Text& b) const {
  const auto n = static_cast<size_t>(std::min(a.n_tokens(), b.n_tokens()) - 1);
  const auto end =
      std::mismatch(a.tokens.begin(), a.tokens.begin() + static_cast<int64_t>(n), b.tokens.begin());
  return (end.first - a.tokens.begin()) / block_size_ * block_size_;
}

// How many of the next n tokens to compute, so that the state is kept from which another text can go on. Only with
// recurrent layers; without them a text can go on from any block.
int64_t Batcher::n_until_others_part(Text& text, int64_t n) {
  if (!runtime_.is_recurrent() || !shares_beginnings()) return n;
  const int64_t at = text.n_computed();
  int64_t parting = text.parting > at ? text.parting : INT64_MAX;
  for (const Texts* texts : {&running_, &waiting_}) {
    for (const auto& other : *texts) {
      if (other.get() == &text) continue;
      const int64_t common = n_common(text, *other);
      if (common > at && common > other->n_computed()) parting = std::min(parting, common);
    }
  }
  text.parting = parting == INT64_MAX ? 0 : parting;
  return std::min(n, parting - at);
}

// Whether an older text computes in this step what this one needs next.
bool Batcher::waits_for_a_beginning(const Text& text) const {
  if (!shares_beginnings()) return false;
  const int64_t at = text.n_computed();
  if (runtime_.is_recurrent()) {
    return std::any_of(of_part_.begin(), of_part_.end(), [&](const Text* other) {
      const int64_t common = n_common(text, *other);
      return common > at && common > other->n_computed();
    });
  }
  if (at != text.n_published * block_size_ || text.n_missing() <= block_size_) return false;
  const auto next = text.tokens_at(at, block_size_);
  return std::any_of(of_part_.begin(), of_part_.end(), [&](const Text* other) {
    return other->beginning == text.beginning && other->n_tokens() >= at + block_size_ &&
           std::ranges::equal(other->tokens_at(at, block_size_), next);
  });
}

// Shares the text's full blocks; where another text has shared the same block already, that one replaces
// its own.
void Batcher::publish(Text& text) {
  if (!shares_beginnings()) return;
  while ((text.n_published + 1) * block_size_ <= text.n_computed()) {
    const auto tokens = text.tokens_at(text.n_published * block_size_, block_size_);
    const auto i = static_cast<size_t>(text.n_published++);
    if (const auto known = prefixes_.find(text.beginning, tokens)) {
      text.sequence.replace(i, known->block);
      text.beginning = known->beginning;
    } else {
      text.beginning = prefixes_.add(text.beginning, tokens, text.sequence.blocks()[i]);
    }
  }
}

// Shares the text's state, if it is one after whole blocks.
void Batcher::publish_state(Text& text) {
  if (!runtime_.is_recurrent() || !shares_beginnings()) return;
  const int64_t at = text.n_computed();
  if (at == 0 || at != text.n_published * block_size_) return;
  prefixes_.add_state(text.beginning, text.sequence.states().back().slot, at == text.parting);
}

// Blocks for n more tokens of a running text: unused ones first, then those of texts that are newer. False
// when it is itself the newest.
bool Batcher::make_room(const Text& text, int64_t n_tokens) {
  const int64_t n_blocks = ceil_div(text.n_computed() + n_tokens, block_size_) -
                           static_cast<int64_t>(text.sequence.blocks().size());
  while (!prefixes_.make_free(n_planned_blocks_ + n_blocks)) {
    if (running_.back().get() == &text) return false;
    preempt_newest();
  }
  n_planned_blocks_ += n_blocks;
  return true;
}

void Batcher::preempt_newest() {
  Text& text = *running_.back();
  text.n_recompute = std::max(text.n_recompute, text.n_computed());
  text.forget();
  ++stats_.n_preempted;
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
}

// The parts of the next step, the oldest text first. Each that is being generated has its token; what the
// micro-batch has room for beside them is for prompts.
void Batcher::plan_step() {
  slices_.clear();
  of_part_.clear();
  n_planned_blocks_ = 0;
  const auto n_generating =
      std::count_if(running_.begin(), running_.end(), [](const auto& t) { return t->n_missing() == 1; });
  int64_t room = runtime_.n_ubatch() - n_generating;
  for (size_t i = 0; i < running_.size(); ++i) {
    Text& text = *running_[i];
    int64_t n = 1;
    if (text.n_missing() > 1) {
      share_beginning(text);
      load_beginning(text);
      n = std::min(room, text.n_missing());
      if (n <= 0 || waits_for_a_beginning(text)) continue;
      n = n_until_others_part(text, n);
      room -= n;
    }
    if (!make_room(text, n)) {
      TANDEM_CHECK(i > 0);  // the cache holds one text of any length
      preempt_newest();
      return;
    }
    slices_.push_back({&text.sequence, text.tokens_at(text.n_computed(), n), n == text.n_missing() ? 1 : 0});
    of_part_.push_back(&text);
  }
}

void Batcher::step(const Done& done) {
  admit(done);
  plan_step();
  if (slices_.empty()) return;
  std::vector<int64_t> before;
  for (const Text* text : of_part_) before.push_back(text->n_computed());
  const auto logits = runtime_.step(slices_, wanted());
  if (!logits) return;  // nothing has happened; the next one will be smaller
  ++stats_.n_steps;
  for (size_t i = 0; i < of_part_.size(); ++i) {
    stats_.n_recomputed +=
        std::clamp<int64_t>(of_part_[i]->n_recompute - before[i], 0, of_part_[i]->n_computed() - before[i]);
    publish(*of_part_[i]);
    publish_state(*of_part_[i]);
  }
  take_logits(*logits, done);
}

// All logits if one text needs all.
LogitsWanted Batcher::wanted() const {
  const bool all = std::any_of(of_part_.begin(), of_part_.end(), [](const Text* text) {
    return text->continuation.wanted() == LogitsWanted::all;
  });
  return all ? LogitsWanted::all : LogitsWanted::largest;
}

void Batcher::take_logits(const StepLogits& logits, const Done& done) {
  size_t row = 0;
  for (size_t i = 0; i < of_part_.size(); ++i) {
    if (slices_[i].n_outputs > 0) choose(*of_part_[i], logits.row(row++), done);
  }
  std::erase_if(running_, [](const auto& t) { return t->ended; });
}

// The next token of a text; what goes wrong there ends this text only.
void Batcher::choose(Text& text, const TokenLogits& logits, const Done& done) {
  std::optional<StopReason> end;
  try {
    runtime_.check_finite(logits, text.n_computed() - 1);
    Continuation::Choice next = text.continuation.choose(logits);
    if (next.logprobs) text.logprobs->push_back(std::move(*next.logprobs));
    ++stats_.n_generated;
    const size_t had = text.text.size();
    text.text += next.text;
    if (next.end == StopReason::stop_text)
      text.text.resize(find_stop(text.text, had, text.request.generation.stop));
    text.tokens.push_back(next.id);
    end = next.end;
    if (!end && text.n_tokens() > runtime_.n_ctx_sequence()) end = StopReason::context_full;
  } catch (const Error& e) {
    text.ended = true;
    BatchAnswer answer;
    answer.index = text.request.index;
    answer.error = e;
    return done(std::move(answer));
  }
  if (end) finish(text, *end, done);
}

void Batcher::finish(Text& text, StopReason reason, const Done& done) {
  text.ended = true;
  if (reason != StopReason::stop_text) text.text += text.continuation.finish();
  stats_.n_prompt += static_cast<int64_t>(text.request.prompt.size());
  stats_.n_reused += text.n_reused;
  done({text.request.index, std::move(text.text), reason, static_cast<int64_t>(text.request.prompt.size()),
        text.continuation.n_generated(), std::nullopt, std::move(text.logprobs)});
}

}  // namespace tandem
