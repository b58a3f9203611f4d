// DRY, "don't repeat yourself": penalizes every token that would continue a sequence already in the history,
// growing exponentially with the length of the repeat. Sequence breakers are matched in the text, so they are
// found however the text is cut into tokens.
// Holds the last tokens of one sequence. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sample/candidates.h"
#include "sample/params.h"

namespace tandem {

// Returns the text of a token, special tokens included.
using TokenPiece = std::function<std::string(int32_t)>;

class Dry {
 public:
  // `n_ctx`: the window that -1 stands for. `piece` is called only when DRY is active and there are sequence
  // breakers, for accepted and repeated tokens. Tokens are in [0, n_vocab).
  Dry(const SamplerParams& params, int32_t n_vocab, int32_t n_ctx, TokenPiece piece);

  bool active() const { return window_size_ > 0; }
  void accept(int32_t token);
  void apply(Candidates& candidates);
  void reset();

 private:
  bool ends_breaker(const std::string& before, const std::string& text) const;
  void find_repeats(size_t n);
  void collect_penalties(size_t n, size_t max_repeat);
  float penalty(int32_t repeat) const;

  float multiplier_, base_;
  int32_t allowed_length_;
  std::vector<std::string> breakers_;
  TokenPiece piece_;
  size_t window_size_ = 0;

  std::vector<int32_t> history_;  // newest token last; trimmed to window_size_ now and then
  std::string tail_;              // text before the next token, as long as a breaker can reach back
  size_t tail_bytes_ = 0;
  size_t since_breaker_ = 0;  // tokens after the one that ended the last breaker

  std::vector<int32_t> match_;      // [n], match_[i]: length of the repeat at i, reading history backwards
  std::vector<int32_t> repeat_of_;  // [n_vocab], length of the repeat that a token continues, or -1
  std::vector<int32_t> touched_;    // tokens with an entry in repeat_of_
};

}  // namespace tandem
