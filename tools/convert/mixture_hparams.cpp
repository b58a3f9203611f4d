// Hyperparameters of mixtures of experts, beyond those that all share.
#include "tools/convert/family_hparams.h"

#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace tandem::tools::hparams {
namespace {

void qwen_moe(const ModelConfig& c, HparamWriter& out, bool normalizes) {
  qwen(c, out);
  out.integer("expert_feed_forward_length", c.n_ff_expert > 0 ? c.n_ff_expert : c.n_ff);
  if (c.text.optional_integer("decoder_sparse_step", 1, INT32_MAX).value_or(1) != 1) {
    c.text.fail("decoder_sparse_step", short_json(*c.text.find("decoder_sparse_step")),
                "1: experts in every layer");
  }
  const auto dense = c.text.numbers("mlp_only_layers");
  if (dense && !dense->empty()) c.text.fail("mlp_only_layers", "layers", "none: experts in every layer");
  if (c.text.boolean("norm_topk_prob").value_or(false) == normalizes) return;
  c.text.fail("norm_topk_prob", normalizes ? "false" : "true",
              std::string(normalizes ? "true" : "false") + ", which readers of GGUF assume");
}

}  // namespace

void qwen2_moe(const ModelConfig& c, HparamWriter& out) {
  qwen_moe(c, out, false);
  out.integer("expert_shared_feed_forward_length", c.n_ff_shared);
}
void qwen3_moe(const ModelConfig& c, HparamWriter& out) {
  qwen_moe(c, out, true);
}

void qwen3_vl_moe(const ModelConfig& c, HparamWriter& out) {
  qwen3_moe(c, out);
  add_sections(c, out);
}

void gpt_oss(const ModelConfig& c, HparamWriter& out) {
  head_sizes(c, out);
  add_rope(c, out);
  window(c, out);
  out.integer("expert_feed_forward_length", c.n_ff);
}

void mixture(const ModelConfig& c, HparamWriter& out, Scoring scoring) {
  out.integer("expert_feed_forward_length", c.n_ff_expert > 0 ? c.n_ff_expert : c.n_ff);
  out.integer("expert_gating_func", static_cast<int64_t>(scoring));
  out.flag("expert_weights_norm", c.text.boolean("norm_topk_prob").value_or(true));
  if (const auto scale = c.text.optional_number("routed_scaling_factor"))
    out.number("expert_weights_scale", *scale);
  if (c.n_shared_experts > 0) {
    out.integer("expert_shared_count", c.n_shared_experts);
    out.integer("expert_shared_feed_forward_length", c.n_ff_shared);
  }
  if (c.n_dense_layers > 0) out.integer("leading_dense_block_count", c.n_dense_layers);
  const int64_t n_group = c.text.optional_integer("n_group", 1, c.n_expert).value_or(1);
  if (n_group > 1) {
    if (c.n_expert % n_group != 0) {
      c.text.fail("n_group", std::to_string(n_group), format("a divisor of the {} experts", c.n_expert));
    }
    out.integer("expert_group_count", n_group);
    out.integer("expert_group_used_count", c.text.integer("topk_group", 1, n_group));
  }
}

void partial_rotation(const ModelConfig& c, HparamWriter& out) {
  head_sizes(c, out);
  out.integer("rope.dimension_count", c.n_rot());
  add_rope(c, out);
}

void glm4_moe(const ModelConfig& c, HparamWriter& out) {
  partial_rotation(c, out);
  mixture(c, out, Scoring::sigmoid);
}

// Older files have rotary_dim instead of a fraction.
void minimax_m2(const ModelConfig& c, HparamWriter& out) {
  partial_rotation(c, out);
  if (const auto n = c.text.optional_integer("rotary_dim", 2, c.head_dim))
    out.integer("rope.dimension_count", *n);
  mixture(c, out, Scoring::sigmoid);
}

void ernie4_5_moe(const ModelConfig& c, HparamWriter& out) {
  if (c.has_head_dim) head_sizes(c, out);
  add_rope(c, out);
  mixture(c, out, Scoring::softmax);
  out.integer("interleave_moe_layer_step", c.mixture_period);  // llama.cpp needs it even if it is 1
  const auto last = c.text.optional_integer("moe_layer_end_index", -1, INT32_MAX);
  if (last && *last >= 0 && *last < c.n_layer - 1) {
    c.text.fail("moe_layer_end_index", std::to_string(*last), "the last layer, as readers of GGUF assume");
  }
}

