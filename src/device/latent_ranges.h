// How a device goes through the tokens of a step of latent attention: in ranges, each in one form.
#pragma once

#include <algorithm>

#include "device/segment.h"
#include "graph/latent_form.h"

namespace tandem {

// Some tokens of a step: of one sequence if they are expanded.
struct TokenRange {
  int64_t first = 0, n = 0, n_past = 0;  // n_past: of expanded ones, positions before the first
  bool expanded = false;
};

// Calls use(range) for all tokens of a step, in order; ranges of the absorbed form have up to max_absorbed tokens.
template <class Use>
void for_each_latent_range(const LatentAttentionParams& op, const StepShape& shape, int64_t max_absorbed,
                           const Use& use) {
  int64_t done = 0, waiting = 0;  // tokens, and those of the absorbed form after them
  const auto absorb = [&] {
    while (waiting > 0) {
      const int64_t n = std::min(waiting, max_absorbed);
      use(TokenRange{done, n});
      done += n;
      waiting -= n;
    }
  };
  for (const SequenceStep& s : shape.sequences) {
    if (!expands(op, static_cast<double>(s.n_tokens), static_cast<double>(s.n_past))) {
      waiting += s.n_tokens;
      continue;
    }
    absorb();
    use(TokenRange{done, s.n_tokens, s.n_past, true});
    done += s.n_tokens;
  }
  waiting = shape.n_tokens - done;  // all, where the sequences are not known
  absorb();
}

}  // namespace tandem
