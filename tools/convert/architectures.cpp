#include "tools/convert/architectures.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "tools/convert/tensor_rules.h"

namespace tandem::tools {
namespace {

using namespace tensors;
using L = Layout;
using S = Size;

// ---- Hyperparameters beyond those all share.

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

void qwen2_moe(const ModelConfig& c, HparamWriter& out) {
  qwen_moe(c, out, false);
  out.integer("expert_shared_feed_forward_length", c.n_ff_shared);
}
void qwen3_moe(const ModelConfig& c, HparamWriter& out) {
  qwen_moe(c, out, true);
}

// Text has one position where pictures have three: the sections of rotations among them say nothing to it, but
// other readers ask for them.
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
void qwen3_vl_moe(const ModelConfig& c, HparamWriter& out) {
  qwen3_moe(c, out);
  add_sections(c, out);
}

// The square root of this value divides the scores, if it differs from the head size.
void query_scale(const ModelConfig& c, HparamWriter& out) {
  const auto scalar = c.text.optional_number("query_pre_attn_scalar");
  if (scalar && *scalar > 0 && *scalar != static_cast<double>(c.head_dim)) {
    out.number("attention.scale", 1.0 / std::sqrt(*scalar));
  }
}

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

// Requires a window in every layer but each `period`-th, which readers of GGUF assume.
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

void gpt_oss(const ModelConfig& c, HparamWriter& out) {
  head_sizes(c, out);
  add_rope(c, out);
  window(c, out);
  out.integer("expert_feed_forward_length", c.n_ff);
}

// How experts are chosen; expert_gating_func: 1 is softmax, 2 sigmoid.
enum class Scoring { softmax = 1, sigmoid = 2 };

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

void seed_oss(const ModelConfig& c, HparamWriter& out) {
  head_sizes(c, out);
  add_rope(c, out);
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

// Requires dense layers before all mixtures, which readers of GGUF assume.
void check_mixture_pattern(const ModelConfig& c) {
  const auto kinds = c.text.texts("mlp_layer_types");
  for (size_t i = 0; kinds && i < kinds->size(); ++i) {
    if (((*kinds)[i] == "sparse") == c.has_experts(static_cast<int64_t>(i))) continue;
    c.text.fail("mlp_layer_types", short_json(*c.text.find("mlp_layer_types")),
                "dense layers before all others, as first_k_dense_replace says");
  }
}

void exaone_moe(const ModelConfig& c, HparamWriter& out) {
  check_window_pattern(c, 4);
  head_sizes(c, out);
  add_rope(c, out);
  window(c, out);
  mixture(c, out, Scoring::sigmoid);
  check_mixture_pattern(c);
}

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

// Layers without attention have no keys and values.
void kv_heads_of_layers(const ModelConfig& c, HparamWriter& out) {
  std::vector<int32_t> counts;
  for (const LayerKind kind : c.kinds)
    counts.push_back(kind == LayerKind::attention ? static_cast<int32_t>(c.n_head_kv) : 0);
  out.integers("attention.head_count_kv", counts);
}

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

void ssm_sizes(const ModelConfig& c, HparamWriter& out) {
  out.integer("ssm.conv_kernel", c.n_conv);
  out.integer("ssm.state_size", c.ssm.n_state);
  out.integer("ssm.group_count", c.ssm.n_group);
  out.integer("ssm.inner_size", c.ssm.n_inner());
  out.integer("ssm.time_step_rank", c.ssm.n_head);
  kv_heads_of_layers(c, out);
}

bool has_recurrent_layers(const JsonObject& config) {
  return std::ranges::count(read_layer_kinds(config), LayerKind::recurrent) > 0;
}

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

void granite_hybrid(const ModelConfig& c, HparamWriter& out) {
  granite_shared(c, out);
  ssm_sizes(c, out);
  const std::string positions = c.text.text("position_embedding_type").value_or("nope");
  if (positions != "rope" && positions != "nope")
    c.text.fail("position_embedding_type", "\"" + printable(positions) + "\"", "rope or nope");
  out.flag("rope.scaling.finetuned", positions == "rope");  // the key by which readers know
}

void granite_without_mamba(const ModelConfig& c, HparamWriter& out) {
  granite_shared(c, out);
  const std::string positions = c.text.text("position_embedding_type").value_or("nope");
  if (positions != "rope")
    c.text.fail("position_embedding_type", "\"" + printable(positions) + "\"", "rope in all these layers");
}

bool is_granite_without_mamba(const JsonObject& config) {
  return !has_recurrent_layers(config) &&
         config.optional_integer("num_local_experts", 0, INT32_MAX).value_or(0) == 0;
}

void nemotron_h(const ModelConfig& c, HparamWriter& out) {
  head_sizes(c, out);
  ssm_sizes(c, out);
  const std::string activation = c.text.text("mlp_hidden_act").value_or("relu2");
  if (activation != "relu2") c.text.fail("mlp_hidden_act", "\"" + printable(activation) + "\"", "relu2");
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

// ---- The table.

std::vector<ConvertArchitecture> make_table() {
  const ConfigDefaults plain, gemma{.tied = true};
  const ConfigDefaults gemma3_defaults{.n_head = 8,
                                       .n_head_kv = 4,
                                       .head_dim = 256,
                                       .n_ctx = 131072,
                                       .n_vocab = 262208,
                                       .norm_eps = 1e-6,
                                       .rope_theta = 1e6,
                                       .tied = true};
  const ConfigDefaults gemma4_defaults{.n_head = 8,
                                       .n_head_kv = 4,
                                       .head_dim = 256,
                                       .n_ctx = 131072,
                                       .n_vocab = 262144,
                                       .norm_eps = 1e-6,
                                       .rope_theta = 1e6,
                                       .tied = true,
                                       .head_dim_full = 512};
  const TensorRules llama_layers = join({ends(), norms_before(), attention(L::rope_rows)});
  const TensorRules qwen_layers = join({ends(), norms_before(), attention(L::plain)});
  const TensorRules qk_norms = head_norms(S::head_dim, S::head_dim);
  const TensorRules olmo_layers =
      join({ends(), attention(L::plain), head_norms(S::q, S::kv), olmo2_norms(), gated_mlp()});
  const TensorRules gemma_layers = join({ends(L::plus_one), gemma_norms(), attention(L::plain), gated_mlp()});
  return {
      {"LlamaForCausalLM MistralForCausalLM MinistralForCausalLM", "llama", plain,
       join({llama_layers, gated_mlp()}), llama},
      {"MixtralForCausalLM", "llama", plain, join({llama_layers, mixtral_experts()}), llama},
      {"Mistral3ForConditionalGeneration Mistral3ForCausalLM Ministral3ForCausalLM", "mistral3", plain,
       join({llama_layers, gated_mlp()}), mistral3},
      {"GraniteForCausalLM", "granite", plain, join({llama_layers, gated_mlp()}), granite},
      {"SmolLM3ForCausalLM", "smollm3", plain, join({llama_layers, gated_mlp()}), smollm3},
      {"Qwen2ForCausalLM", "qwen2", plain, join({qwen_layers, gated_mlp()}), qwen},
      {"Qwen2MoeForCausalLM", "qwen2moe", plain, join({qwen_layers, qwen_experts(), shared_expert()}),
       qwen2_moe},
      {"Qwen3ForCausalLM", "qwen3", plain, join({qwen_layers, qk_norms, gated_mlp()}), qwen},
      {"Qwen3MoeForCausalLM", "qwen3moe", plain, join({qwen_layers, qk_norms, qwen_experts()}), qwen3_moe},
      {"Gemma2ForCausalLM", "gemma2", gemma, gemma_layers, gemma2},
      {"Gemma3ForCausalLM Gemma3ForConditionalGeneration", "gemma3", gemma3_defaults,
       join({gemma_layers, head_norms(S::head_dim, S::head_dim, L::plus_one)}), gemma3},
      {"Phi3ForCausalLM", "phi3", plain, join({ends(), norms_before(), phi3_tensors()}), phi3},
      {"Olmo2ForCausalLM", "olmo2", plain, olmo_layers, olmo2},
      {"Olmo3ForCausalLM", "olmo2", plain, olmo_layers, olmo3},
      {"Glm4MoeForCausalLM",
       "glm4moe",
       {.rotated_share = 0.5},
       join({ends(), attention(L::plain), glm4_moe_tensors()}),
       glm4_moe},
      {"MiniMaxM2ForCausalLM", "minimax-m2", plain, join({qwen_layers, minimax_m2_tensors()}), minimax_m2},
      {"Qwen3VLForConditionalGeneration", "qwen3vl", plain, join({qwen_layers, qk_norms, gated_mlp()}),
       qwen3_vl},
      {"Qwen3VLMoeForConditionalGeneration", "qwen3vlmoe", plain,
       join({qwen_layers, qk_norms, qwen3_vl_experts()}), qwen3_vl_moe},
      {"SeedOssForCausalLM", "seed_oss", plain,
       join({ends(), attention(L::plain), seed_oss_norms(), gated_mlp()}), seed_oss},
      {"Ernie4_5_MoeForCausalLM",
       "ernie4_5-moe",
       {.rope_theta = 5e5, .tied = true},
       join({qwen_layers, ernie4_5_moe_tensors()}),
       ernie4_5_moe},
      {"HunYuanMoEV1ForCausalLM", "hunyuan-moe", plain, join({qwen_layers, hunyuan_moe_tensors()}),
       hunyuan_moe},
      {"ExaoneMoEForCausalLM ExaoneMoeForCausalLM", "exaone-moe", plain,
       join({qwen_layers, exaone_moe_tensors()}), exaone_moe},
      {"BailingMoeV2ForCausalLM", "bailingmoe2", plain, bailing_moe2_tensors(), bailing_moe2},
      {"DeepseekV2ForCausalLM", "deepseek2", {.without_mtp = true}, deepseek_tensors(), deepseek_v2},
      {"DeepseekV3ForCausalLM Glm4MoeLiteForCausalLM",
       "deepseek2",
       {.without_mtp = true},
       deepseek_tensors(),
       deepseek_v3},
      {"Qwen3NextForCausalLM", "qwen3next", {.rotated_share = 0.25}, qwen3_next_tensors(), qwen3_next},
      {"Qwen3_5ForConditionalGeneration Qwen3_5ForCausalLM",
       "qwen35",
       {.rotated_share = 0.25},
       join({qwen35_tensors(), gated_mlp()}),
       qwen35},
      {"Qwen3_5MoeForConditionalGeneration Qwen3_5MoeForCausalLM",
       "qwen35moe",
       {.rotated_share = 0.25},
       join({qwen35_tensors(), qwen_experts(), qwen3_vl_experts(), shared_expert()}),
       qwen35_moe},
      {"Lfm2ForCausalLM LFM2ForCausalLM", "lfm2", {.rope_theta = 1e6, .tied = true}, lfm2_tensors(), lfm2},
      {"Lfm2MoeForCausalLM", "lfm2moe", {.rope_theta = 1e6, .tied = true}, lfm2_tensors(), lfm2_moe},
      {"GraniteMoeHybridForCausalLM", "granitehybrid", plain, granite_hybrid_tensors(), granite_hybrid,
       has_recurrent_layers},
      {"GraniteMoeHybridForCausalLM", "granite", plain, granite_hybrid_tensors(), granite_without_mamba,
       is_granite_without_mamba},
      {"NemotronHForCausalLM", "nemotron_h_moe", plain, nemotron_h_tensors(), nemotron_h_moe, names_mixture},
      {"NemotronHForCausalLM", "nemotron_h", plain, nemotron_h_tensors(), nemotron_h, is_nemotron_dense},
      {"Gemma4ForConditionalGeneration Gemma4ForCausalLM Gemma4UnifiedForConditionalGeneration", "gemma4",
       gemma4_defaults, gemma4_tensors(), add_gemma4},
      {"GptOssForCausalLM", "gpt-oss", plain, join({ends(), attention(L::plain), gpt_oss_tensors()}),
       gpt_oss},
  };
}

}  // namespace

void HparamWriter::tensor(const std::string& name, std::vector<float> values) {
  TensorMapping mapping;
  mapping.name = name;
  mapping.dims = {static_cast<int64_t>(values.size())};
  mapping.values = std::move(values);
  extra_.push_back(std::move(mapping));
}

std::span<const ConvertArchitecture> convert_architectures() {
  static const std::vector<ConvertArchitecture> table = make_table();
  return table;
}

const ConvertArchitecture& find_architecture(const JsonObject& config) {
  const std::string name = model_class(config);
  std::string known;
  for (const ConvertArchitecture& entry : convert_architectures()) {
    if (lists_name(entry.classes, name) && (!entry.fits || entry.fits(config))) return entry;
    if (!known.ends_with(entry.classes)) known += (known.empty() ? "" : " ") + std::string(entry.classes);
  }
  config.fail("architectures", "\"" + printable(name) + "\"", "one of the supported: " + known);
}

void add_hparams(const ConvertArchitecture& architecture, const ModelConfig& c, Metadata& metadata,
                 std::vector<TensorMapping>& extra) {
  HparamWriter out(architecture.name, metadata, extra);
  out.integer("vocab_size", c.n_vocab);
  out.integer("context_length", c.n_ctx);
  out.integer("embedding_length", c.n_embd);
  out.integer("block_count", c.n_layer + c.n_mtp_layers);
  if (c.n_mtp_layers > 0) out.integer("nextn_predict_layers", c.n_mtp_layers);
  out.integer("feed_forward_length", c.n_ff);
  out.integer("attention.head_count", c.n_head);
  out.integer("attention.head_count_kv", c.n_head_kv);
  out.number("attention.layer_norm_rms_epsilon", c.norm_eps);
  if (c.n_expert > 0) {
    out.integer("expert_count", c.n_expert);
    out.integer("expert_used_count", c.n_expert_used);
  }
  architecture.add_hparams(c, out);
}

}  // namespace tandem::tools
