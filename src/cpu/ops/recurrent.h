// Shared by the ops of recurrent layers: the tokens and the state slots of each sequence of a step.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/compiled_op.h"

namespace tandem::cpu {

// The tokens [first, first + n) of a step that belong to one sequence.
struct SequenceTokens {
  int64_t first, n;
  bool is_start;  // of the sequence: its state is zero
  int32_t read, write;
};

// Some tokens of a step.
struct StepRange {
  int64_t first, end;
};

class StepSequences {
 public:
  template <class AnyOp>
  StepSequences(const CompileContext& context, const AnyOp& op)
      : positions_(context.address<const int32_t>(op.positions)),
        sequences_(context.address<const int32_t>(op.sequences)),
        states_(context.address<const int32_t>(op.states)) {}

  // The sequences of a range, which is not empty, and the part of one in it. A sequence that began before reads what it
  // has written.
  int64_t count(StepRange r) const { return sequences_[r.end - 1] - sequences_[r.first] + 1; }
  int64_t first(StepRange r) const { return sequences_[r.first]; }
  SequenceTokens at(int64_t sequence, StepRange r) const {
    const auto [begin, end] = std::equal_range(sequences_ + r.first, sequences_ + r.end, sequence);
    const int64_t first = begin - sequences_;
    const bool goes_on = first > 0 && sequences_[first - 1] == sequence;
    return {first, end - begin, positions_[first] == 0, states_[2 * sequence + goes_on],
            states_[2 * sequence + 1]};
  }

 private:
  const int32_t* positions_;  // [n_tokens]
  const int32_t* sequences_;  // [n_tokens], ascending
  const int32_t* states_;     // [n_sequences, 2]
};

inline constexpr int64_t kStateTileColumns = 64;  // of a head's state, for one worker at a time

// Some columns of a matrix of a layer's "values" (kv/cache.h): its rows begin at `first` of a state slot, `stride`
// apart.
struct StateColumns {
  int64_t first, n_rows, n_cols, stride;
};

// Sets the tile's state to the columns in the slot to write, and the old one to those in the slot to read. At the
// start of a sequence both are the former, made zero.
template <class Tile>
void begin_state(const KvLayer& kv, const SequenceTokens& s, const StateColumns& columns, Tile& tile) {
  float* pool = reinterpret_cast<float*>(kv.v);
  tile.state = pool + s.write * kv.head_dim_v + columns.first;
  tile.state_stride = columns.stride;
  tile.old = s.is_start ? tile.state : pool + s.read * kv.head_dim_v + columns.first;
  if (!s.is_start) return;
  for (int64_t i = 0; i < columns.n_rows * columns.stride; i += columns.stride)
    std::fill_n(tile.state + i, columns.n_cols, 0.0f);
}

// So many tokens of a sequence are worth a chunk; fewer go one by one.
inline constexpr int64_t kMinChunk = 4;

// The columns between begin_state and the end of a sequence's tokens, for kernels of chunks: a matrix of their own, whose
// rows lie side by side and have whole vectors.
class StatePanel {
 public:
  static constexpr int64_t n_floats(int64_t n_rows) { return n_rows * kStateTileColumns; }

  template <class Tile>
  StatePanel(const StateColumns& columns, float* panel, Tile& tile)
      : columns_(columns), panel_(panel), slot_(tile.state) {
    if (columns.n_cols < kStateTileColumns) std::fill_n(panel, n_floats(columns.n_rows), 0.0f);
    for (int64_t i = 0; i < columns.n_rows; ++i)
      std::copy_n(tile.old + i * columns.stride, columns.n_cols, panel + i * kStateTileColumns);
    tile.old = tile.state = panel;
    tile.state_stride = kStateTileColumns;
  }
  void store() const {
    for (int64_t i = 0; i < columns_.n_rows; ++i)
      std::copy_n(panel_ + i * kStateTileColumns, columns_.n_cols, slot_ + i * columns_.stride);
  }

