#include "sample/temperature.h"

#include <algorithm>
#include <cmath>

namespace tandem {

void temperature(Candidates& candidates, float temp) {
  const float max = candidates.max_logit();
  // A tiny temperature would make the logits infinite; shifting them first does not change the softmax.
  const float shift = std::isfinite(max / temp) ? 0.0f : max;
  for (Candidate& c : candidates.mutable_items()) c.logit = (c.logit - shift) / temp;
}

void dynamic_temperature(Candidates& candidates, float temp, float range, float exponent) {
  if (candidates.size() < 2) return;
  candidates.softmax();
  double entropy = 0.0;
  for (const Candidate& c : candidates.items()) {
    if (c.p > 0) entropy -= c.p * std::log(static_cast<double>(c.p));
  }
  const double evenness = std::min(1.0, entropy / std::log(static_cast<double>(candidates.size())));
  const double low = std::max(0.0f, temp - range);
  const double high = temp + range;
  const double now = low + (high - low) * std::pow(evenness, static_cast<double>(exponent));
  if (now > 0) {
    temperature(candidates, static_cast<float>(now));
  } else {
    candidates.sort_front(1);
    candidates.keep_front(1);
  }
}

}  // namespace tandem
