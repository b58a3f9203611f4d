// ModelConfig: the contents of config.json, whose many dialects are unified here.
//
// For a multimodal model, only its text model (text_config). Immutable; throws Error(bad_file) with the file
// and the key.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/convert/json.h"

namespace tandem::tools {

// An architecture's defaults for keys that config.json lacks.
struct ConfigDefaults {
  std::optional<int64_t> n_head, n_head_kv, head_dim, n_ctx, n_vocab;
  std::optional<double> norm_eps;
  double rope_theta = 10000.0, rotated_share = 1.0;
  bool tied = false;
  bool without_mtp = false;              // some readers of the architecture's files know no MTP layers
  bool mtp_apart = false;                // the checkpoint's MTP tensors have names of their own, mtp.*
  std::optional<int64_t> head_dim_full;  // the architecture has MixedAttention
};

// Sizes of multi-head latent attention (DeepSeek); rank 0: none.
struct LatentConfig {
  int64_t q_rank = 0;  // 0: queries are not compressed
  int64_t rank = 0;
  int64_t n_rot = 0, key = 0, value = 0;  // columns of a head; the last n_rot of a key are rotated
};

struct RopeConfig {
  std::string type = "default";  // "linear", "yarn", "llama3", "longrope", ...
  double theta = 10000.0;
  std::optional<double> theta_local;  // of layers with a sliding window, if they have their own
  std::optional<JsonObject> scaling;  // the object that `type` comes from
  int64_t n_ctx_orig = 0;             // context that the factors refer to
  double rotated_share = 1.0;         // fraction of a head's dimensions
};

// What a layer has besides a feed-forward part, or instead of it. Recurrent: a state of fixed size.
enum class LayerKind { attention, recurrent, feed_forward };

// Layers with the gated delta rule: sizes, and which they are.
struct DeltaNetConfig {
  int64_t n_head_k = 0, n_head_v = 0, head_dim_k = 0, head_dim_v = 0;
  int64_t attention_interval = 0;  // every so many layers one has attention instead; 0: no such layers

  int64_t n_k() const { return n_head_k * head_dim_k; }
  int64_t n_v() const { return n_head_v * head_dim_v; }
  int64_t n_qkv() const { return 2 * n_k() + n_v(); }
};

// Layers with the state space of Mamba-2; no heads: none.
struct SsmConfig {
  int64_t n_head = 0, head_dim = 0, n_group = 0, n_state = 0;

  int64_t n_inner() const { return n_head * head_dim; }
  int64_t n_xbc() const { return n_inner() + 2 * n_group * n_state; }
};

// Layers with a sliding window beside layers of full attention whose heads have another size and number (Gemma 4).
// head_dim and n_head_kv are those of the layers with a window.
struct MixedAttention {
  std::vector<bool> slides;  // each layer; empty: all layers are alike
  int64_t head_dim_full = 0, n_head_kv_full = 0;
  bool values_are_keys = false;  // with full attention
  int64_t n_shared = 0;          // last layers, which read the caches of earlier ones
  bool wide_shared = false;      // and whose feed-forward part is twice as wide
};

// A small embedding for every layer beside the usual one (Gemma 4 E2B and E4B); width 0: none.
struct LayerInputs {
  int64_t width = 0, n_vocab = 0;
};

struct ModelConfig {
  ModelConfig(const JsonObject& whole, const ConfigDefaults& defaults);

  JsonObject whole, text;  // the file, and the object of the text model in it
  int64_t n_vocab, n_ctx, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff;
  bool has_head_dim;                        // given in the file, not computed
  int64_t n_expert = 0, n_expert_used = 0;  // 0: dense
  int64_t n_ff_expert = 0,
          n_ff_shared = 0;  // if experts have a width of their own; of all shared ones together
  int64_t n_shared_experts = 0;
  int64_t n_dense_layers = 0,
          mixture_period = 1;  // leading layers without experts; of the others, each n-th has
  int64_t n_mtp_layers = 0;    // after the n_layer others, as many as the file will have
  bool drops_mtp = false;      // layers after those are left out
  bool mtp_apart = false;
  LatentConfig latent;  // head_dim is then that of the keys
  double norm_eps;
  bool tied;          // the output is the embedding table
  bool has_tied_key;  // the file has the key
  RopeConfig rope;
  DeltaNetConfig delta_net;
  int64_t n_conv = 0;  // width of the short convolutions of recurrent layers
  SsmConfig ssm;
  std::vector<LayerKind> kinds;  // empty: as delta_net says
  bool has_one_part = false;     // each layer has only what its kind says
  int64_t n_latent = 0;          // width of the experts' input and output, if not that of the model
  MixedAttention mixed;
  LayerInputs layer_inputs;
  std::array<int64_t, 2> fp8_block = {128, 128};  // rows and columns that share a scale in FP8 checkpoints

  bool has_feed_forward(int64_t layer) const {
    return !has_one_part || kind(layer) == LayerKind::feed_forward;
  }
  bool has_experts(int64_t layer) const {
    return n_expert > 0 && layer >= n_dense_layers && (layer + 1) % mixture_period == 0;
  }
  // Layers after the last, which only predict tokens further ahead, have attention.
  LayerKind kind(int64_t layer) const {
    if (layer >= n_layer) return LayerKind::attention;
    if (layer < static_cast<int64_t>(kinds.size())) return kinds[static_cast<size_t>(layer)];
    const bool delta = delta_net.attention_interval > 0 && (layer + 1) % delta_net.attention_interval != 0;
    return delta ? LayerKind::recurrent : LayerKind::attention;
  }
  // Sizes of one layer.
  bool slides(int64_t layer) const { return mixed.slides.empty() || mixed.slides[layer]; }
  int64_t head_dim_of(int64_t layer) const { return slides(layer) ? head_dim : mixed.head_dim_full; }
  int64_t n_head_kv_of(int64_t layer) const { return slides(layer) ? n_head_kv : mixed.n_head_kv_full; }
  bool shares_cache(int64_t layer) const { return layer >= n_layer - mixed.n_shared && layer < n_layer; }
  int64_t n_ff_of(int64_t layer) const { return mixed.wide_shared && shares_cache(layer) ? 2 * n_ff : n_ff; }
  int64_t n_rot() const { return static_cast<int64_t>(rope.rotated_share * static_cast<double>(head_dim)); }

 private:
  void read_recurrent_layers();
};

// Returns the kinds of the layers of a model whose config.json names each; none for others.
std::vector<LayerKind> read_layer_kinds(const JsonObject& config);
// Whether it names a mixture of experts among them.
bool names_mixture(const JsonObject& config);

// Returns the class of the model: architectures[0].
std::string model_class(const JsonObject& config);

}  // namespace tandem::tools
