// Tokens grouped by the experts they are routed to. Pair t * n_used + i is choice i of token t. Each expert's
// pairs, sorted by expert, are cut into tiles for a grouped product.
#pragma once

#include "ggml-cuda/matmul.h"

namespace tandem::cuda {

// Maximum number of tiles: each expert with any pair may have one partly filled tile.
TANDEM_HD constexpr int64_t max_token_tiles(int64_t n_slots, int64_t n_expert, int64_t tile_tokens) {
  return n_slots / tile_tokens + (n_expert < n_slots ? n_expert : n_slots);
}

// counts [n_expert] -> firsts [n_expert], where each expert's pairs start in the sorted order, and the tiles.
// Returns their number. A few operations per expert and tile, on one thread.
TANDEM_HD inline int make_tiles(const int* counts, int n_expert, int tile_tokens, int* firsts,
                                TokenTile* tiles) {
  int n_tiles = 0, first = 0;
  for (int e = 0; e < n_expert; ++e) {
    firsts[e] = first;
    for (int done = 0; done < counts[e]; done += tile_tokens) {
      const int left = counts[e] - done;
      tiles[n_tiles++] = {e, first + done, left < tile_tokens ? left : tile_tokens};
    }
    first += counts[e];
  }
  return n_tiles;
}

}  // namespace tandem::cuda
