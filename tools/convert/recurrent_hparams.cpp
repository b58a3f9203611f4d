// Hyperparameters of families with recurrent layers, beyond those that all share.
#include "tools/convert/family_hparams.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace tandem::tools::hparams {
namespace {

void delta_net_sizes(const ModelConfig& c, HparamWriter& out) {
  const DeltaNetConfig& d = c.delta_net;
  if (d.attention_interval == 0) c.text.fail("linear_num_value_heads", "nothing", "a number of heads");
  out.integer("ssm.conv_kernel", c.n_conv);
  out.integer("ssm.state_size", d.head_dim_k);
  out.integer("ssm.group_count", d.n_head_k);
  out.integer("ssm.time_step_rank", d.n_head_v);
  out.integer("ssm.inner_size", d.n_v());
  out.integer("full_attention_interval", d.attention_interval);
  out.integer("rope.dimension_count", c.n_rot());
}

}  // namespace

void qwen3_next(const ModelConfig& c, HparamWriter& out) {
  qwen3_moe(c, out);
  out.integer("expert_shared_feed_forward_length", c.n_ff_shared);
  delta_net_sizes(c, out);
}

void qwen35(const ModelConfig& c, HparamWriter& out) {
  head_sizes(c, out);
  add_rope(c, out);
  add_sections(c, out);
  delta_net_sizes(c, out);
}

void qwen35_moe(const ModelConfig& c, HparamWriter& out) {
  qwen35(c, out);
  out.integer("expert_feed_forward_length", c.n_ff_expert);
  out.integer("expert_shared_feed_forward_length", c.n_ff_shared);
}
namespace {

// Layers without attention have no keys and values.
void kv_heads_of_layers(const ModelConfig& c, HparamWriter& out) {
  std::vector<int32_t> counts;
  for (const LayerKind kind : c.kinds)
    counts.push_back(kind == LayerKind::attention ? static_cast<int32_t>(c.n_head_kv) : 0);
  out.integers("attention.head_count_kv", counts);
}

}  // namespace

void lfm2(const ModelConfig& c, HparamWriter& out) {
  if (c.kinds.empty()) c.text.fail("conv_L_cache", "nothing", "the width of the convolutions");
  kv_heads_of_layers(c, out);
  out.integer("shortconv.l_cache", c.n_conv);
  add_rope(c, out);
}

void lfm2_moe(const ModelConfig& c, HparamWriter& out) {
  lfm2(c, out);
  mixture(c, out, Scoring::sigmoid);
}
namespace {

void ssm_sizes(const ModelConfig& c, HparamWriter& out) {
  out.integer("ssm.conv_kernel", c.n_conv);
  out.integer("ssm.state_size", c.ssm.n_state);
  out.integer("ssm.group_count", c.ssm.n_group);
  out.integer("ssm.inner_size", c.ssm.n_inner());
  out.integer("ssm.time_step_rank", c.ssm.n_head);
  kv_heads_of_layers(c, out);
}

}  // namespace

bool has_recurrent_layers(const JsonObject& config) {
  return std::ranges::count(read_layer_kinds(config), LayerKind::recurrent) > 0;
}
namespace {

// Without experts, the width of the feed-forward part is that of the shared one.
void granite_shared(const ModelConfig& c, HparamWriter& out) {
  granite(c, out);
  if (c.n_expert > 0) {
    out.integer("expert_shared_feed_forward_length", c.n_ff_shared);
  } else if (c.n_ff_shared != c.n_ff) {
    c.text.fail("shared_intermediate_size", std::to_string(c.n_ff_shared),
                format("intermediate_size, {}, in a model without experts", c.n_ff));
  }
}

}  // namespace

void granite_hybrid(const ModelConfig& c, HparamWriter& out) {
  granite_shared(c, out);
  ssm_sizes(c, out);
  const std::string positions = c.text.text("position_embedding_type").value_or("nope");
  if (positions != "rope" && positions != "nope")
    c.text.fail("position_embedding_type", "\"" + positions + "\"", "rope or nope");
  out.flag("rope.scaling.finetuned", positions == "rope");  // the key by which readers know
}

void granite_without_mamba(const ModelConfig& c, HparamWriter& out) {
  granite_shared(c, out);
  const std::string positions = c.text.text("position_embedding_type").value_or("nope");
  if (positions != "rope")
    c.text.fail("position_embedding_type", "\"" + positions + "\"", "rope in all these layers");
}

bool is_granite_without_mamba(const JsonObject& config) {
  return !has_recurrent_layers(config) &&
         config.optional_integer("num_local_experts", 0, INT32_MAX).value_or(0) == 0;
}

void nemotron_h(const ModelConfig& c, HparamWriter& out) {
  head_sizes(c, out);
  ssm_sizes(c, out);
  const std::string activation = c.text.text("mlp_hidden_act").value_or("relu2");
  if (activation != "relu2") c.text.fail("mlp_hidden_act", "\"" + activation + "\"", "relu2");
  const int64_t width = c.n_expert > 0 ? c.n_ff_expert : c.n_ff;
  std::vector<int32_t> widths;
  for (int64_t i = 0; i < c.n_layer; ++i)
    widths.push_back(c.kind(i) == LayerKind::feed_forward ? static_cast<int32_t>(width) : 0);
  out.integers("feed_forward_length", widths);
  out.number("attention.layer_norm_epsilon", c.norm_eps);  // where llama.cpp looks for it
}

bool is_nemotron_dense(const JsonObject& config) {
  return !names_mixture(config);
}

void nemotron_h_moe(const ModelConfig& c, HparamWriter& out) {
  nemotron_h(c, out);
  mixture(c, out, Scoring::sigmoid);
  if (c.n_latent > 0) out.integer("moe_latent_size", c.n_latent);
  if (const auto pattern = c.text.text("hybrid_override_pattern");
      pattern && pattern->find('-') != std::string::npos)
    c.text.fail("hybrid_override_pattern", *pattern, "no layers of the kind - beside mixtures");
}

}  // namespace tandem::tools::hparams
