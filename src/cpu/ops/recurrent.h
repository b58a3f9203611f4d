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

class StepSequences {
 public:
  template <class AnyOp>
  StepSequences(const CompileContext& context, const AnyOp& op)
      : positions_(context.address<const int32_t>(op.positions)),
        sequences_(context.address<const int32_t>(op.sequences)),
        states_(context.address<const int32_t>(op.states)) {}

  int64_t count(int64_t n_tokens) const { return n_tokens == 0 ? 0 : sequences_[n_tokens - 1] + 1; }
  SequenceTokens at(int64_t sequence, int64_t n_tokens) const {
    const auto [begin, end] = std::equal_range(sequences_, sequences_ + n_tokens, sequence);
    const int64_t first = begin - sequences_;
    return {first, end - begin, positions_[first] == 0, states_[2 * sequence], states_[2 * sequence + 1]};
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

// The columns between begin_state and the end of a sequence's tokens, for kernels of chunks: a matrix of their own, whose
// rows lie side by side and have whole vectors.
class StatePanel {
 public:
  static constexpr int64_t n_floats(int64_t n_rows) { return n_rows * kStateTileColumns; }

  template <class Tile>
  StatePanel(const StateColumns& columns, float* panel, Tile& tile)
      : columns_(columns), panel_(panel), slot_(tile.state) {
    std::fill_n(panel, n_floats(columns.n_rows), 0.0f);
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

// A step's tokens lie in windows of kStateChunk. Products of two tokens of a window are computed once for all that use them;
// a chunk is the part of a window that belongs to one sequence.
inline int64_t n_windows(int64_t n_tokens) {
  return (n_tokens + kStateChunk - 1) / kStateChunk;
}
inline constexpr int64_t kWindowProducts = kStateChunk * kStateChunk;  // of all pairs, [kStateChunk, kStateChunk]

// Calls chunk(first token, number of tokens, where its products begin in those of its window).
template <class Chunk>
void for_each_chunk(const SequenceTokens& s, Chunk&& chunk) {
  for (int64_t token = s.first, end = s.first + s.n, n; token < end; token += n) {
    const int64_t in_window = token % kStateChunk;
    n = std::min(kStateChunk - in_window, end - token);
    chunk(token, n, in_window * (kStateChunk + 1));
  }
}

inline float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

}  // namespace tandem::cpu
