// Where the elements of a tile are in the registers of a warp: the operands of mma.m16n8k16 for 16-bit floats
// (PTX ISA, "Matrix Fragments for mma.m16n8k16"), the rows that ldmatrix is pointed at, and the query rows of
// a tile. No CUDA in here: the unit tests run it on the host.
#pragma once

#include "ggml-cuda/attention_index.h"

namespace tandem::cuda {

struct Place {
  int row, col;
};

// A [16, 16]: element e (0, 1) of register r (0..3).
TANDEM_HD inline Place place_in_a(int lane, int r, int e) {
  return {lane / 4 + 8 * (r & 1), lane % 4 * 2 + e + 8 * (r >> 1)};
}
// B [16 (k), 8 (n)]: element e of register r (0, 1).
TANDEM_HD inline Place place_in_b(int lane, int r, int e) {
  return {lane % 4 * 2 + e + 8 * r, lane / 4};
}
// C [16, 8] floats: register i (0..3).
TANDEM_HD inline Place place_in_c(int lane, int i) {
  return {lane / 4 + 8 * (i >> 1), lane % 4 * 2 + (i & 1)};
}

// ldmatrix.x4 fills register i of every lane from the matrix [8, 8] whose row j lane 8 i + j points at: lane
// l gets elements 2 (l % 4) and the next of row l / 4, or with .trans of column l / 4.
//
// Keys [16 positions, 16 dims] in shared memory as B of Q K^T: registers 0, 1 for positions 0..7, 2, 3
// for 8..15.
TANDEM_HD inline Place key_row_of(int lane) {
  return {lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8};
}
// Values [16 positions, 16 dims] as B of P V, with .trans: registers 0, 1 for dims 0..7, 2, 3 for 8..15.
TANDEM_HD inline Place value_row_of(int lane) {
  return {lane / 8 % 2 * 8 + lane % 8, lane / 16 * 8};
}

// Two neighbouring C tiles of scores [16, 8 + 8] are one A [16, 16] of weights: register r of it is registers
// 2 (r & 1) and the next of C tile r >> 1.
TANDEM_HD inline int weight_tile(int r) {
  return r >> 1;
}
TANDEM_HD inline int weight_register(int r) {
  return 2 * (r & 1);
}

// The query rows of the prefill kernel: the heads of a key-value head, token after token. A tile has as many, or twice.
inline constexpr int kQueryTile = 64;
struct QueryRow {
  int token, head;  // head: within the group
};
TANDEM_HD inline QueryRow query_row(int flat, int group) {
  return {flat / group, flat % group};
}
inline int64_t query_tiles(int64_t n_tokens, int group, int n_rows = kQueryTile) {
  return (n_tokens * group + n_rows - 1) / n_rows;
}

// Returns the union of the positions seen by those of tokens [0, n) of a tile that belong to `sequence`.
TANDEM_HD inline PositionRange seen_by_any(const int32_t* positions, const int32_t* sequences, int n,
                                           int32_t sequence, int window) {
  PositionRange any{0x7fffffff, 0};
  for (int i = 0; i < n; ++i) {
    if (sequences[i] != sequence) continue;
    const PositionRange seen = seen_by(positions[i], window);
    any = {int_min(any.begin, seen.begin), int_max(any.end, seen.end)};
  }
  return any;
}

// Whether token i is the first of its sequence in a tile.
TANDEM_HD inline bool leads_sequence(const int32_t* sequences, int i) {
  for (int j = 0; j < i; ++j) {
    if (sequences[j] == sequences[i]) return false;
  }
  return true;
}

}  // namespace tandem::cuda
