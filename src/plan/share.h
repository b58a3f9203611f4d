// Both at once: which share of the rows of streamed matrices a GPU should compute so that it, fed over the
// bus, and the CPU, reading the others from the same memory, are done at the same time.
#pragma once

#include "plan/fit.h"

namespace tandem {

// The shares of a choice that streams, 1 where dividing is not predicted to be faster than streaming all.
// Needs the rates of the devices.
struct RowShares {
  double prefill = 1, decode = 1;
};
RowShares best_shares(const FitRequest& request, const OffloadChoice& choice);

}  // namespace tandem
