#include "tools/convert/architectures.h"

#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace tandem::tools {
namespace {

using Rules = std::vector<TensorRule>;
using L = Layout;
using S = Size;

Rules join(std::initializer_list<Rules> parts) {
  Rules all;
  for (const Rules& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// ---- Tensors shared by many architectures.

// `norm`: plain, or plus_one for Gemma.
Rules ends(L norm = L::plain) {
  return {{"model.embed_tokens.weight", "token_embd.weight", S::vocab, S::embd},
          {"model.norm.weight", "output_norm.weight", S::embd, S::none, norm},
          {"lm_head.weight", "output.weight", S::vocab, S::embd}};
}

Rules norms_before(L norm = L::plain) {
  return {{"model.layers.{}.input_layernorm.weight", "attn_norm.weight", S::embd, S::none, norm},
          {"model.layers.{}.post_attention_layernorm.weight", "ffn_norm.weight", S::embd, S::none, norm}};
}

// `rotation`: rope_rows for architectures that rotate pairs, plain for those that rotate halves.
Rules attention(L rotation) {
  return {{"model.layers.{}.self_attn.q_proj.weight", "attn_q.weight", S::q, S::embd, rotation},
          {"model.layers.{}.self_attn.k_proj.weight", "attn_k.weight", S::kv, S::embd, rotation},
          {"model.layers.{}.self_attn.v_proj.weight", "attn_v.weight", S::kv, S::embd},
          {"model.layers.{}.self_attn.o_proj.weight", "attn_output.weight", S::embd, S::q},
          {"model.layers.{}.self_attn.q_proj.bias", "attn_q.bias", S::q, S::none, rotation, false},
          {"model.layers.{}.self_attn.k_proj.bias", "attn_k.bias", S::kv, S::none, rotation, false},
          {"model.layers.{}.self_attn.v_proj.bias", "attn_v.bias", S::kv, S::none, L::plain, false},
          {"model.layers.{}.self_attn.o_proj.bias", "attn_output.bias", S::embd, S::none, L::plain, false}};
}

Rules head_norms(S q, S k, L norm = L::plain) {
  return {{"model.layers.{}.self_attn.q_norm.weight", "attn_q_norm.weight", q, S::none, norm},
          {"model.layers.{}.self_attn.k_norm.weight", "attn_k_norm.weight", k, S::none, norm}};
}

Rules gated_mlp() {
  return {{"model.layers.{}.mlp.gate_proj.weight", "ffn_gate.weight", S::ff, S::embd},
          {"model.layers.{}.mlp.up_proj.weight", "ffn_up.weight", S::ff, S::embd},
          {"model.layers.{}.mlp.down_proj.weight", "ffn_down.weight", S::embd, S::ff},
          {"model.layers.{}.mlp.gate_proj.bias", "ffn_gate.bias", S::ff, S::none, L::plain, false},
          {"model.layers.{}.mlp.up_proj.bias", "ffn_up.bias", S::ff, S::none, L::plain, false},
          {"model.layers.{}.mlp.down_proj.bias", "ffn_down.bias", S::embd, S::none, L::plain, false}};
}

Rules mixtral_experts() {
  return {{"model.layers.{}.block_sparse_moe.gate.weight", "ffn_gate_inp.weight", S::expert, S::embd},
          {"model.layers.{}.block_sparse_moe.experts.{e}.w1.weight", "ffn_gate_exps.weight", S::ff, S::embd,
           L::stacked},
          {"model.layers.{}.block_sparse_moe.experts.{e}.w3.weight", "ffn_up_exps.weight", S::ff, S::embd,
           L::stacked},
          {"model.layers.{}.block_sparse_moe.experts.{e}.w2.weight", "ffn_down_exps.weight", S::embd, S::ff,
           L::stacked}};
}

Rules qwen_experts() {
  return {{"model.layers.{}.mlp.gate.weight", "ffn_gate_inp.weight", S::expert, S::embd},
          {"model.layers.{}.mlp.experts.{e}.gate_proj.weight", "ffn_gate_exps.weight", S::ff_expert, S::embd,
           L::stacked},
          {"model.layers.{}.mlp.experts.{e}.up_proj.weight", "ffn_up_exps.weight", S::ff_expert, S::embd,
           L::stacked},
          {"model.layers.{}.mlp.experts.{e}.down_proj.weight", "ffn_down_exps.weight", S::embd, S::ff_expert,
           L::stacked}};
}

Rules shared_expert() {
  return {
      {"model.layers.{}.mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", S::embd, S::none,
       L::row_of_one},
      {"model.layers.{}.mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", S::ff_shared, S::embd},
      {"model.layers.{}.mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", S::ff_shared, S::embd},
      {"model.layers.{}.mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", S::embd, S::ff_shared}};
}

// Norms before and after both branches of a layer; Gemma stores all of them minus one.
Rules gemma_norms() {
  return {
      {"model.layers.{}.input_layernorm.weight", "attn_norm.weight", S::embd, S::none, L::plus_one},
      {"model.layers.{}.post_attention_layernorm.weight", "post_attention_norm.weight", S::embd, S::none,
       L::plus_one},
      {"model.layers.{}.pre_feedforward_layernorm.weight", "ffn_norm.weight", S::embd, S::none, L::plus_one},
      {"model.layers.{}.post_feedforward_layernorm.weight", "post_ffw_norm.weight", S::embd, S::none,
       L::plus_one}};
}

Rules phi3_tensors() {
  return {{"model.layers.{}.self_attn.qkv_proj.weight", "attn_qkv.weight", S::qkv, S::embd},
          {"model.layers.{}.self_attn.o_proj.weight", "attn_output.weight", S::embd, S::q},
          {"model.layers.{}.mlp.gate_up_proj.weight", "ffn_up.weight", S::two_ff, S::embd},
          {"model.layers.{}.mlp.down_proj.weight", "ffn_down.weight", S::embd, S::ff}};
}

Rules olmo2_norms() {
  return {{"model.layers.{}.post_attention_layernorm.weight", "post_attention_norm.weight", S::embd},
          {"model.layers.{}.post_feedforward_layernorm.weight", "post_ffw_norm.weight", S::embd}};
}

// Gate and up are interleaved by rows. The published files have MXFP4 blocks, fine-tuned ones floats.
Rules gpt_oss_tensors() {
  return {
      {"model.layers.{}.input_layernorm.weight", "attn_norm.weight", S::embd},
      {"model.layers.{}.post_attention_layernorm.weight", "post_attention_norm.weight", S::embd},
      {"model.layers.{}.self_attn.sinks", "attn_sinks.weight", S::head},
      {"model.layers.{}.mlp.router.weight", "ffn_gate_inp.weight", S::expert, S::embd},
      {"model.layers.{}.mlp.router.bias", "ffn_gate_inp.bias", S::expert},
      {"model.layers.{}.mlp.experts.gate_up_proj", "ffn_gate_exps.weight", S::ff, S::embd, L::mxfp4_even},
      {"model.layers.{}.mlp.experts.gate_up_proj", "ffn_up_exps.weight", S::ff, S::embd, L::mxfp4_odd},
      {"model.layers.{}.mlp.experts.down_proj", "ffn_down_exps.weight", S::embd, S::ff, L::mxfp4},
      {"model.layers.{}.mlp.experts.gate_up_proj", "ffn_gate_exps.weight", S::ff, S::embd,
       L::transposed_even},
      {"model.layers.{}.mlp.experts.gate_up_proj", "ffn_up_exps.weight", S::ff, S::embd, L::transposed_odd},
      {"model.layers.{}.mlp.experts.down_proj", "ffn_down_exps.weight", S::embd, S::ff, L::transposed},
      {"model.layers.{}.mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", S::ff, S::none, L::even_bias},
      {"model.layers.{}.mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias", S::ff, S::none, L::odd_bias},
      {"model.layers.{}.mlp.experts.down_proj_bias", "ffn_down_exps.bias", S::embd, S::none, L::expert_bias}};
}

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
    if (((*types)[i] == "full_attention") == ((static_cast<int64_t>(i) + 1) % period == 0)) continue;
    c.text.fail("layer_types", short_json(*c.text.find("layer_types")),
                "full attention in every " + std::to_string(period) + "th layer");
  }
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
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
  const Rules llama_layers = join({ends(), norms_before(), attention(L::rope_rows)});
  const Rules qwen_layers = join({ends(), norms_before(), attention(L::plain)});
  const Rules qk_norms = head_norms(S::head_dim, S::head_dim);
  const Rules olmo_layers =
      join({ends(), attention(L::plain), head_norms(S::q, S::kv), olmo2_norms(), gated_mlp()});
  const Rules gemma_layers = join({ends(L::plus_one), gemma_norms(), attention(L::plain), gated_mlp()});
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
    if (lists_name(entry.classes, name)) return entry;
    known += (known.empty() ? "" : " ") + std::string(entry.classes);
  }
  config.fail("architectures", "\"" + printable(name) + "\"", "one of the supported: " + known);
}

void add_hparams(const ConvertArchitecture& architecture, const ModelConfig& c, Metadata& metadata,
                 std::vector<TensorMapping>& extra) {
  HparamWriter out(architecture.name, metadata, extra);
  out.integer("vocab_size", c.n_vocab);
  out.integer("context_length", c.n_ctx);
  out.integer("embedding_length", c.n_embd);
  out.integer("block_count", c.n_layer);
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
