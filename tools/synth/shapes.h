// The shapes of public models: the facts that decide how fast a model runs, one row of a table each, and the
// tensors and hyperparameters that a GGUF file of such a model has. `tandem synth` fills them with random
// weights.
//
// Everything here is static data or pure functions of it; any thread may call. Nothing is thrown.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.h"

namespace tandem::tools {

// Which tokenizer the model has; its details are in random_vocab.h.
enum class VocabKind { spm_llama, spm_gemma, bpe_llama3, bpe_qwen };

struct Shape {
  std::string_view name;   // what the user types
  std::string_view title;  // general.name
  std::string_view arch;   // general.architecture
  int n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff;
  VocabKind vocab;
  int n_vocab, n_ctx;
  float rope_freq_base, rms_eps;
  bool tied = false;      // the output matrix is the token embedding
  float rope_factor = 0;  // 0, or the factor by which Llama 3's rope_freqs.weight stretches long waves
  int n_expert = 0, n_expert_used = 0, n_ff_expert = 0;
  int window = 0;       // of the layers that have one
  int n_ff_shared = 0;  // of the expert that every token goes through
};

std::span<const Shape> all_shapes();
// nullptr when there is none of that name.
const Shape* find_shape(std::string_view name);

// What a tensor is for, as far as filling and quantizing it is concerned.
enum class TensorRole { matrix, norm, bias, router, rope_factors };

struct ShapeTensor {
  std::string name;
  TensorRole role;
  std::array<int64_t, 4> dims;  // innermost first, unused ones are 1
  int n_dims;

  int64_t n_rows() const { return dims[1] * dims[2] * dims[3]; }
  int64_t n_elements() const { return dims[0] * n_rows(); }
};

// Every tensor of the model, in the order of the file.
std::vector<ShapeTensor> tensors_of(const Shape& shape);

// general.architecture, general.name and the hyperparameters under the architecture's prefix.
void add_hyperparameters(const Shape& shape, Metadata& metadata);

// The values of rope_freqs.weight, [head_dim / 2]: by what each rotation frequency is divided. Llama 3's
// rule: waves shorter than a quarter of the original context (8192) stay, longer than all of it are stretched
// by rope_factor, and between them it blends.
std::vector<float> llama3_rope_factors(const Shape& shape);

}  // namespace tandem::tools
