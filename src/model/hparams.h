// Hyperparameters: the shape of a model, from the metadata of its file. Read and validated once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.h"
#include "graph/ops.h"
#include "graph/self_extend.h"

namespace tandem {

struct Hparams {
  std::string architecture;  // "llama"
  std::string name;          // general.name, for display
  int64_t n_vocab = 0;       // rows of the embedding table
  int64_t n_ctx_train = 0;   // context that the model was trained with
  int64_t n_embd = 0;
  int64_t n_layer = 0;
  int64_t n_head = 0, n_head_kv = 0;
  int64_t head_dim_k = 0, head_dim_v = 0;
  int64_t n_ff = 0;                         // in a mixture: of each expert; the widest if layers differ
  int64_t n_expert = 0, n_expert_used = 0;  // 0: dense
  float norm_eps = 0.0f;
  SelfExtend self_extend;  // by the user's choice

  // Tokens of the longest text that the model is good for.
  int64_t n_ctx_usable() const { return self_extend.longest(n_ctx_train); }
};

inline constexpr int64_t kMaxDimension = 1 << 24;  // far above any model; products of two fit in 64 bits

// How layers differ. mixed: in their parts; arrays have 0 for the layers without the part that they count. resized: in
// n_ff and n_head_kv, which may be arrays; Hparams then has the largest of each.
enum class LayerKinds : uint8_t { alike, mixed, resized };

// What of a file is a model: all but the MTP layers (multi-token prediction), or the first of these, which guesses what follows
// the tokens that the model chooses.
enum class ModelPart : uint8_t { main, mtp };

enum class RopeScaling { none, linear, yarn };

// User overrides of the file's values.
struct RopeOverrides {
  std::optional<RopeScaling> scaling;
  std::optional<float> scale;  // context extension factor: freq_scale = 1 / scale
  std::optional<float> freq_base, freq_scale;
  std::optional<int64_t> n_ctx_orig;
  std::optional<float> ext_factor, attn_factor, beta_fast, beta_slow;
  SelfExtend self_extend;

  bool scales() const { return scaling || scale || freq_base || freq_scale; }
  bool sets_yarn() const { return n_ctx_orig || ext_factor || attn_factor || beta_fast || beta_slow; }
};

// Throws Error(usage) for numbers that make no sense.
void check_self_extend(const SelfExtend& o);

// Typed access to "ARCH.key" with the checks that every architecture needs. All functions throw
// Error(bad_file) with the key.
class HparamReader {
 public:
  HparamReader(const Metadata& metadata, std::string architecture)
      : metadata_(metadata), architecture_(std::move(architecture)) {}

  std::string key(std::string_view suffix) const { return architecture_ + "." + std::string(suffix); }
  [[noreturn]] void fail(std::string_view suffix, const std::string& found, const std::string& needed) const {
    metadata_.fail(key(suffix), found, needed);
  }
  // An integer in [min, max]; an array with one value per layer is accepted if all are equal.
  int64_t integer(std::string_view suffix, int64_t min, int64_t max) const;
  int64_t integer_or(std::string_view suffix, int64_t fallback, int64_t min, int64_t max) const;
  // One integer in [min, max] for each of n layers, given as an array or as one number for all. `fallback`
  // if the file has none.
  std::vector<int64_t> per_layer(std::string_view suffix, size_t n, int64_t fallback, int64_t min,
                                 int64_t max) const;
  // A finite float in [min, max].
  float number(std::string_view suffix, float min, float max) const;
  float number_or(std::string_view suffix, float fallback, float min, float max) const;
  // As integer(), but an array may have 0 in some layers; 0 if in all.
  int64_t integer_of_some(std::string_view suffix, int64_t min, int64_t max) const;
  bool flag_or(std::string_view suffix, bool fallback) const;
  bool is_array(std::string_view suffix) const;
  // An array of n flags, bools or integers.
  std::vector<bool> flags(std::string_view suffix, size_t n) const;

  // Reads all of Hparams but n_vocab, for a decoder-only transformer. eps_key:
  // "attention.layer_norm_rms_epsilon".
  Hparams transformer(std::string_view eps_key, LayerKinds kinds = LayerKinds::alike) const;
  // Reads the rotation. The caller sets n_head.
  RopeParams rope(const Hparams& hparams, RopeStyle style, const RopeOverrides& overrides) const;

 private:
  RopeScaling rope_scaling() const;
  int64_t largest(std::string_view suffix, int64_t min, int64_t max) const;

  const Metadata& metadata_;
  std::string architecture_;
};

}  // namespace tandem
