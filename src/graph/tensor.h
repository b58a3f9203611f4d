// What flows through a graph. Every tensor is a matrix: rows are tokens (or rows of a weight), columns are
// features; heads lie side by side in the columns. The sizes of activations are capacities: how many rows a
// step really has is given when a plan is run, so one graph serves every step of its shape class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gguf/dtype.h"

namespace tandem {

// A matrix of the model, owned by the Model and shared by all graphs. `data` points into the mapped file.
struct Weight {
  std::string name;  // as in the file: "blk.0.attn_q.weight"
  DType dtype = DType::F32;
  int64_t n_mats = 1;  // experts; 1 otherwise
  int64_t n_rows = 0;  // outputs of a linear layer; 1 for a vector
  int64_t n_cols = 0;  // inputs of a linear layer, innermost in memory
  const std::byte* data = nullptr;
  int layer = -1;        // -1: belongs to no layer (embedding, output)
  bool in_file = false;  // data lies in the mapping of a model file, so it can be read from there

  size_t n_bytes() const { return row_bytes(dtype, n_cols) * static_cast<size_t>(n_rows * n_mats); }
};

enum class Role : uint8_t { weight, input, activation };

// What the number of rows of a tensor is when a plan runs.
enum class Extent : uint8_t { fixed, tokens, outputs };

// The step inputs: what varies from step to step is data in these, all I32.
enum class Input : uint8_t {
  ids,          // [n_tokens] token ids
  positions,    // [n_tokens] position of each token in its sequence
  sequences,    // [n_tokens] row of block_table that each token's sequence uses
  slots,        // [n_tokens] cache slot (block * block_size + offset) that each token's k and v go to
  block_table,  // [n_sequences, max_blocks] cache blocks of each sequence, in order of position
  outputs,      // [n_outputs] indices of the tokens whose logits are wanted
  // Of split caches (see KvPart), whose kv_write and hot attention go by these: the blocks of each sequence's
  // hot cache, in order of position,
  hot_blocks,  // [n_sequences, max_hot_blocks]
  hot_from,    // [n_sequences] the position that it begins with, a multiple of the block size,
  hot_slots,   // [n_tokens] and the slot there that each token's k and v go to
};
inline constexpr int kInputCount = 9;

using TensorId = int32_t;
inline constexpr TensorId kNoTensor = -1;

struct Tensor {
  std::string name;
  Role role = Role::activation;
  DType dtype = DType::F32;
  Extent extent = Extent::fixed;
  int64_t n_rows = 0;  // capacity
  int64_t n_cols = 0;
  TensorId storage = kNoTensor;    // results in place: the tensor whose memory this one is (itself otherwise)
  const Weight* weight = nullptr;  // role weight
  Input input = Input::ids;        // role input

  // Capacity in bytes; rows are contiguous.
  size_t n_bytes() const {
    return weight ? weight->n_bytes() : row_bytes(dtype, n_cols) * static_cast<size_t>(n_rows);
  }
};

}  // namespace tandem
