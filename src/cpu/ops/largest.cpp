#include "cpu/ops/largest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tandem::cpu {
namespace {

constexpr int64_t kSampleStride = 16;     // every so many numbers are a sample of all
constexpr int64_t kLeastSampled = 4096;   // of fewer numbers, no sample is taken
constexpr int64_t kMoreCandidates = 512;  // than twice the numbers that are looked for

// Finds the largest threshold that at least n of the numbers in x, none of them negative but those that do not count, reach.
// Such floats are in the order of their bits.
float threshold_of(const SparseKernels& kernels, const float* x, int64_t n_x, int64_t n) {
  uint32_t low = 0, high = std::bit_cast<uint32_t>(std::max(0.0f, kernels.max_of(x, n_x))) + 1;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const int64_t count = kernels.count_at_least(x, std::bit_cast<float>(middle), n_x);
    (count >= n ? low : high) = middle;
    if (count == n) break;
  }
  return std::bit_cast<float>(low);
}

int64_t largest_of_all(const SparseKernels& kernels, const float* x, int64_t n_x, int64_t n, int32_t* found) {
  const float threshold = threshold_of(kernels, x, n_x, n);
  if (kernels.count_at_least(x, threshold, n_x) <= n)
    return kernels.find_at_least(x, threshold, n_x, found, n);
  const float above = std::nextafter(threshold, std::numeric_limits<float>::infinity());
  int64_t n_found = kernels.find_at_least(x, above, n_x, found, n);
  for (int64_t i = 0; i < n_x && n_found < n; ++i) {
    if (x[i] == threshold) found[n_found++] = static_cast<int32_t>(i);
  }
  std::sort(found, found + n_found);
  return n_found;
}

// Finds some more than the n largest numbers by a threshold that a sample suggests: three passes over x instead of thirty.
// Returns how many they are, or 0 if the sample was no good one.
int64_t find_candidates(const SparseKernels& kernels, const float* x, int64_t n_x, int64_t n,
                        const LargestScratch& scratch) {
  int64_t n_sample = 0;
  for (int64_t i = 0; i < n_x; i += kSampleStride) scratch.sample[n_sample++] = x[i];
  // Of a sample drawn at random, n / kSampleStride with a deviation of its square root would be among the n largest.
  const double expected = static_cast<double>(n) / kSampleStride;
  const auto wanted = static_cast<int64_t>(1.05 * expected + 4 * std::sqrt(expected)) + 1;
  if (wanted >= n_sample) return 0;
  const float threshold = threshold_of(kernels, scratch.sample, n_sample, wanted);
  const int64_t n_found = kernels.find_at_least(x, threshold, n_x, scratch.positions, scratch.room);
  return n_found >= n && n_found < scratch.room ? n_found : 0;
}

}  // namespace

LargestScratch::LargestScratch(int64_t max_x, int64_t n, ScratchPieces& pieces)
    : room(2 * n + kMoreCandidates),
      sample(pieces.take<float>(max_x / kSampleStride + 1)),
      positions(pieces.take<int32_t>(room)),
      values(pieces.take<float>(room)) {}

int64_t largest_of(const SparseKernels& kernels, const float* x, int64_t n_x, int64_t n, int32_t* found,
                   const LargestScratch& scratch) {
  const bool sampled = n_x >= kLeastSampled && n_x >= 4 * n;
  const int64_t n_candidates = sampled ? find_candidates(kernels, x, n_x, n, scratch) : 0;
  if (n_candidates == 0) return largest_of_all(kernels, x, n_x, n, found);
  for (int64_t i = 0; i < n_candidates; ++i) scratch.values[i] = x[scratch.positions[i]];
  const int64_t n_found = largest_of_all(kernels, scratch.values, n_candidates, n, found);
  for (int64_t i = 0; i < n_found; ++i) found[i] = scratch.positions[found[i]];
  return n_found;
}

}  // namespace tandem::cpu
