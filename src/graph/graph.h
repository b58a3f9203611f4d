// A graph: the ops of one forward pass in order, for one shape class. Built once by an architecture through
// GraphBuilder, then only read. Anyone may read it from any thread.
#pragma once

#include <array>
#include <vector>

#include "graph/ops.h"
#include "graph/tensor.h"

namespace tandem {

// Capacities of a graph: the most tokens, outputs, sequences and cache blocks a sequence that a step may
// have.
struct ShapeClass {
  int64_t max_tokens = 1;
  int64_t max_outputs = 1;
  int64_t max_sequences = 1;
  int64_t max_blocks = 1;
  int64_t max_hot_blocks = 0;  // of a sequence's hot cache, where caches are split
  int64_t n_ctx = 0;  // positions that a sequence may reach: some models rotate differently when it is large
};

struct Graph {
  ShapeClass shape;
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;                     // in execution order
  std::array<TensorId, kInputCount> inputs{};  // kNoTensor where a graph does not use it
  TensorId logits = kNoTensor;                 // [max_outputs, n_vocab] F32

  const Tensor& tensor(TensorId id) const { return tensors[id]; }
};

}  // namespace tandem
