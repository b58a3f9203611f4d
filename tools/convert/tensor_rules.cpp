#include "tools/convert/tensor_rules.h"

namespace tandem::tools::tensors {
namespace {

using L = Layout;
using S = Size;

TensorRules shared_experts_named(const char* gate, const char* up, const char* down) {
  return {{gate, "ffn_gate_shexp.weight", S::ff_shared, S::embd},
          {up, "ffn_up_shexp.weight", S::ff_shared, S::embd},
          {down, "ffn_down_shexp.weight", S::embd, S::ff_shared}};
}

TensorRules plus_one_norms() {
  return {{"model.layers.{}.input_layernorm.weight", "attn_norm.weight", S::embd, S::none, L::plus_one},
          {"model.layers.{}.post_attention_layernorm.weight", "post_attention_norm.weight", S::embd, S::none,
           L::plus_one}};
}

// Mamba-2's tensors, in this order: in_proj, conv1d.weight and .bias, dt_bias, A_log, D, norm, out_proj.
TensorRules mamba2(const char* const (&names)[8]) {
  return in(Layers::recurrent, {{names[0], "ssm_in.weight", S::ssm_in, S::embd},
                                {names[1], "ssm_conv1d.weight", S::ssm_xbc, S::one, L::conv},
                                {names[2], "ssm_conv1d.bias", S::ssm_xbc, S::none, L::plain, false},
                                {names[3], "ssm_dt.bias", S::ssm_head},
                                {names[4], "ssm_a", S::ssm_head, S::one, L::folded_minus_exp},
                                {names[5], "ssm_d", S::ssm_head, S::one, L::folded},
                                {names[6], "ssm_norm.weight", S::ssm_group, S::ssm_group_width, L::folded},
                                {names[7], "ssm_out.weight", S::embd, S::ssm_inner}});
}

}  // namespace

TensorRules join(std::initializer_list<TensorRules> parts) {
  TensorRules all;
  for (const TensorRules& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TensorRules in(Layers layers, TensorRules rules) {
  for (TensorRule& rule : rules) rule.layers = layers;
  return rules;
}

TensorRules ends(L norm) {
  return {{"model.embed_tokens.weight", "token_embd.weight", S::vocab, S::embd},
          {"model.norm.weight", "output_norm.weight", S::embd, S::none, norm},
          {"lm_head.weight", "output.weight", S::vocab, S::embd}};
}

TensorRules norms_before(L norm) {
  return {{"model.layers.{}.input_layernorm.weight", "attn_norm.weight", S::embd, S::none, norm},
          {"model.layers.{}.post_attention_layernorm.weight", "ffn_norm.weight", S::embd, S::none, norm}};
}

TensorRules attention(L rotation) {
  return {{"model.layers.{}.self_attn.q_proj.weight", "attn_q.weight", S::q, S::embd, rotation},
          {"model.layers.{}.self_attn.k_proj.weight", "attn_k.weight", S::kv, S::embd, rotation},
          {"model.layers.{}.self_attn.v_proj.weight", "attn_v.weight", S::kv, S::embd},
          {"model.layers.{}.self_attn.o_proj.weight", "attn_output.weight", S::embd, S::q},
          {"model.layers.{}.self_attn.q_proj.bias", "attn_q.bias", S::q, S::none, rotation, false},
          {"model.layers.{}.self_attn.k_proj.bias", "attn_k.bias", S::kv, S::none, rotation, false},
          {"model.layers.{}.self_attn.v_proj.bias", "attn_v.bias", S::kv, S::none, L::plain, false},
          {"model.layers.{}.self_attn.o_proj.bias", "attn_output.bias", S::embd, S::none, L::plain, false}};
}

TensorRules head_norms(S q, S k, L norm) {
  return {{"model.layers.{}.self_attn.q_norm.weight", "attn_q_norm.weight", q, S::none, norm},
          {"model.layers.{}.self_attn.k_norm.weight", "attn_k_norm.weight", k, S::none, norm}};
}

TensorRules gated_mlp() {
  return {{"model.layers.{}.mlp.gate_proj.weight", "ffn_gate.weight", S::ff, S::embd},
          {"model.layers.{}.mlp.up_proj.weight", "ffn_up.weight", S::ff, S::embd},
          {"model.layers.{}.mlp.down_proj.weight", "ffn_down.weight", S::embd, S::ff},
          {"model.layers.{}.mlp.gate_proj.bias", "ffn_gate.bias", S::ff, S::none, L::plain, false},
          {"model.layers.{}.mlp.up_proj.bias", "ffn_up.bias", S::ff, S::none, L::plain, false},
          {"model.layers.{}.mlp.down_proj.bias", "ffn_down.bias", S::embd, S::none, L::plain, false}};
}

TensorRules mixtral_experts() {
  return {{"model.layers.{}.block_sparse_moe.gate.weight", "ffn_gate_inp.weight", S::expert, S::embd},
          {"model.layers.{}.block_sparse_moe.experts.{e}.w1.weight", "ffn_gate_exps.weight", S::ff, S::embd,
           L::stacked},
          {"model.layers.{}.block_sparse_moe.experts.{e}.w3.weight", "ffn_up_exps.weight", S::ff, S::embd,
           L::stacked},
          {"model.layers.{}.block_sparse_moe.experts.{e}.w2.weight", "ffn_down_exps.weight", S::embd, S::ff,
           L::stacked}};
}

TensorRules qwen_experts() {
  return {{"model.layers.{}.mlp.gate.weight", "ffn_gate_inp.weight", S::expert, S::embd},
          {"model.layers.{}.mlp.experts.{e}.gate_proj.weight", "ffn_gate_exps.weight", S::ff_expert, S::embd,
           L::stacked},
          {"model.layers.{}.mlp.experts.{e}.up_proj.weight", "ffn_up_exps.weight", S::ff_expert, S::embd,
           L::stacked},
          {"model.layers.{}.mlp.experts.{e}.down_proj.weight", "ffn_down_exps.weight", S::embd, S::ff_expert,
           L::stacked}};
}

TensorRules shared_expert() {
  return {
      {"model.layers.{}.mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", S::embd, S::none,
       L::row_of_one},
      {"model.layers.{}.mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", S::ff_shared, S::embd},
      {"model.layers.{}.mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", S::ff_shared, S::embd},
      {"model.layers.{}.mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", S::embd, S::ff_shared}};
}

// Norms before and after both branches of a layer; Gemma stores all of them minus one.
TensorRules gemma_norms() {
  return {
      {"model.layers.{}.input_layernorm.weight", "attn_norm.weight", S::embd, S::none, L::plus_one},
      {"model.layers.{}.post_attention_layernorm.weight", "post_attention_norm.weight", S::embd, S::none,
       L::plus_one},
      {"model.layers.{}.pre_feedforward_layernorm.weight", "ffn_norm.weight", S::embd, S::none, L::plus_one},
      {"model.layers.{}.post_feedforward_layernorm.weight", "post_ffw_norm.weight", S::embd, S::none,
       L::plus_one}};
}

TensorRules phi3_tensors() {
  return {{"model.layers.{}.self_attn.qkv_proj.weight", "attn_qkv.weight", S::qkv, S::embd},
          {"model.layers.{}.self_attn.o_proj.weight", "attn_output.weight", S::embd, S::q},
          {"model.layers.{}.mlp.gate_up_proj.weight", "ffn_up.weight", S::two_ff, S::embd},
          {"model.layers.{}.mlp.down_proj.weight", "ffn_down.weight", S::embd, S::ff}};
}

TensorRules olmo2_norms() {
  return {{"model.layers.{}.post_attention_layernorm.weight", "post_attention_norm.weight", S::embd},
          {"model.layers.{}.post_feedforward_layernorm.weight", "post_ffw_norm.weight", S::embd}};
}

// Gate and up are interleaved by rows. The published files have MXFP4 blocks, fine-tuned ones floats.
TensorRules gpt_oss_tensors() {
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

TensorRules selection_bias(const char* source) {
  return {{source, "exp_probs_b.bias", S::expert, S::none, L::row_of_one, false}};
}

TensorRules shared_experts() {
  return shared_experts_named("model.layers.{}.mlp.shared_experts.gate_proj.weight",
                              "model.layers.{}.mlp.shared_experts.up_proj.weight",
                              "model.layers.{}.mlp.shared_experts.down_proj.weight");
}

TensorRules mtp() {
  return in(Layers::mtp, {{"model.layers.{}.eh_proj.weight", "nextn.eh_proj.weight", S::embd, S::two_embd},
                          {"model.layers.{}.enorm.weight", "nextn.enorm.weight", S::embd},
                          {"model.layers.{}.hnorm.weight", "nextn.hnorm.weight", S::embd},
                          {"model.layers.{}.embed_tokens.weight", "nextn.embed_tokens.weight", S::vocab,
                           S::embd, L::plain, false},
                          {"model.layers.{}.shared_head.head.weight", "nextn.shared_head_head.weight",
                           S::vocab, S::embd, L::plain, false},
                          {"model.layers.{}.shared_head.norm.weight", "nextn.shared_head_norm.weight",
                           S::embd, S::none, L::plain, false}});
}

TensorRules mtp_apart() {
  return in(Layers::mtp,
            {{"mtp.fc.weight", "nextn.eh_proj.weight", S::embd, S::two_embd},
             {"mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight", S::embd, S::none, L::plus_one},
             {"mtp.pre_fc_norm_hidden.weight", "nextn.hnorm.weight", S::embd, S::none, L::plus_one},
             {"mtp.norm.weight", "nextn.shared_head_norm.weight", S::embd, S::none, L::plus_one}});
}

TensorRules glm4_moe_tensors() {
  return join(
      {{{"model.layers.{}.input_layernorm.weight", "attn_norm.weight", S::embd},
        {"model.layers.{}.post_attention_layernorm.weight", "post_attention_norm.weight", S::embd},
        {"model.layers.{}.self_attn.q_norm.weight", "attn_q_norm.weight", S::head_dim, S::none, L::plain,
         false},
        {"model.layers.{}.self_attn.k_norm.weight", "attn_k_norm.weight", S::head_dim, S::none, L::plain,
         false}},
       in(Layers::dense, gated_mlp()),
       in(Layers::mixture, join({qwen_experts(), shared_experts(),
                                 selection_bias("model.layers.{}.mlp.gate.e_score_correction_bias")})),
       mtp()});
}

TensorRules minimax_m2_tensors() {
  return join({head_norms(S::q, S::kv), mixtral_experts(),
               selection_bias("model.layers.{}.block_sparse_moe.e_score_correction_bias")});
}

TensorRules seed_oss_norms() {
  return {{"model.layers.{}.input_layernorm.weight", "attn_norm.weight", S::embd},
          {"model.layers.{}.post_attention_layernorm.weight", "post_attention_norm.weight", S::embd}};
}

TensorRules qwen3_vl_experts() {
  return {{"model.layers.{}.mlp.gate.weight", "ffn_gate_inp.weight", S::expert, S::embd},
          {"model.layers.{}.mlp.experts.gate_up_proj", "ffn_gate_exps.weight", S::ff_expert, S::embd,
           L::first_half},
          {"model.layers.{}.mlp.experts.gate_up_proj", "ffn_up_exps.weight", S::ff_expert, S::embd,
           L::second_half},
          {"model.layers.{}.mlp.experts.down_proj", "ffn_down_exps.weight", S::embd, S::ff_expert,
           L::transposed_or_plain}};
}

TensorRules ernie4_5_moe_tensors() {
  return join({in(Layers::dense, gated_mlp()),
               in(Layers::mixture,
                  join({qwen_experts(), shared_experts(),
                        selection_bias("model.layers.{}.mlp.moe_statics.e_score_correction_bias")}))});
}

TensorRules hunyuan_moe_tensors() {
  TensorRules experts = qwen_experts();
  experts[0].source = "model.layers.{}.mlp.gate.wg.weight";
  return join({{{"model.layers.{}.self_attn.query_layernorm.weight", "attn_q_norm.weight", S::head_dim},
                {"model.layers.{}.self_attn.key_layernorm.weight", "attn_k_norm.weight", S::head_dim}},
               experts,
               shared_experts_named("model.layers.{}.mlp.shared_mlp.gate_proj.weight",
                                    "model.layers.{}.mlp.shared_mlp.up_proj.weight",
                                    "model.layers.{}.mlp.shared_mlp.down_proj.weight")});
}

TensorRules exaone_moe_tensors() {
  return join({head_norms(S::head_dim, S::head_dim), in(Layers::dense, gated_mlp()),
               in(Layers::mixture, join({qwen_experts(), shared_experts(),
                                         selection_bias("model.layers.{}.mlp.e_score_correction_bias")}))});
}

TensorRules deepseek_tensors() {
  return join(
      {ends(),
       norms_before(),
       {{"model.layers.{}.self_attn.q_proj.weight", "attn_q.weight", S::q_direct, S::embd},
        {"model.layers.{}.self_attn.q_a_proj.weight", "attn_q_a.weight", S::q_rank, S::embd},
        {"model.layers.{}.self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", S::q_rank},
        {"model.layers.{}.self_attn.q_b_proj.weight", "attn_q_b.weight", S::q, S::q_rank},
        {"model.layers.{}.self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", S::rank_and_rot,
         S::embd},
        {"model.layers.{}.self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", S::rank},
        {"model.layers.{}.self_attn.kv_b_proj.weight", "attn_k_b.weight", S::rank, S::key_up, L::key_rows},
        {"model.layers.{}.self_attn.kv_b_proj.weight", "attn_v_b.weight", S::value, S::rank, L::value_rows},
        {"model.layers.{}.self_attn.o_proj.weight", "attn_output.weight", S::embd, S::values}},
       in(Layers::dense, gated_mlp()),
       in(Layers::mixture, join({qwen_experts(), shared_experts(),
                                 selection_bias("model.layers.{}.mlp.gate.e_score_correction_bias")})),
       mtp()});
}

TensorRules bailing_moe2_tensors() {
  return join(
      {{{"model.word_embeddings.weight", "token_embd.weight", S::vocab, S::embd},
        {"model.norm.weight", "output_norm.weight", S::embd},
        {"lm_head.weight", "output.weight", S::vocab, S::embd},
        {"model.layers.{}.attention.query_key_value.weight", "attn_qkv.weight", S::qkv, S::embd},
        {"model.layers.{}.attention.query_key_value.bias", "attn_qkv.bias", S::qkv, S::none, L::plain, false},
        {"model.layers.{}.attention.dense.weight", "attn_output.weight", S::embd, S::q},
        {"model.layers.{}.attention.dense.bias", "attn_output.bias", S::embd, S::none, L::plain, false},
        {"model.layers.{}.attention.query_layernorm.weight", "attn_q_norm.weight", S::head_dim},
        {"model.layers.{}.attention.key_layernorm.weight", "attn_k_norm.weight", S::head_dim}},
       norms_before(),
       in(Layers::dense, gated_mlp()),
       in(Layers::mixture,
          join({qwen_experts(), shared_experts(), selection_bias("model.layers.{}.mlp.gate.expert_bias")})),
       in(Layers::mtp, {{"model.layers.{}.eh_proj.weight", "nextn.eh_proj.weight", S::embd, S::two_embd},
                        {"model.layers.{}.enorm.weight", "nextn.enorm.weight", S::embd},
                        {"model.layers.{}.hnorm.weight", "nextn.hnorm.weight", S::embd},
                        {"model.layers.{}.final_layernorm.weight", "layer_output_norm.weight", S::embd}})});
}

TensorRules gated_attention() {
  return in(Layers::attention,
            join({{{"model.layers.{}.self_attn.q_proj.weight", "attn_q.weight", S::two_q, S::embd},
                   {"model.layers.{}.self_attn.k_proj.weight", "attn_k.weight", S::kv, S::embd},
                   {"model.layers.{}.self_attn.v_proj.weight", "attn_v.weight", S::kv, S::embd},
                   {"model.layers.{}.self_attn.o_proj.weight", "attn_output.weight", S::embd, S::q}},
                  head_norms(S::head_dim, S::head_dim, L::plus_one)}));
}

TensorRules delta_net() {
  return in(
      Layers::recurrent,
      {{"model.layers.{}.linear_attn.conv1d.weight", "ssm_conv1d.weight", S::delta_qkv, S::one, L::conv},
       {"model.layers.{}.linear_attn.A_log", "ssm_a", S::delta_head, S::none, L::minus_exp},
       {"model.layers.{}.linear_attn.dt_bias", "ssm_dt.bias", S::delta_head},
       {"model.layers.{}.linear_attn.norm.weight", "ssm_norm.weight", S::delta_head_dim},
       {"model.layers.{}.linear_attn.out_proj.weight", "ssm_out.weight", S::embd, S::delta_v}});
}

TensorRules qwen3_next_tensors() {
  return join({ends(L::plus_one), plus_one_norms(), gated_attention(),
               in(Layers::recurrent,
                  {{"model.layers.{}.linear_attn.in_proj_qkvz.weight", "attn_qkv.weight", S::delta_qkv,
                    S::embd, L::delta_qkvz_qkv},
                   {"model.layers.{}.linear_attn.in_proj_qkvz.weight", "attn_gate.weight", S::delta_v,
                    S::embd, L::delta_qkvz_z},
                   {"model.layers.{}.linear_attn.in_proj_ba.weight", "ssm_ba.weight", S::delta_ba, S::embd}}),
               delta_net(), qwen_experts(), shared_expert(), mtp_apart()});
}

TensorRules qwen35_tensors() {
  return join({ends(L::plus_one), plus_one_norms(), gated_attention(), mtp_apart(),
               in(Layers::recurrent,
                  {{"model.layers.{}.linear_attn.in_proj_qkv.weight", "attn_qkv.weight", S::delta_qkv,
                    S::embd, L::tiled},
                   {"model.layers.{}.linear_attn.in_proj_z.weight", "attn_gate.weight", S::delta_v, S::embd,
                    L::tiled},
                   {"model.layers.{}.linear_attn.in_proj_b.weight", "ssm_beta.weight", S::delta_head, S::embd,
                    L::tiled},
                   {"model.layers.{}.linear_attn.in_proj_a.weight", "ssm_alpha.weight", S::delta_head,
                    S::embd, L::tiled},
                   {"model.layers.{}.linear_attn.conv1d.weight", "ssm_conv1d.weight", S::delta_qkv, S::one,
                    L::tiled_conv},
                   {"model.layers.{}.linear_attn.A_log", "ssm_a", S::delta_head, S::none, L::tiled_minus_exp},
                   {"model.layers.{}.linear_attn.dt_bias", "ssm_dt.bias", S::delta_head, S::none, L::tiled},
                   {"model.layers.{}.linear_attn.norm.weight", "ssm_norm.weight", S::delta_head_dim},
                   {"model.layers.{}.linear_attn.out_proj.weight", "ssm_out.weight", S::embd, S::delta_v,
                    L::tiled_cols}})});
}

TensorRules lfm2_tensors() {
  return join(
      {{{"model.embed_tokens.weight", "token_embd.weight", S::vocab, S::embd},
        {"model.embedding_norm.weight", "token_embd_norm.weight", S::embd},
        {"lm_head.weight", "output.weight", S::vocab, S::embd},
        {"model.layers.{}.operator_norm.weight", "attn_norm.weight", S::embd},
        {"model.layers.{}.ffn_norm.weight", "ffn_norm.weight", S::embd}},
       in(Layers::attention,
          {{"model.layers.{}.self_attn.q_proj.weight", "attn_q.weight", S::q, S::embd},
           {"model.layers.{}.self_attn.k_proj.weight", "attn_k.weight", S::kv, S::embd},
           {"model.layers.{}.self_attn.v_proj.weight", "attn_v.weight", S::kv, S::embd},
           {"model.layers.{}.self_attn.out_proj.weight", "attn_output.weight", S::embd, S::q},
           {"model.layers.{}.self_attn.q_layernorm.weight", "attn_q_norm.weight", S::head_dim},
           {"model.layers.{}.self_attn.k_layernorm.weight", "attn_k_norm.weight", S::head_dim}}),
       in(Layers::recurrent,
          {{"model.layers.{}.conv.in_proj.weight", "shortconv.in_proj.weight", S::three_embd, S::embd},
           {"model.layers.{}.conv.conv.weight", "shortconv.conv.weight", S::embd, S::one, L::conv},
           {"model.layers.{}.conv.out_proj.weight", "shortconv.out_proj.weight", S::embd, S::embd}}),
       in(Layers::dense, {{"model.layers.{}.feed_forward.w1.weight", "ffn_gate.weight", S::ff, S::embd},
                          {"model.layers.{}.feed_forward.w3.weight", "ffn_up.weight", S::ff, S::embd},
                          {"model.layers.{}.feed_forward.w2.weight", "ffn_down.weight", S::embd, S::ff}}),
       in(Layers::mixture,
          {{"model.layers.{}.feed_forward.gate.weight", "ffn_gate_inp.weight", S::expert, S::embd},
           {"model.layers.{}.feed_forward.expert_bias", "exp_probs_b.bias", S::expert, S::none, L::row_of_one,
            false},
           {"model.layers.{}.feed_forward.experts.{e}.w1.weight", "ffn_gate_exps.weight", S::ff_expert,
            S::embd, L::stacked},
           {"model.layers.{}.feed_forward.experts.{e}.w3.weight", "ffn_up_exps.weight", S::ff_expert, S::embd,
            L::stacked},
           {"model.layers.{}.feed_forward.experts.{e}.w2.weight", "ffn_down_exps.weight", S::embd,
            S::ff_expert, L::stacked}})});
}

// Of the models without experts, the shared one is the feed-forward part.
TensorRules granite_hybrid_tensors() {
  constexpr const char* kSharedIn = "model.layers.{}.shared_mlp.input_linear.weight";
  constexpr const char* kSharedOut = "model.layers.{}.shared_mlp.output_linear.weight";
  constexpr const char* kExpertsIn = "model.layers.{}.block_sparse_moe.input_linear.weight";
  return join(
      {ends(), norms_before(), in(Layers::attention, attention(L::rope_rows)),
       mamba2({"model.layers.{}.mamba.in_proj.weight", "model.layers.{}.mamba.conv1d.weight",
               "model.layers.{}.mamba.conv1d.bias", "model.layers.{}.mamba.dt_bias",
               "model.layers.{}.mamba.A_log", "model.layers.{}.mamba.D", "model.layers.{}.mamba.norm.weight",
               "model.layers.{}.mamba.out_proj.weight"}),
       in(Layers::dense, {{kSharedIn, "ffn_gate.weight", S::ff, S::embd, L::upper_rows},
                          {kSharedIn, "ffn_up.weight", S::ff, S::embd, L::lower_rows},
                          {kSharedOut, "ffn_down.weight", S::embd, S::ff}}),
       in(Layers::mixture, {{"model.layers.{}.block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight",
                             S::expert, S::embd},
                            {kExpertsIn, "ffn_gate_exps.weight", S::ff, S::embd, L::upper_rows},
                            {kExpertsIn, "ffn_up_exps.weight", S::ff, S::embd, L::lower_rows},
                            {"model.layers.{}.block_sparse_moe.output_linear.weight", "ffn_down_exps.weight",
                             S::embd, S::ff, L::expert_rows},
                            {kSharedIn, "ffn_gate_shexp.weight", S::ff_shared, S::embd, L::upper_rows},
                            {kSharedIn, "ffn_up_shexp.weight", S::ff_shared, S::embd, L::lower_rows},
                            {kSharedOut, "ffn_down_shexp.weight", S::embd, S::ff_shared}})});
}

// Every layer has one norm and one part.
TensorRules nemotron_h_tensors() {
  return join(
      {{{"backbone.embeddings.weight", "token_embd.weight", S::vocab, S::embd},
        {"backbone.norm_f.weight", "output_norm.weight", S::embd},
        {"lm_head.weight", "output.weight", S::vocab, S::embd},
        {"backbone.layers.{}.norm.weight", "attn_norm.weight", S::embd}},
       mamba2({"backbone.layers.{}.mixer.in_proj.weight", "backbone.layers.{}.mixer.conv1d.weight",
               "backbone.layers.{}.mixer.conv1d.bias", "backbone.layers.{}.mixer.dt_bias",
               "backbone.layers.{}.mixer.A_log", "backbone.layers.{}.mixer.D",
               "backbone.layers.{}.mixer.norm.weight", "backbone.layers.{}.mixer.out_proj.weight"}),
       in(Layers::attention,
          {{"backbone.layers.{}.mixer.q_proj.weight", "attn_q.weight", S::q, S::embd},
           {"backbone.layers.{}.mixer.k_proj.weight", "attn_k.weight", S::kv, S::embd},
           {"backbone.layers.{}.mixer.v_proj.weight", "attn_v.weight", S::kv, S::embd},
           {"backbone.layers.{}.mixer.o_proj.weight", "attn_output.weight", S::embd, S::q}}),
       in(Layers::dense,
          {{"backbone.layers.{}.mixer.up_proj.weight", "ffn_up.weight", S::ff, S::embd},
           {"backbone.layers.{}.mixer.down_proj.weight", "ffn_down.weight", S::embd, S::ff},
           {"backbone.layers.{}.mixer.up_proj.bias", "ffn_up.bias", S::ff, S::none, L::plain, false},
           {"backbone.layers.{}.mixer.down_proj.bias", "ffn_down.bias", S::embd, S::none, L::plain, false}}),
       in(Layers::mixture,
          {{"backbone.layers.{}.mixer.gate.weight", "ffn_gate_inp.weight", S::expert, S::embd},
           {"backbone.layers.{}.mixer.gate.e_score_correction_bias", "exp_probs_b.bias", S::expert, S::none,
            L::row_of_one, false},
           {"backbone.layers.{}.mixer.fc1_latent_proj.weight", "ffn_latent_down.weight", S::ff_latent,
            S::embd},
           {"backbone.layers.{}.mixer.fc2_latent_proj.weight", "ffn_latent_up.weight", S::embd, S::ff_latent},
           {"backbone.layers.{}.mixer.experts.{e}.up_proj.weight", "ffn_up_exps.weight", S::ff_expert,
            S::ff_latent, L::stacked},
           {"backbone.layers.{}.mixer.experts.{e}.down_proj.weight", "ffn_down_exps.weight", S::ff_latent,
            S::ff_expert, L::stacked},
           {"backbone.layers.{}.mixer.shared_experts.up_proj.weight", "ffn_up_shexp.weight", S::ff_shared,
            S::embd},
           {"backbone.layers.{}.mixer.shared_experts.down_proj.weight", "ffn_down_shexp.weight", S::embd,
            S::ff_shared}})});
}

}  // namespace tandem::tools::tensors
