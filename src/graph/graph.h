// A graph: the ops of one forward pass in execution order, for one shape class. An architecture builds it
// once through GraphBuilder; after that it is read-only, from any thread.
#pragma once

#include <array>
#include <vector>

#include "graph/hadamard.h"
#include "graph/ops.h"
#include "graph/tensor.h"

namespace tandem {

// Capacities of a graph: the maximum tokens, outputs, sequences, and cache blocks per sequence in a step.
struct ShapeClass {
  int64_t max_tokens = 1;
  int64_t max_outputs = 1;
  int64_t max_sequences = 1;
  int64_t max_blocks = 1;
  int64_t max_hot_blocks = 0;  // per sequence in the hot cache, if caches are split
  int64_t n_draft = 0;         // guesses that a decode step may have besides a token of each sequence
  int64_t n_deferred = 0;  // of a token's experts, those of the lowest rank, whose sum joins one layer later
  int64_t n_ctx = 0;  // maximum length of a sequence: some models use other RoPE factors when it is large
  LatentForm latent_form = LatentForm::cheaper;
  int64_t n_top = 0;                          // largest logits of each output, Graph::top
  bool keeps_hidden = false;                  // a step returns what it made of every token, Graph::hidden
  std::vector<KvRotation> kv_rotations = {};  // of each layer's cache; empty: none is rotated
  SparseReads sparse = {};  // of attention to all positions; off: all are read

  KvRotation kv_rotation(int layer) const {
    return kv_rotations.empty() ? KvRotation{} : kv_rotations[layer];
  }
};

struct Graph {
  ShapeClass shape;
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;                     // in execution order
  std::array<TensorId, kInputCount> inputs{};  // kNoTensor: not used by this graph
  TensorId logits = kNoTensor;                 // [max_outputs, n_vocab] F32; none: another stage makes them
  TensorId top = kNoTensor;     // [max_outputs, 2 * n_top] F32, top_k of the logits; if asked for
  TensorId hidden = kNoTensor;  // [max_tokens, n_embd] F32, which the output head reads; if kept
  // Of a stage (model/stage.h): activations that other ranks make before this one, and that they need from it.
  std::vector<TensorId> received = {}, sent = {};

  const Tensor& tensor(TensorId id) const { return tensors[id]; }
};

}  // namespace tandem
