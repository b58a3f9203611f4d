#include "capi/piece.h"

#include <cmath>

namespace tandem::capi {

tandem_stop stop_of(StopReason reason) {
  switch (reason) {
    case StopReason::end_of_generation: return TANDEM_STOP_END;
    case StopReason::limit: return TANDEM_STOP_LIMIT;
    case StopReason::context_full: return TANDEM_STOP_CONTEXT_FULL;
    case StopReason::stop_text: return TANDEM_STOP_TEXT;
    case StopReason::interrupted: break;
  }
  return TANDEM_STOP_INTERRUPTED;
}

tandem_token PieceBuilder::make(Held& held, int32_t id, float logprob) {
  held.texts.push_back(vocab_.has(id) ? vocab_.token_to_piece(id, SpecialText::shown) : "");
  return {id, logprob, held.texts.back().c_str(), held.texts.back().size(), nullptr, 0};
}

void PieceBuilder::add(const Continuation::Choice& choice) {
  if (is_built_) clear();
  Held& held = held_.emplace_back();
  held.token = make(held, choice.id, choice.logprobs ? choice.logprobs->chosen.logprob : std::nanf(""));
  if (!choice.logprobs) return;
  for (const TokenLogprob& t : choice.logprobs->top) held.top.push_back(make(held, t.id, t.logprob));
  held.token.top = held.top.data();
  held.token.n_top = held.top.size();
}

const tandem_piece& PieceBuilder::build(std::string_view text, tandem_part part, tandem_stop stop) {
  if (is_built_) clear();
  text_ = text;
  for (const Held& held : held_) tokens_.push_back(held.token);
  piece_ = {text_.c_str(), text_.size(), part, stop, tokens_.data(), tokens_.size()};
  is_built_ = true;
  return piece_;
}

void PieceBuilder::clear() {
  held_.clear();
  tokens_.clear();
  text_.clear();
  is_built_ = false;
}

}  // namespace tandem::capi
