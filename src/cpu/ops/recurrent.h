// Shared by the ops of recurrent layers: the tokens and the state slots of each sequence of a step.
#pragma once

#include <algorithm>

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

}  // namespace tandem::cpu
