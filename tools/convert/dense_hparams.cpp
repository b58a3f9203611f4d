// Hyperparameters of families without experts, beyond those that all share.
#include "tools/convert/family_hparams.h"

#include <cmath>

#include "base/log.h"
#include "base/text.h"

namespace tandem::tools::hparams {

void head_sizes(const ModelConfig& c, HparamWriter& out) {
  out.integer("attention.key_length", c.head_dim);
  out.integer("attention.value_length", c.head_dim);
}

void window(const ModelConfig& c, HparamWriter& out) {
  if (const auto n = c.text.optional_integer("sliding_window", 1, INT32_MAX))
    out.integer("attention.sliding_window", *n);
}

void llama(const ModelConfig& c, HparamWriter& out) {
  out.integer("rope.dimension_count", c.n_rot());
  if (c.has_head_dim) head_sizes(c, out);
  add_rope(c, out);
  const auto n = c.text.optional_integer("sliding_window", 0, INT32_MAX);
  if (n && *n > 0 && *n < c.n_ctx) {
    log_warning("{}: sliding_window {} is dropped: every token attends to all before it", c.text.source(),
                *n);
  }
}

void mistral3(const ModelConfig& c, HparamWriter& out) {
  llama(c, out);
  if (!c.rope.scaling) return;
  if (const auto mul = c.rope.scaling->optional_number("mscale_all_dim"))
    out.number("rope.scaling.yarn_log_multiplier", *mul);
  if (const auto beta = c.rope.scaling->optional_number("llama_4_scaling_beta"))
    out.number("attention.temperature_scale", *beta);
}

void granite(const ModelConfig& c, HparamWriter& out) {
  llama(c, out);
  out.number("attention.scale", c.text.number("attention_multiplier"));
  out.number("embedding_scale", c.text.number("embedding_multiplier"));
  out.number("residual_scale", c.text.number("residual_multiplier"));
  out.number("logit_scale", c.text.number("logits_scaling"));
}

// Layers without rotation: GGUF has no key for them, readers assume every fourth.
void smollm3(const ModelConfig& c, HparamWriter& out) {
  const auto rotated = c.text.numbers("no_rope_layers");  // despite the name, 1 means rotated
  for (size_t i = 0; rotated && i < rotated->size(); ++i) {
    if (((*rotated)[i] != 0) == (i % 4 != 3)) continue;
    c.text.fail("no_rope_layers", short_json(*c.text.find("no_rope_layers")),
                "every fourth layer without rotation");
  }
  llama(c, out);
}

void qwen(const ModelConfig& c, HparamWriter& out) {
  if (c.has_head_dim) head_sizes(c, out);
  add_rope(c, out);
}

void add_sections(const ModelConfig& c, HparamWriter& out) {
  std::vector<int32_t> sections;
  const auto given = c.rope.scaling ? c.rope.scaling->numbers("mrope_section") : std::nullopt;
  if (given && given->size() == 3) sections.assign(given->begin(), given->end());
  if (sections.empty()) return;
  sections.push_back(0);
  out.integers("rope.dimension_sections", sections);
}

void qwen3_vl(const ModelConfig& c, HparamWriter& out) {
  qwen(c, out);
  add_sections(c, out);
}
namespace {

// The square root of this value divides the scores, if it differs from the head size.
void query_scale(const ModelConfig& c, HparamWriter& out) {
  const auto scalar = c.text.optional_number("query_pre_attn_scalar");
  if (scalar && *scalar > 0 && *scalar != static_cast<double>(c.head_dim)) {
    out.number("attention.scale", 1.0 / std::sqrt(*scalar));
  }
}

}  // namespace

void gemma2(const ModelConfig& c, HparamWriter& out) {
  head_sizes(c, out);
  add_rope(c, out);
  window(c, out);
  query_scale(c, out);
  if (const auto cap = c.text.optional_number("attn_logit_softcapping"))
    out.number("attn_logit_softcapping", *cap);
  if (const auto cap = c.text.optional_number("final_logit_softcapping"))
    out.number("final_logit_softcapping", *cap);
}

void check_window_pattern(const ModelConfig& c, int64_t period) {
  const auto types = c.text.texts("layer_types");
  for (size_t i = 0; types && i < types->size(); ++i) {
    const bool full = (static_cast<int64_t>(i) + 1) % period == 0;
    if ((*types)[i] == (full ? "full_attention" : "sliding_attention")) continue;
    c.text.fail("layer_types", short_json(*c.text.find("layer_types")),
                "full attention in every " + std::to_string(period) + "th layer");
  }
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    const Json* value = c.text.find(key);
    if (value && value->is_string()) {  // a letter for each layer of a period, L or G
      const std::string usual = std::string(static_cast<size_t>(period - 1), 'L') + "G";
      if (*value != usual && !types) c.text.fail(key, short_json(*value), usual);
      continue;
    }
    const auto n = c.text.optional_integer(key, 0, INT32_MAX);
    if (n && *n != period && !types) c.text.fail(key, std::to_string(*n), std::to_string(period));
  }
}

void gemma3(const ModelConfig& c, HparamWriter& out) {
  check_window_pattern(c, 6);
  gemma2(c, out);
  out.number("rope.freq_base_swa", c.rope.theta_local.value_or(10000.0));
}

void phi3(const ModelConfig& c, HparamWriter& out) {
  out.integer("rope.dimension_count", c.n_rot());
  out.integer("attention.sliding_window",
              c.text.optional_integer("sliding_window", 0, INT32_MAX).value_or(0));
  add_longrope(c, out);
}

void olmo2(const ModelConfig& c, HparamWriter& out) {
  add_rope(c, out);
}

void olmo3(const ModelConfig& c, HparamWriter& out) {
  check_window_pattern(c, 4);
  olmo2(c, out);
  window(c, out);
}

void seed_oss(const ModelConfig& c, HparamWriter& out) {
  head_sizes(c, out);
  add_rope(c, out);
}

}  // namespace tandem::tools::hparams
