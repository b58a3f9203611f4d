// Which of many numbers are the largest, for attention that reads only these positions.
#pragma once

#include <cstdint>

#include "cpu/ops/scratch_pieces.h"
#include "cpu/sparse_kernels.h"

namespace tandem::cpu {

// Memory of largest_of() for at most max_x numbers, of which n are looked for.
struct LargestScratch {
  LargestScratch(int64_t max_x, int64_t n, ScratchPieces& pieces);

  int64_t room;        // candidates
  float* sample;       // [max_x / kSampleStride + 1]
  int32_t* positions;  // [room], of the candidates, ascending
  float* values;       // [room]
};

// Writes the n indices of the largest numbers of x, none of which is negative but those that do not count, ascending; of
// equal ones the first. n <= n_x. Returns how many, less than n only of NaN.
int64_t largest_of(const SparseKernels& kernels, const float* x, int64_t n_x, int64_t n, int32_t* found,
                   const LargestScratch& scratch);

}  // namespace tandem::cpu
