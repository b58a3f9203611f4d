// TensorPlan: where every number of a tensor of the GGUF file comes from. Made from an architecture's rules,
// the sizes of config.json and the tensors that are there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/dtype.h"
#include "tools/convert/checkpoint.h"
#include "tools/convert/model_config.h"

namespace tandem::tools {

// Sizes that shapes are made of. `none` as the columns of a rule: a vector.
enum class Size {
  none,
  one,
  vocab,
  embd,
  q,
  kv,
  qkv,
  ff,
  two_ff,
  ff_expert,
  ff_shared,
  head_dim,
  expert,
  head
};

// How the tensors of the checkpoint lie, and what is done with them.
enum class Layout {
  plain,        // [rows, cols], or [rows] without cols
  rope_rows,    // the same; the rows of each head go from two halves to pairs, for architectures that rotate
                // pairs
  plus_one,     // [rows]: one is added, for norms that are stored without it
  stacked,      // one [rows, cols] for each expert, "{e}" in the name -> [expert, rows, cols]
  row_of_one,   // [1, rows] or [rows] -> [rows]
  expert_bias,  // [expert, rows]
  even_bias,    // [expert, 2 rows] -> the even ones
  odd_bias,     // [expert, 2 rows] -> the odd ones
  transposed,   // [expert, cols, rows]
  transposed_even,  // [expert, cols, 2 rows] -> the even rows
  transposed_odd,   // [expert, cols, 2 rows] -> the odd rows
  mxfp4,            // NAME_blocks [expert, rows, cols / 32, 16] and NAME_scales [expert, rows, cols / 32]
  mxfp4_even,       // [expert, 2 rows, ...] -> the even rows
  mxfp4_odd,        // [expert, 2 rows, ...] -> the odd rows
};

struct TensorRule {
  const char* source;  // name in the checkpoint; "{}" is the layer, "{e}" the expert
  const char* target;  // name in the file, behind "blk.N." if the source has a layer
  Size rows, cols = Size::none;
  Layout layout = Layout::plain;
  bool required = true;  // a target that several rules name needs one of them
};

// Element j of row r of matrix m is element m * matrix_step + source_row(r) * row_step + j * col_step + first
// of the source; of sources[m] and without the matrix_step where there are several.
struct TensorPlan {
  std::string name;
  std::vector<int64_t> dims;  // innermost first
  DType dtype = DType::F32;
  std::vector<const SourceTensor*> sources;  // none: `values`
  std::vector<float> values;                 // made from config.json
  const SourceTensor* scales = nullptr;      // MXFP4 blocks
  int64_t matrix_rows = 1;                   // rows of one matrix
  int64_t matrix_step = 0, row_step = 0, col_step = 1, first = 0;
  int64_t pair_head_dim = 0;  // rows of a head of so many are paired; 0: stay
  float add = 0.0f;

  int64_t n_cols() const { return dims[0]; }
  int64_t n_rows() const;
  int64_t n_elements() const { return n_cols() * n_rows(); }
  uint64_t n_bytes() const { return row_bytes(dtype, n_cols()) * static_cast<uint64_t>(n_rows()); }
  int64_t source_row(int64_t row) const;  // of a row within its matrix
};

enum class OutType { automatic, F32, F16, BF16, Q8_0 };

// The plans of all tensors, in the order of the rules. Throws Error(bad_file) for tensors that are missing,
// have another shape than config.json needs, or belong to no rule.
std::vector<TensorPlan> plan_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                     const std::vector<TensorRule>& rules);

// The type that `automatic` stands for: BF16 or F16, as most weights are stored.
OutType resolve_out_type(OutType type, const std::vector<TensorPlan>& plans);
// Sets the dtypes: norms, biases and routers stay F32, MXFP4 stays what it is.
void choose_dtypes(std::vector<TensorPlan>& plans, OutType type);

}  // namespace tandem::tools
