// How the products of few tokens (matvec.h) are cut for a GPU.
#pragma once

namespace tandem::cuda {

inline constexpr int kMatvecWarps = 4;  // of a block

// Blocks of a kernel that run at once.
constexpr int matvec_resident(int n_tokens, int n_multiprocessors) {
  return n_multiprocessors * (n_tokens == 1 ? 6 : 4);  // as in matvec_kernel's bounds
}

struct MatvecGrid {
  int slice_bits;  // log2 of the warps that share a row pair
  int blocks;
};

// The grid for the pairs of rows of a launch and the longest row. Few warps share a pair, so that a lane has four pieces
// of a row and what surrounds them weighs little; more where the blocks could not be kept busy alike, or would be too few
// to keep the memory busy. A lane has at least a piece of a row, and two if its block has several tasks.
constexpr MatvecGrid matvec_grid(int pairs, int pieces, int resident) {
  const auto tasks_of = [&](int bits) {
    return (pairs + (kMatvecWarps >> bits) - 1) / (kMatvecWarps >> bits);
  };
  const auto turns_of = [&](int bits) { return (tasks_of(bits) + resident - 1) / resident; };
  const auto blocks_of = [&](int bits) { return (tasks_of(bits) + turns_of(bits) - 1) / turns_of(bits); };
  int best = 0;
  while (best < 2 && 128 << (best + 1) <= pieces) ++best;
  for (int bits = best + 1; bits <= 2; ++bits) {
    const bool has_pieces = turns_of(bits) == 1 ? 32 << (bits - 1) < pieces : 64 << bits <= pieces;
    if (has_pieces && 20 * blocks_of(bits) > 21 * blocks_of(best)) best = bits;
  }
  return {best, blocks_of(best)};
}

// log2 of the warps that share a row pair of an expert: the same without a limit of the blocks.
constexpr int matvec_slice_bits(int pairs, int pieces, int n_multiprocessors) {
  int bits = 0;
  while (bits < 2 && 128 << (bits + 1) <= pieces) ++bits;
  while (bits < 2 && 32 << bits < pieces && pairs << bits < 12 * n_multiprocessors) ++bits;
  return bits;
}

}  // namespace tandem::cuda
