// The Hadamard rotation of cached heads (QuaRot, arXiv:2404.00456). Multiplied by an orthonormal Hadamard matrix, an
// outlier among a head's columns is spread over all of them, so that what a block of few bits rounds to is nearer. Queries
// are multiplied by the matrix of the keys, which leaves q.k as it was; the matrix is its own inverse, so the mean of
// rotated values is multiplied by it once more.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

inline constexpr int64_t kMinHadamard = 16, kMaxHadamard = 512;  // columns of a matrix

// Returns the width of the matrices that rotate a head of so many columns, each a run of them: the largest power of two that
// divides it, at most kMaxHadamard; 0 if that is less than kMinHadamard.
int64_t hadamard_width(int64_t head_dim);

// Multiplies every run of `width` of the n floats by the matrix, in place. The reference: strides ascend, as everywhere.
void hadamard(float* x, int64_t width, int64_t n);
// What makes the matrix orthonormal.
float hadamard_scale(int64_t width);

// How a layer's cache is rotated: widths of matrices; 0: not.
struct KvRotation {
  int64_t keys = 0, values = 0;
  bool operator==(const KvRotation&) const = default;
};

}  // namespace tandem
