// The tensors of a graph. Each is a matrix: rows are tokens (or rows of a weight), columns are features,
// with the heads side by side. The sizes of activations are capacities. Each run is given the actual number
// of rows, so one graph serves every step of its shape class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/dtype.h"

namespace tandem {

// A weight of the model. The Model owns it and all graphs share it. `data` points into the mapped file.
struct Weight {
  std::string name;  // as in the file: "blk.0.attn_q.weight"
  DType dtype = DType::F32;
  int64_t n_mats = 1;  // experts; 1 otherwise
  int64_t n_rows = 0;  // outputs of a linear layer; 1 for a vector
  int64_t n_cols = 0;  // inputs of a linear layer, innermost in memory
  const std::byte* data = nullptr;
  int layer = -1;        // -1: belongs to no layer (embedding, output)
  bool in_file = false;  // data points into a mapped model file, so it can be read from disk
  // What each matrix is multiplied by, n_mats of them; none: 1. GraphBuilder makes them part of the graph.
  std::vector<float> factors;

  size_t n_bytes() const { return row_bytes(dtype, n_cols) * static_cast<size_t>(n_rows * n_mats); }
};

enum class Role : uint8_t { weight, input, activation };

// How many rows a tensor has in a step: n_rows, one per token, or one per output.
enum class Extent : uint8_t { fixed, tokens, outputs };

// The inputs of a step, all I32 but `hidden`. All that changes from step to step is data in these.
enum class Input : uint8_t {
  ids,          // [n_tokens] token ids
  positions,    // [n_tokens] position of each token in its sequence
  sequences,    // [n_tokens] row of block_table for each token's sequence
  slots,        // [n_tokens] KV slot of each token's k and v: block * block_size + offset
  block_table,  // [n_sequences, max_blocks] cache blocks of each sequence, by position
  outputs,      // [n_outputs] indices of the tokens whose logits are requested
  // For split caches (see KvPart): their kv_write and hot attention use these.
  hot_blocks,  // [n_sequences, max_hot_blocks] hot cache blocks of each sequence, by position
  hot_from,    // [n_sequences] first position in the hot cache, a multiple of the block size
  hot_slots,   // [n_tokens] hot cache slot of each token's k and v
  states,      // [n_sequences, 2] of recurrent layers: the state slots that a step reads and writes
  hidden,      // [n_tokens, n_embd] F32, of an MTP layer: what the model made of the token before each one
  // For SelfExtend (graph/self_extend.h), of each token:
  far_positions,    // [n_tokens] the last position that it sees by groups; negative: none
  grouped_queries,  // [n_tokens] the position of its query among groups
  grouped_keys,     // [n_tokens] the position of its key among groups
};
inline constexpr int kInputCount = 14;

using TensorId = int32_t;
inline constexpr TensorId kNoTensor = -1;

struct Tensor {
  std::string name;
  Role role = Role::activation;
  DType dtype = DType::F32;
  Extent extent = Extent::fixed;
  int64_t n_rows = 0;  // capacity
  int64_t n_cols = 0;
  TensorId storage = kNoTensor;    // the tensor whose memory it uses: itself, unless computed in place
  bool is_view = false;            // of memory that other tensors are also made or read in (exec/parts.h)
  const Weight* weight = nullptr;  // role weight
  Input input = Input::ids;        // role input

  // Capacity in bytes; rows are contiguous.
  size_t n_bytes() const {
    return weight ? weight->n_bytes() : row_bytes(dtype, n_cols) * static_cast<size_t>(n_rows);
  }
};

}  // namespace tandem
