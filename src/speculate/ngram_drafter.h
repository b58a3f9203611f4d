// Guesses by lookup: a text that repeats its last tokens from earlier goes on as it did there. Code, quotes, tables and
// translations repeat much. (Prompt lookup decoding, github.com/apoorvumang/prompt-lookup-decoding.)
#pragma once

#include "speculate/drafter.h"

namespace tandem {

class NgramDrafter final : public Drafter {
 public:
  // Follows the earlier place whose preceding tokens agree with the text's last ones the longest; the latest of
  // several. Guesses nothing if fewer than 2 tokens agree. Costs one pass over the text.
  void draft(std::span<const int32_t> text, const std::function<bool(const Guess&)>& take) override;
  bool is_free() const override { return true; }
  double prior(int confidence) const override;
};

}  // namespace tandem
