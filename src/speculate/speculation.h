// Speculation: guesses for one text after the other, an account of what they brought, and the choice of how many a step
// checks. Generation (engine/generate.h) lets a step compute the logits of the last token and of these guesses, and
// chooses its tokens from them by the same sampler as without guesses; the first token that is not the guess ends the
// step's use. So the text is the one that it would be without speculation: the same distribution, and with the same seed the
// same tokens, but for near-ties: a step of several tokens rounds differently from steps of one.
//
// One thread. It may serve several texts, one after the other, and keeps what it has learned.
#pragma once

#include <memory>
#include <vector>

#include "speculate/draft_policy.h"

namespace tandem {

struct SpeculationStats {
  int64_t n_checked = 0, n_right = 0;  // guesses
  double lost_seconds = 0;             // against steps without guesses; negative: gained
};

class Speculation {
 public:
  // How many guesses a step checks: as many as make the text faster, or as many as there are, whatever they cost.
  enum class Checks { what_pays, all };
  // n_max: guesses of a step at most.
  Speculation(std::unique_ptr<Drafter> drafter, int64_t n_max, Checks checks = Checks::what_pays);

  // Guesses of what follows `tokens` and then `last`, for the next step to check: at most n_most. Valid until the next
  // call.
  std::span<const int32_t> guess(std::span<const int32_t> tokens, int32_t last, int64_t n_most,
                                 const DraftPolicy::Step& step);
  // The step with the guesses of the last guess() took this long.
  void add_step(int64_t n_rows, double seconds);
  // A token was chosen that follows: the one at the place of the first guess, then that of the second, and so on.
  void add_token(int32_t id);

  // Since construction.
  SpeculationStats stats() const { return {n_checked_, n_right_, policy_.lost_seconds()}; }

 private:
  std::unique_ptr<Drafter> drafter_;
  DraftPolicy policy_;
  Checks checks_;
  std::vector<int32_t> text_, ids_;
  std::vector<Guess> guesses_;  // more than were checked, to learn from
  size_t n_to_check_ = 0;       // of them
  size_t n_judged_ = 0;
  bool is_wrong_ = false;  // one of those judged was
  double draft_seconds_ = 0;
  int64_t n_tokens_ = 0;  // that the last step gave
  int64_t n_checked_ = 0, n_right_ = 0;
};

}  // namespace tandem
