// Shared by the ops of recurrent layers: the tokens and the state slots of each sequence of a step.
#pragma once

#include "ggml-cuda/compiled_op.h"

namespace tandem::cuda {

struct StepTokens {
  const int32_t* positions;  // [n]
  const int32_t* sequences;  // [n], ascending
  const int32_t* states;     // [n_sequences, 2]: the slot to read and the slot to write
  int n;                     // set at launch
};

template <class AnyOp>
StepTokens step_tokens(const CompileContext& context, const AnyOp& op) {
  return {context.address<const int32_t>(op.positions), context.address<const int32_t>(op.sequences),
          context.address<const int32_t>(op.states), 0};
}

// The first token whose sequence is not below `sequence`.
__device__ inline int first_token(const StepTokens& tokens, int sequence) {
  int low = 0, high = tokens.n;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (tokens.sequences[middle] < sequence) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace tandem::cuda
