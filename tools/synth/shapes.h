// The shapes of public models: a table of the numbers that determine a model's speed, and the tensors and
// hyperparameters that its GGUF file has. `tandem synth` fills them with random weights.
//
// Static data and pure functions; any thread may call. Nothing is thrown.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.h"

namespace tandem::tools {

// The model's tokenizer; see random_vocab.h.
enum class VocabKind { spm_llama, spm_gemma, bpe_llama3, bpe_qwen };

// What Gemma 4 has beyond the others. Every period-th layer has full attention, with heads of its own.
struct Gemma4Shape {
  int head_dim_full = 0, n_head_kv_full = 0;  // 0: another architecture
  int period = 6;
  bool values_are_keys = false;  // with full attention
  int n_shared = 0;              // last layers, which read the caches of earlier ones
  int shared_width = 1;          // times n_ff: their feed-forward part
  int n_input = 0;               // width of each layer's own embeddings
};

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
  int window = 0;           // of layers with a sliding window
  int n_ff_shared = 0;      // of the shared expert
  int n_dense = 0;          // leading layers without experts
  int n_rot = 0;            // rotated columns of a head, if not all
  bool head_norms = false;  // query and key heads are normalized, where the architecture leaves it open
  // Latent attention, if rank > 0: ranks of queries (0: not compressed) and of the cached rows, columns of a value.
  int q_rank = 0, rank = 0, value_dim = 0;
  bool sigmoid_scores = false;        // experts are chosen by sigmoid scores plus a bias, where left open
  int n_group = 0, n_group_used = 0;  // of experts
  // Layers with the gated delta rule, all but every fourth: heads of keys and of values, each with 128 elements.
  int n_delta_k = 0, n_delta_v = 0;
  // A letter for each layer, if they differ: * attention, C a short convolution, M Mamba-2, E a mixture of experts
  // alone, which the other kinds then lack.
  std::string_view kinds = {};
  int n_conv = 0;  // width of the convolutions of layers C and M
  int n_ssm_head = 0, ssm_head_dim = 0, n_ssm_group = 0, n_ssm_state = 0;  // of layers M

  int n_ssm_inner() const { return n_ssm_head * ssm_head_dim; }
  bool has_one_part() const { return kinds.find('E') != std::string_view::npos; }
  char kind(int layer) const { return kinds.empty() ? '*' : kinds[static_cast<size_t>(layer)]; }
  Gemma4Shape gemma4 = {};
};

std::span<const Shape> all_shapes();
// Returns nullptr for an unknown name.
const Shape* find_shape(std::string_view name);
std::vector<std::string_view> shape_names();

// The role of a tensor, for filling and quantizing it.
enum class TensorRole { matrix, norm, bias, router, rope_factors, decay };

struct ShapeTensor {
  std::string name;
  TensorRole role;
  std::array<int64_t, 4> dims;  // innermost first, unused ones are 1
  int n_dims;

  int64_t n_rows() const { return dims[1] * dims[2] * dims[3]; }
  int64_t n_elements() const { return dims[0] * n_rows(); }
};

// Returns every tensor of the model, in file order.
std::vector<ShapeTensor> tensors_of(const Shape& shape);

// Sets general.architecture, general.name and the hyperparameters under the architecture's prefix.
void add_hyperparameters(const Shape& shape, Metadata& metadata);

// Returns the values of rope_freqs.weight: the divisor of each rotation frequency.
std::vector<float> rope_factors(const Shape& shape);

// Those of Llama 3, [head_dim / 2]: waves shorter than a quarter of the original context (8192) stay, waves longer than it are stretched
// by rope_factor, with a blend between.
std::vector<float> llama3_rope_factors(const Shape& shape);

}  // namespace tandem::tools