// "dynamic" scaling with a fixed alpha is another base (NTK-aware scaling).
void hunyuan_moe(const ModelConfig& c, HparamWriter& out) {
  head_sizes(c, out);
  mixture(c, out, Scoring::softmax);
  if (c.rope.type != "dynamic" || !c.rope.scaling->has("alpha")) return add_rope(c, out);
  const double alpha = c.rope.scaling->number("alpha");
  if (!(alpha > 0.0)) c.rope.scaling->fail("alpha", std::to_string(alpha), "a number above 0");
  const auto dim = static_cast<double>(c.head_dim);
  out.number("rope.freq_base", c.rope.theta * std::pow(alpha, dim / (dim - 2)));
}
namespace {

// Requires dense layers before all mixtures, which readers of GGUF assume.
void check_mixture_pattern(const ModelConfig& c) {
  const auto kinds = c.text.texts("mlp_layer_types");
  for (size_t i = 0; kinds && i < kinds->size(); ++i) {
    if (((*kinds)[i] == "sparse") == c.has_experts(static_cast<int64_t>(i))) continue;
    c.text.fail("mlp_layer_types", short_json(*c.text.find("mlp_layer_types")),
                "dense layers before all others, as first_k_dense_replace says");
  }
}

}  // namespace

void exaone_moe(const ModelConfig& c, HparamWriter& out) {
  check_window_pattern(c, 4);
  head_sizes(c, out);
  add_rope(c, out);
  window(c, out);
  mixture(c, out, Scoring::sigmoid);
  check_mixture_pattern(c);
}
namespace {

// Key and value lengths are those of the cached rows, which all heads share; those of a head have names of their
// own.
void latent_attention(const ModelConfig& c, HparamWriter& out) {
  if (c.latent.rank == 0) c.text.fail("kv_lora_rank", "nothing", "the rank of the cached rows");
  if (!c.text.boolean("rope_interleave").value_or(true)) {
    c.text.fail("rope_interleave", "false", "true: neighbors are rotated together");
  }
  out.integer("attention.head_count_kv", 1);
  if (c.latent.q_rank > 0) out.integer("attention.q_lora_rank", c.latent.q_rank);
  out.integer("attention.kv_lora_rank", c.latent.rank);
  out.integer("attention.key_length", c.latent.rank + c.latent.n_rot);
  out.integer("attention.value_length", c.latent.rank);
  out.integer("attention.key_length_mla", c.latent.key);
  out.integer("attention.value_length_mla", c.latent.value);
  out.integer("rope.dimension_count", c.latent.n_rot);
  add_rope(c, out);
}

void deepseek(const ModelConfig& c, HparamWriter& out, Scoring usual, bool normalizes) {
  latent_attention(c, out);
  const std::string scoring =
      c.text.text("scoring_func").value_or(usual == Scoring::softmax ? "softmax" : "sigmoid");
  if (scoring != "softmax" && scoring != "sigmoid") {
    c.text.fail("scoring_func", "\"" + scoring + "\"", "softmax or sigmoid");
  }
  mixture(c, out, scoring == "softmax" ? Scoring::softmax : Scoring::sigmoid);
  out.flag("expert_weights_norm", c.text.boolean("norm_topk_prob").value_or(normalizes));
  check_mixture_pattern(c);
  const std::string method = c.text.text("topk_method").value_or("");
  const int64_t n_group = c.text.optional_integer("n_group", 1, c.n_expert).value_or(1);
  if (method == "greedy" && n_group > 1) {
    out.integer("expert_group_used_count", n_group);  // all of them
  } else if (!method.empty() && method != "greedy" && method != "group_limited_greedy" &&
             method != "noaux_tc") {
    c.text.fail("topk_method", "\"" + method + "\"", "greedy, group_limited_greedy or noaux_tc");
  }
}

}  // namespace

void deepseek_v2(const ModelConfig& c, HparamWriter& out) {
  deepseek(c, out, Scoring::softmax, false);
}
void deepseek_v3(const ModelConfig& c, HparamWriter& out) {
  deepseek(c, out, Scoring::sigmoid, true);
}

void bailing_moe2(const ModelConfig& c, HparamWriter& out) {
  partial_rotation(c, out);
  mixture(c, out, Scoring::sigmoid);
}

}  // namespace tandem::tools::hparams
