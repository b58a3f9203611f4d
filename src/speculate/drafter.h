// Drafter: guesses how a text goes on, so that one step of the model can check several tokens. Whatever it guesses,
// the text stays the model's own: a guess counts only where the model chooses the same token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace tandem {

inline constexpr int kConfidences = 8;

struct Guess {
  int32_t id = 0;
  // Guesses with the same confidence are right about equally often; the draft policy measures how often.
  int confidence = 0;  // 0 (least) .. kConfidences - 1
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  // Guesses the tokens that follow `text` (at least one token) one after the other: hands each to `take`, until
  // that returns false or there is no other guess. Throws what computing a guess throws.
  virtual void draft(std::span<const int32_t> text, const std::function<bool(const Guess&)>& take) = 0;
  // Whether guesses take next to no time, so that they can be made only to learn how often they are right.
  virtual bool is_free() const = 0;
  // The share of right guesses to expect before any was checked.
  virtual double prior(int confidence) const = 0;
};

}  // namespace tandem
