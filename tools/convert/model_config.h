// ModelConfig: what config.json says about a model, with the many ways of saying it made one.
//
// The text model of a multimodal one (text_config) counts as the model. Immutable; throws Error(bad_file)
// naming the file and the key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/convert/json.h"

namespace tandem::tools {

// What an architecture takes for granted where config.json is silent.
struct ConfigDefaults {
  std::optional<int64_t> n_head, n_head_kv, head_dim, n_ctx, n_vocab;
  std::optional<double> norm_eps;
  double rope_theta = 10000.0;
  bool tied = false;
};

struct RopeConfig {
  std::string type = "default";  // "linear", "yarn", "llama3", "longrope", ...
  double theta = 10000.0;
  std::optional<double> theta_local;  // of layers with a window, where they have their own
  std::optional<JsonObject> scaling;  // the object that the type comes from
  int64_t n_ctx_orig = 0;             // what the factors refer to
  double rotated_share = 1.0;         // of a head's dimensions
};

struct ModelConfig {
  ModelConfig(const JsonObject& whole, const ConfigDefaults& defaults);

  JsonObject whole, text;  // the file, and the text model's part of it
  int64_t n_vocab, n_ctx, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff;
  bool has_head_dim;                         // said, not computed
  int64_t n_expert = 0, n_expert_used = 0;   // 0: dense
  int64_t n_ff_expert = 0, n_ff_shared = 0;  // where experts have a width of their own
  double norm_eps;
  bool tied;       // the output is the embedding table
  bool says_tied;  // the file says so, or says not
  RopeConfig rope;

  int64_t n_rot() const { return static_cast<int64_t>(rope.rotated_share * static_cast<double>(head_dim)); }
};

// The class that the model is for: architectures[0].
std::string model_class(const JsonObject& config);

}  // namespace tandem::tools
