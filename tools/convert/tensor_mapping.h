// TensorMapping: where every number of a tensor of the GGUF file comes from. Built from an architecture's
// rules, the sizes of config.json and the tensors present.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/dtype.h"
#include "tools/convert/checkpoint.h"
#include "tools/convert/model_config.h"

namespace tandem::tools {

// Sizes in shapes. `none` for the columns of a rule: a vector.
enum class Size {
  none,
  one,
  vocab,
  embd,
  two_embd,
  q,
  kv,
  qkv,
  ff,
  two_ff,
  ff_expert,
  ff_shared,
  head_dim,
  expert,
  head,
  q_direct,  // of latent attention, as the following: q where queries are not compressed
  q_rank,
  rank,
  rank_and_rot,
  key_up,  // columns of a key that are not rotated
  value,
  values,  // of all heads
  two_q,
  three_embd,
  ff_latent,  // the experts' input and output
  ssm_in,     // of Mamba-2, as the following: z, x, b, c and dt
  ssm_xbc,
  ssm_inner,
  ssm_head,
  ssm_group,
  ssm_group_width,
  delta_qkv,   // q, k and v of the layers with the delta rule
  delta_v,     // the v of them alone
  delta_ba,    // two numbers for each of their value heads
  delta_head,  // their value heads
  delta_head_dim,
  two_ff_expert,
  layer_inputs,  // of all layers
  layer_input,
  layer_input_vocab
};

// The shape of a tensor in the checkpoint, and its conversion.
enum class Layout {
  plain,        // [rows, cols], or [rows] without cols
  rope_rows,    // the same; each head's rows go from halves to pairs, for architectures that rotate pairs
  plus_one,     // [rows]; adds 1, for norms stored minus one
  stacked,      // one [rows, cols] per expert, "{e}" in the name -> [expert, rows, cols]
  row_of_one,   // [1, rows] or [rows] -> [rows]
  expert_bias,  // [expert, rows]
  even_bias,    // [expert, 2 rows] -> even rows
  odd_bias,     // [expert, 2 rows] -> odd rows
  expert_rows,  // [expert, rows, cols]
  upper_rows,   // [2 rows, cols], or that for each expert -> the first half of the rows
  lower_rows,   // the same -> the second half
  folded,       // [rows * cols] -> [rows, cols]
  folded_minus_exp,     // the same; x also becomes -exp(x)
  transposed,           // [expert, cols, rows]
  transposed_even,      // [expert, cols, 2 rows] -> even rows
  transposed_odd,       // [expert, cols, 2 rows] -> odd rows
  first_half,           // [expert, cols, 2 rows] or [expert, 2 rows, cols] -> the first half of the rows
  second_half,          // the same -> the second half
  transposed_or_plain,  // [expert, cols, rows] or [expert, rows, cols]
  key_rows,    // [head * (key_up + value), rank]: each head's first rows, transposed -> [head, rank, key_up]
  value_rows,  // the same: each head's last rows -> [head, value, rank]
  mxfp4,       // NAME_blocks [expert, rows, cols / 32, 16] and NAME_scales [expert, rows, cols / 32]
  mxfp4_even,  // [expert, 2 rows, ...] -> even rows
  mxfp4_odd,   // [expert, 2 rows, ...] -> odd rows
  minus_exp,   // [rows]; x becomes -exp(x)
  conv,        // [rows, 1, width of the convolution] -> [rows, width]
  delta_qkvz_qkv,  // [rows of q, k, v and z, cols], by key heads -> all q, all k, all v
  delta_qkvz_z,    // the same -> all z
  // The last rows, one or as many as a value has elements for each value head, go from the order of key heads (all
  // value heads of the first one, ...) to the first value head of every key head, the second, ...
  tiled,            // [rows, cols] or [rows]
  tiled_minus_exp,  // [rows]; x also becomes -exp(x)
  tiled_conv,       // [rows, 1, width of the convolution] -> [rows, width]
  tiled_cols,       // [rows, cols]; the columns instead of the rows
};

// The layers that a rule applies to: those without experts, those with them, or only the MTP layers, which are
// mixtures too if the model is.
// Of a model with recurrent layers: those with attention, and those. Of one with shared caches: those with a cache of
// their own, and of these those whose values are not the keys. All layers if they have embeddings of their own.
enum class Layers { all, dense, mixture, mtp, attention, recurrent, own_cache, own_values, with_input };

struct TensorRule {
  const char* source;  // name in the checkpoint; "{}" is the layer, "{e}" the expert
  const char* target;  // name in the GGUF file, after "blk.N." if the source has a layer
  Size rows, cols = Size::none;
  Layout layout = Layout::plain;
  bool required = true;  // of several rules for one target, one must apply
  Layers layers = Layers::all;
};

// Element j of row r of matrix m is element m * matrix_stride + source_row(r) * row_stride + j * col_stride +
// first of the source; with several sources, of sources[m] and without m * matrix_stride.
struct TensorMapping {
  std::string name;
  std::vector<int64_t> dims;  // innermost first
  DType dtype = DType::F32;
  std::vector<const SourceTensor*> sources;       // none: `values`
  std::vector<float> values;                      // made from config.json
  const SourceTensor* scales = nullptr;           // MXFP4 blocks
  std::vector<const SourceTensor*> block_scales;  // of FP8 and NVFP4 sources, one each; otherwise empty
  int64_t block_rows = 0, block_cols = 0;         // that share one of them
  std::vector<float> factors;                     // of NVFP4 sources, one each: of the whole matrix; otherwise empty
  int64_t matrix_rows = 1;                        // rows of one matrix
  int64_t matrix_stride = 0, row_stride = 0, col_stride = 1, first = 0;
  int64_t pair_head_dim = 0;       // head size of rows to be paired; 0: rows stay
  std::vector<int64_t> row_order;  // the source row of each row; empty: rows stay
  std::vector<int64_t> col_order;  // the same for columns
  float add = 0.0f;
  bool minus_exp = false;  // x becomes -exp(x)

  bool of_nvfp4() const { return !factors.empty(); }
  int64_t n_cols() const { return dims[0]; }
  int64_t n_rows() const;
  int64_t n_elements() const { return n_cols() * n_rows(); }
  uint64_t n_bytes() const { return row_bytes(dtype, n_cols()) * static_cast<uint64_t>(n_rows()); }
  int64_t source_row(int64_t row) const;  // for a row within its matrix
};

// A source in FP8 comes with NAME_scale_inv or NAME_scale: a factor for each block of config.fp8_block rows and columns, for each row or
// for all. A source in NVFP4 comes with NAME_scale, FP8 factors of 16 columns, and a factor of the whole matrix:
//   NAME [rows, cols / 2] and NAME_scale_2 (NVIDIA's ModelOpt), or
//   NAME_packed and NAME_global_scale, which divides (compressed-tensors).
// It stays NVFP4 where a GGUF file can have it (out_type.h), with the factors in a tensor of their own.
//
// Plans all tensors, in the order of the rules. Throws Error(bad_file) for tensors that are missing, have a
// shape other than config.json implies, or match no rule. Says how many of vision and audio are left out.
std::vector<TensorMapping> map_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                       const std::vector<TensorRule>& rules);

}  // namespace tandem::tools