 private:
  const StateColumns columns_;
  const float* const panel_;
  float* const slot_;
};

// The rows of queries and keys (c and b of Mamba-2) of a window of tokens and their products, which all heads and tiles of
// columns with the same keys share. The step's tokens go through in ranges of kRangeTokens, which bounds the memory.
// A chunk is the part of a window that belongs to one sequence.
inline constexpr int64_t kRangeTokens = 16 * kStateChunk;

struct KeyWindow {
  float *q, *k;           // [kStateChunk, n]
  float *queries, *keys;  // [kStateChunk, kStateChunk]: of q and k, and of k and k if the op has use for them
};

class KeyWindows {
 public:
  // `n_kinds` of products: 1 without `keys`.
  KeyWindows(int64_t n_heads, int64_t n, int64_t n_kinds)
      : n_heads_(n_heads), n_(n), n_floats_(kStateChunk * (2 * n + n_kinds * kStateChunk)) {}

  size_t n_bytes(int64_t max_tokens) const {
    return static_cast<size_t>(count({0, std::min(max_tokens, kRangeTokens)}) * n_floats_) * sizeof(float);
  }
  int64_t count(StepRange r) const { return (r.end - r.first + kStateChunk - 1) / kStateChunk * n_heads_; }

  // Of the token's window and a head of keys.
  KeyWindow at(std::byte* shared, int64_t token, int64_t head) const {
    float* const q =
        reinterpret_cast<float*>(shared) + (token % kRangeTokens / kStateChunk * n_heads_ + head) * n_floats_;
    float* const queries = q + 2 * kStateChunk * n_;
    return {q, q + kStateChunk * n_, queries, queries + kStateChunk * kStateChunk};
  }
  // The same, beginning with the token.
  KeyWindow from(std::byte* shared, int64_t token, int64_t head) const {
    KeyWindow w = at(shared, token, head);
    const int64_t row = token % kStateChunk;
    return {w.q + row * n_, w.k + row * n_, w.queries + row * (kStateChunk + 1),
            w.keys + row * (kStateChunk + 1)};
  }

 private:
  int64_t n_heads_, n_, n_floats_;
};

// Calls chunk(first token, number of tokens).
template <class Chunk>
void for_each_chunk(const SequenceTokens& s, Chunk&& chunk) {
  for (int64_t token = s.first, end = s.first + s.n, n; token < end; token += n) {
    n = std::min(kStateChunk - token % kStateChunk, end - token);
    chunk(token, n);
  }
}

// Fetches rows that the next chunk reads or writes: they lie so far apart that nothing else would.
inline void prefetch_rows(const float* rows, int64_t n_rows, int64_t n_cols, int64_t stride) {
  for (int64_t i = 0; i < n_rows; ++i) {
    for (int64_t j = 0; j < n_cols; j += 16) __builtin_prefetch(rows + i * stride + j);
  }
}

inline float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

// Goes through a step's tokens: before each range, fill(token, head of keys) for every window that begins at a token, unless
// each token has a sequence of its own; then update(the sequence's tokens, head, first column, whether tokens are single) for every
// tile of columns of every head.
struct RecurrentHeads {
  int64_t n_keys, n, n_cols;  // heads of keys, heads, columns of a head's state
};
template <class Fill, class Update>
void for_each_tile(Worker& worker, const StepSequences& sequences, const KeyWindows& windows,
                   const RecurrentHeads& heads, int64_t n_tokens, const Fill& fill, const Update& update) {
  const bool are_single = n_tokens == 0 || n_tokens == sequences.count({0, n_tokens});
  const int64_t n_tiles = (heads.n_cols + kStateTileColumns - 1) / kStateTileColumns;
  const int64_t n_of_sequence = heads.n * n_tiles;
  for (StepRange r{0, 0}; r.first < n_tokens; r.first = r.end) {
    r.end = are_single ? n_tokens : std::min(n_tokens, r.first + kRangeTokens);
    if (!are_single) {
      worker.for_each(windows.count(r), [&](int64_t item) {
        fill(r.first + item / heads.n_keys * kStateChunk, item % heads.n_keys);
      });
    }
    worker.for_each(sequences.count(r) * n_of_sequence, [&](int64_t item) {
      update(sequences.at(sequences.first(r) + item / n_of_sequence, r), item % n_of_sequence / n_tiles,
             item % n_tiles * kStateTileColumns, are_single);
    });
  }
}

}  // namespace tandem::cpu
