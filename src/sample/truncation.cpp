#include "sample/truncation.h"

#include <algorithm>
#include <cmath>

namespace tandem {

void top_k(Candidates& candidates, int32_t k) {
  if (k <= 0) return;
  const size_t n = std::min(static_cast<size_t>(k), candidates.size());
  candidates.sort_front(n);
  candidates.keep_front(n);
}

void top_p(Candidates& candidates, float p, size_t min_keep) {
  if (p >= 1.0f) return;
  candidates.softmax();
  double sum = 0.0;
  size_t sorted = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i == sorted) {  // most distributions need few candidates: sort incrementally
      sorted = std::min(candidates.size(), std::max<size_t>(64, sorted * 4));
      candidates.sort_front(sorted);
    }
    sum += candidates.items()[i].p;
    // as float, so that 0.3 and 0.4 reach 0.7
    if (static_cast<float>(sum) >= p && i + 1 >= min_keep) {
      candidates.keep_front(i + 1);
      return;
    }
  }
}

void min_p(Candidates& candidates, float p, size_t min_keep) {
  if (p <= 0.0f) return;
  const float max = candidates.max_logit();
  const float limit = std::min(max, max + static_cast<float>(std::log(static_cast<double>(p))));
  const auto items = candidates.items();
  const auto n_kept = static_cast<size_t>(
      std::count_if(items.begin(), items.end(), [limit](const Candidate& c) { return c.logit >= limit; }));
  if (n_kept >= min_keep) {
    candidates.keep_from(limit);
  } else {
    top_k(candidates, static_cast<int32_t>(std::min(min_keep, candidates.size())));
  }
}

void typical_p(Candidates& candidates, float p, size_t min_keep) {
  if (p >= 1.0f) return;
  candidates.sort();
  candidates.softmax();
  const auto items = candidates.items();
  const auto surprise = [items](size_t i) { return -std::log(static_cast<double>(items[i].p)); };
  double entropy = 0.0;
  for (size_t i = 0; i < items.size() && items[i].p > 0; ++i) entropy += items[i].p * surprise(i);

  // Surprise grows in this order, so the nearest to the entropy form a range that grows to both sides.
  size_t first = 0;
  while (first < items.size() && surprise(first) < entropy) ++first;
  size_t last = first;  // [first, last)
  double sum = 0.0;
  while (last - first < items.size()) {
    const bool take_left =
        last == items.size() || (first > 0 && entropy - surprise(first - 1) <= surprise(last) - entropy);
    sum += items[take_left ? --first : last++].p;
    if (static_cast<float>(sum) > p && last - first >= min_keep) break;
  }
  candidates.keep_front(last);
  candidates.drop_front(first);
}

void top_n_sigma(Candidates& candidates, float n) {
  if (n <= 0.0f) return;
  double sum = 0.0, squares = 0.0;
  size_t count = 0;
  const auto finite = [](const Candidate& c) { return std::isfinite(c.logit); };
  for (const Candidate& c : candidates.items()) {
    if (!finite(c)) continue;
    sum += c.logit;
    ++count;
  }
  if (count == 0) return;
  const double mean = sum / static_cast<double>(count);
  for (const Candidate& c : candidates.items()) {
    if (finite(c)) squares += (c.logit - mean) * (c.logit - mean);
  }
  const double sigma = std::sqrt(squares / static_cast<double>(count));
  const float max = candidates.max_logit();
  candidates.keep_from(std::min(max, static_cast<float>(max - n * sigma)));
}

}  // namespace tandem
