// Where a recurrent layer is cut that several devices compute together: the channels of its convolution, the heads of its
// recurrence, and the state of both.
//   Gated delta net: heads of keys with their heads of values; Mamba-2: groups with their heads. If there is only one, the
//   others are divided, and each device has a copy of its columns. Short convolution alone: channels.
#pragma once

#include "exec/tensor_cuts.h"

namespace tandem {

struct RecurrentCuts {
  Cuts channels;  // of what the convolution takes and gives
  Cuts heads;     // of what the recurrence gives, and of what there is once a head; without one, the channels
};

// The ops of a layer that keep a state.
struct RecurrentLayer {
  const CausalConvOp* conv = nullptr;  // null: the layer is not recurrent
  const DeltaRuleOp* rule = nullptr;
  const SsmScanOp* scan = nullptr;
  TensorId output = kNoTensor;  // of the last one of them

  // Whether there is one head of keys or one group, which each device that has heads copies.
  bool copies_keys() const;
  RecurrentCuts cuts(const std::vector<int64_t>& first) const;
};
RecurrentLayer recurrent_layer(const Graph& graph, int layer);

// Divides the state of a recurrent layer by the shares.
DividedState divide_state(const Graph& graph, int layer, const TensorParallel& parallel);

}  // namespace tandem
