// PieceBuilder: makes the pieces that the C library hands out, and owns what they point to.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "capi/tandem.h"
#include "engine/continuation.h"

namespace tandem::capi {

tandem_stop stop_of(StopReason reason);

class PieceBuilder {
 public:
  explicit PieceBuilder(const Vocab& vocab) : vocab_(vocab) {}

  // A token of the next piece.
  void add(const Continuation::Choice& choice);
  // The piece with the tokens added since the one before; valid until the next call of any member.
  const tandem_piece& build(std::string_view text, tandem_part part, tandem_stop stop);
  bool has_tokens() const { return !is_built_ && !held_.empty(); }
  void clear();

 private:
  struct Held {
    std::deque<std::string> texts;  // of the token and its alternatives
    std::vector<tandem_token> top;
    tandem_token token{};
  };
  tandem_token make(Held& held, int32_t id, float logprob);

  const Vocab& vocab_;
  std::deque<Held> held_;
  std::vector<tandem_token> tokens_;
  std::string text_;
  tandem_piece piece_{};
  bool is_built_ = false;  // held_ belongs to the last piece
};

}  // namespace tandem::capi
