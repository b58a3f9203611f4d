// What every implementation of Ranks must do, for simulated ranks and for those of MPI.
#pragma once

#include <string>

#include "ranks/ranks.h"

namespace tandem::test {

// Calls every function with awkward sizes and compares what comes out. All ranks call it. Returns the first thing that is
// wrong on this rank, "" if all is well.
std::string check_ranks(Ranks& ranks);

}  // namespace tandem::test
