// What the search for a fit and its refusals share.
#pragma once

#include <algorithm>

#include "plan/fit.h"

namespace tandem {

// Returns the first device from `from` on whose budget a fit is over; none: the number of devices.
size_t first_too_small(const FitRequest& request, const Fit& fit, size_t from = 0);
bool fits(const FitRequest& request, const Fit& fit);
// Returns the fit of a choice with as few layers on disk as the host's memory asks for; where no number is enough, as with
// the choice. The experts go there first, all of them, because steps read few of them.
Fit with_disk(const FitRequest& request, OffloadChoice choice);

// Returns the number of layers that GPUs can have, the output included.
int64_t max_gpu_layers(const FitRequest& request);
// Returns the most layers on GPUs that satisfy a predicate. More layers need more memory, but for an arena that may
// shrink: when halving has found a number, the next ones are tried too.
template <class Ok>
int64_t most_layers(int64_t max_gpu_layers, const Ok& ok) {
  int64_t low = -1, high = max_gpu_layers + 1;  // low is fine, high is not
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (ok(middle) ? low : high) = middle;
  }
  for (int64_t n = low + 2; n <= std::min(low + 3, max_gpu_layers); ++n) {
    if (ok(n)) low = n;
  }
  return low;
}

// Refusals: throw Error(out_of_memory) with what is missing and settings that would fit.
void check_host_budget(const FitRequest& request);
void check_budget_holds_a_layer(const FitRequest& request);
[[noreturn]] void throw_too_small(const FitRequest& request, const OffloadChoice& choice);

}  // namespace tandem
