// How many guesses a step should check. Each costs time, and saves a step if it is right. The policy measures both
// while a text is generated, the seconds of a step by its number of tokens and the share of right guesses by their
// confidence, and chooses the number with the most tokens a second.
//
// It never loses much: it keeps an account of the seconds lost against steps without guesses, and risks no more than
// the account bears if all guesses are wrong: 2% of the time so far, and one step.
//
// It has no clock of its own. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "speculate/drafter.h"

namespace tandem {

class DraftPolicy {
 public:
  // n_max: guesses of a step at most.
  DraftPolicy(const Drafter& drafter, int64_t n_max);

  int64_t n_max() const { return n_max_; }

  // The step that is to come, without guesses.
  struct Step {
    int64_t n_rows = 1;  // its tokens
    // A wrong guess makes the step after it compute all its right tokens again: with recurrent layers.
    bool is_repeated_when_wrong = false;
  };
  // Of these guesses, the number that the step checks; 0 until a step without guesses was measured.
  int64_t n_to_check(std::span<const Guess> guesses, const Step& step) const;
  // Whether a guess after these is likely to be worth its drafting; for drafters that take time.
  bool wants_more(std::span<const Guess> guesses, const Step& step) const;

  // A step of n_rows tokens, guesses included, is done; drafting n_guesses for it took draft_seconds.
  void add_step(int64_t n_rows, double seconds, int64_t n_guesses, double draft_seconds);
  // It gave n_tokens tokens of text.
  void settle_step(int64_t n_tokens);
  void add_guess(int confidence, bool right);

  double share_right(int confidence) const;
  // Of a step of n_rows tokens: measured, or estimated from the nearest that were.
  double step_seconds(int64_t n_rows) const;
  // Seconds lost against steps without guesses; negative: gained.
  double lost_seconds() const { return lost_; }

 private:
  double bearable() const;
  int64_t most_rows() const;

  int64_t n_max_;
  std::array<double, kConfidences> n_right_{}, n_seen_{};
  std::vector<double> seconds_;      // of a step, by its number of rows; 0: not measured
  std::vector<bool> was_done_;       // a step of so many rows
  double guess_seconds_ = 0;         // to draft a guess
  double total_ = 0, lost_ = 0;      // of all steps
  double balance_ = 0;               // lost_, but of gains only those of the last few steps
  double last_step_ = 0;             // with its drafting; 0: settled
  std::optional<double> last_lost_;  // of it, if that does not depend on its tokens
};

}  // namespace tandem
