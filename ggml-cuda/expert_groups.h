// Tokens grouped by the experts they are routed to. A slot is a (token, chosen expert): slot t * n_used + i
// is choice i of token t. Sorted by expert, each expert's slots are cut into tiles for a grouped product.
#pragma once

#include "ggml-cuda/matmul.h"

namespace tandem::cuda {

// At most so many tiles: every expert that has any slot may leave one tile part full.
TANDEM_HD constexpr int64_t max_token_tiles(int64_t n_slots, int64_t n_expert, int64_t tile_tokens) {
  return n_slots / tile_tokens + (n_expert < n_slots ? n_expert : n_slots);
}

// counts [n_expert] -> firsts [n_expert], where each expert's slots start in the sorted order, and the tiles.
// Returns their number. A few operations an expert and tile: one thread does it.
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
