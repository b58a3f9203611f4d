// Gemma 4: its hyperparameters and tensors. Of the models with vision and audio, the text part.
#include "tools/convert/architectures.h"
#include "tools/convert/tensor_rules.h"

namespace tandem::tools {
namespace {

// Rotations of full attention: only the fastest pairs turn, the others are divided by a very large number.
void add_full_rotation(const ModelConfig& c, HparamWriter& out) {
  constexpr float kStill = 1e30f;
  out.number("rope.freq_base", c.rope.theta);
  const bool proportional = c.rope.type == "proportional";
  if (!proportional && c.rope.type != "default") {
    c.rope.scaling->fail("rope_type", "\"" + c.rope.type + "\"", "proportional or default");
  }
  const double factor = proportional ? c.rope.scaling->optional_number("factor").value_or(1.0) : 1.0;
  if (!(factor > 0.0)) c.rope.scaling->fail("factor", std::to_string(factor), "a number above 0");
  const double share = proportional ? c.rope.rotated_share : 1.0;
  const auto n_pairs = static_cast<size_t>(c.mixed.head_dim_full / 2);
  const auto n_turning = static_cast<size_t>(share * static_cast<double>(c.mixed.head_dim_full)) / 2;
  std::vector<float> divisors(n_pairs, kStill);
  for (size_t i = 0; i < n_turning; ++i) divisors[i] = static_cast<float>(factor);
  out.tensor("rope_freqs.weight", std::move(divisors));
}

// Each value has an array if layers differ, as readers of GGUF expect.
void add_layer_sizes(const ModelConfig& c, HparamWriter& out) {
  std::vector<int32_t> n_head_kv, n_ff;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    n_head_kv.push_back(static_cast<int32_t>(c.n_head_kv_of(i)));
    n_ff.push_back(static_cast<int32_t>(c.n_ff_of(i)));
  }
  out.integers("attention.head_count_kv", n_head_kv);
  if (c.mixed.wide_shared) out.integers("feed_forward_length", n_ff);
}

}  // namespace

void add_gemma4(const ModelConfig& c, HparamWriter& out) {
  if (c.text.text("use_bidirectional_attention").value_or("") == "all") {
    c.text.fail("use_bidirectional_attention", "\"all\"", "tokens that attend to earlier ones only");
  }
  if (c.layer_inputs.width > 0 && c.layer_inputs.n_vocab != c.n_vocab) {
    c.text.fail("vocab_size_per_layer_input", std::to_string(c.layer_inputs.n_vocab),
                "vocab_size, " + std::to_string(c.n_vocab));
  }
  out.integer("attention.key_length", c.mixed.head_dim_full);
  out.integer("attention.value_length", c.mixed.head_dim_full);
  out.integer("attention.key_length_swa", c.head_dim);
  out.integer("attention.value_length_swa", c.head_dim);
  out.integer("rope.dimension_count", c.mixed.head_dim_full);
  out.integer("rope.dimension_count_swa", c.head_dim);
  out.number("rope.freq_base_swa", c.rope.theta_local.value_or(10000.0));
  add_full_rotation(c, out);
  add_layer_sizes(c, out);
  out.integer("attention.sliding_window",
              c.text.optional_integer("sliding_window", 1, INT32_MAX).value_or(512));
  out.flags("attention.sliding_window_pattern", c.mixed.slides);
  out.integer("attention.shared_kv_layers", c.mixed.n_shared);
  out.integer("embedding_length_per_layer_input", c.layer_inputs.width);
  if (const auto cap = c.text.optional_number("final_logit_softcapping"))
    out.number("final_logit_softcapping", *cap);
  if (c.n_expert > 0) {
    if (c.n_ff_expert == 0) c.text.fail("moe_intermediate_size", "nothing", "the width of an expert");
    out.integer("expert_feed_forward_length", c.n_ff_expert);
  }
}

namespace tensors {
namespace {

using L = Layout;
using S = Size;

TensorRules attention_tensors() {
  return join({{{"model.layers.{}.self_attn.q_proj.weight", "attn_q.weight", S::q, S::embd},
                {"model.layers.{}.self_attn.o_proj.weight", "attn_output.weight", S::embd, S::q},
                {"model.layers.{}.self_attn.q_norm.weight", "attn_q_norm.weight", S::head_dim}},
               in(Layers::own_cache,
                  {{"model.layers.{}.self_attn.k_proj.weight", "attn_k.weight", S::kv, S::embd},
                   {"model.layers.{}.self_attn.k_norm.weight", "attn_k_norm.weight", S::head_dim}}),
               in(Layers::own_values,
                  {{"model.layers.{}.self_attn.v_proj.weight", "attn_v.weight", S::kv, S::embd}})});
}

// The router's vector and the experts' scales are the readers' business; gate and up of an expert are one matrix.
TensorRules mixture_tensors() {
  return in(
      Layers::mixture,
      {{"model.layers.{}.router.proj.weight", "ffn_gate_inp.weight", S::expert, S::embd},
       {"model.layers.{}.router.scale", "ffn_gate_inp.scale", S::embd},
       {"model.layers.{}.router.per_expert_scale", "ffn_down_exps.scale", S::expert},
       {"model.layers.{}.pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", S::embd},
       {"model.layers.{}.post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", S::embd},
       {"model.layers.{}.post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", S::embd},
       {"model.layers.{}.experts.gate_up_proj", "ffn_gate_up_exps.weight", S::two_ff_expert, S::embd,
        L::expert_rows},
       {"model.layers.{}.experts.down_proj", "ffn_down_exps.weight", S::embd, S::ff_expert, L::expert_rows}});
}

TensorRules layer_input_tensors() {
  return in(
      Layers::with_input,
      {{"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", S::layer_input_vocab,
        S::layer_inputs},
       {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight", S::layer_inputs, S::embd},
       {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight", S::layer_input},
       {"model.layers.{}.per_layer_input_gate.weight", "inp_gate.weight", S::layer_input, S::embd},
       {"model.layers.{}.per_layer_projection.weight", "proj.weight", S::embd, S::layer_input},
       {"model.layers.{}.post_per_layer_input_norm.weight", "post_norm.weight", S::embd}});
}

}  // namespace

TensorRules gemma4_tensors() {
  return join({ends(),
               {{"model.layers.{}.input_layernorm.weight", "attn_norm.weight", S::embd},
                {"model.layers.{}.post_attention_layernorm.weight", "post_attention_norm.weight", S::embd},
                {"model.layers.{}.pre_feedforward_layernorm.weight", "ffn_norm.weight", S::embd},
                {"model.layers.{}.post_feedforward_layernorm.weight", "post_ffw_norm.weight", S::embd},
                {"model.layers.{}.layer_scalar", "layer_output_scale.weight", S::one}},
               attention_tensors(),
               gated_mlp(),
               mixture_tensors(),
               layer_input_tensors()});
}

}  // namespace tensors
}  // namespace tandem::tools
