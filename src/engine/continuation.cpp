#include "engine/continuation.h"

#include <algorithm>

#include "graph/top_k.h"

namespace tandem {

Continuation::Continuation(const Vocab& vocab, Sampler& sampler, const GenerateOptions& options,
                           std::span<const int32_t> prompt)
    : vocab_(vocab), sampler_(sampler), options_(options), detokenizer_(vocab, options.special) {
  for (int32_t id : prompt) detokenizer_.add(id);
  for (const std::string& s : options_.stop) longest_stop_ = std::max(longest_stop_, s.size());
}

std::optional<StopReason> Continuation::ended() const {
  if (options_.n_predict >= 0 && n_generated_ >= options_.n_predict) return StopReason::limit;
  if (sampler_.is_finished()) return StopReason::end_of_generation;
  return std::nullopt;
}

LogitsWanted Continuation::wanted() const {
  const size_t n = sampler_.n_largest();
  const bool few_suffice = n > 0 && n <= static_cast<size_t>(kMaxTopK) && options_.n_logprobs < 0;
  return few_suffice ? LogitsWanted::largest : LogitsWanted::all;
}

Continuation::Choice Continuation::choose(const TokenLogits& logits) {
  Choice choice;
  choice.id = sampler_.sample(logits);
  if (options_.n_logprobs >= 0) choice.logprobs = logprobs_of(logits.all(), choice.id, options_.n_logprobs);
  sampler_.accept(choice.id);
  ++n_generated_;
  if (vocab_.is_eog(choice.id)) {
    choice.end = StopReason::end_of_generation;
    choice.in_text = false;
    return choice;
  }
  choice.text = detokenizer_.add(choice.id);
  if (stops_with(choice.text)) {
    choice.end = StopReason::stop_text;
  } else if (sampler_.is_finished()) {
    choice.end = StopReason::end_of_generation;
  } else {
    choice.end = ended();  // the last token's logits would not be used
  }
  return choice;
}

// Whether the text so far, with `piece` added, has one of the stop texts in its new part.
bool Continuation::stops_with(std::string_view piece) {
  if (longest_stop_ == 0) return false;
  tail_ += piece;
  const bool found = std::any_of(options_.stop.begin(), options_.stop.end(), [&](const std::string& s) {
    return !s.empty() && tail_.find(s) != std::string::npos;
  });
  if (tail_.size() >= longest_stop_) tail_.erase(0, tail_.size() - (longest_stop_ - 1));
  return found;
}

}  // namespace tandem
