#include "speculate/ngram_drafter.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr size_t kMinAgreeing = 2;
constexpr size_t kMaxAgreeing = 64;  // longer ones are as good

// The number of tokens before `end` that agree with the last ones of the text.
size_t n_agreeing(std::span<const int32_t> text, size_t end) {
  const size_t most = std::min(end, kMaxAgreeing);
  size_t n = 0;
  while (n < most && text[end - 1 - n] == text[text.size() - 1 - n]) ++n;
  return n;
}

int confidence_of(size_t n) {
  constexpr size_t kFirst[kConfidences] = {2, 3, 4, 5, 7, 10, 16, 32};
  return static_cast<int>(std::upper_bound(kFirst, kFirst + kConfidences, n) - kFirst) - 1;
}

}  // namespace

void NgramDrafter::draft(std::span<const int32_t> text, const std::function<bool(const Guess&)>& take) {
  const int32_t last = text.back();
  size_t best_end = 0, best = kMinAgreeing - 1;
  for (size_t end = text.size() - 1; end > best && best < kMaxAgreeing; --end) {
    if (text[end - 1] != last) continue;
    const size_t n = n_agreeing(text, end);
    if (n <= best) continue;
    best = n;
    best_end = end;
  }
  if (best < kMinAgreeing) return;
  // A place near the end of the text runs into the guesses: they repeat.
  const size_t period = text.size() - best_end;
  for (size_t i = 0; take({text[best_end + i % period], confidence_of(best + i)}); ++i) {}
}

double NgramDrafter::prior(int confidence) const {
  return 0.4 + 0.06 * confidence;
}

}  // namespace tandem
