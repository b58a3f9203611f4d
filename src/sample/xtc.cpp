#include "sample/xtc.h"

namespace tandem {

void xtc(Candidates& candidates, float probability, float threshold, size_t min_keep, Rng& rng) {
  if (probability <= 0.0f || threshold > 0.5f || candidates.size() < 2) return;
  if (rng.uniform() >= probability) return;
  candidates.sort();
  candidates.softmax();
  size_t n_choices = 0;
  for (const Candidate& c : candidates.items()) {
    if (c.p < threshold) break;
    ++n_choices;
  }
  if (n_choices < 2 || candidates.size() - (n_choices - 1) < min_keep) return;
  candidates.drop_front(n_choices - 1);
}

}  // namespace tandem
