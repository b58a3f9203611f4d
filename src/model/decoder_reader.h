// DecoderReader: helps families fill a DecoderSpec. It reads hyperparameters under the family's prefix and
// weights by their GGUF names, and checks both. Used by one thread while the model is loaded; throws
// Error(bad_file) with the key or the tensor. A family's file looks like this:
//
//   DecoderReader r(source, "name", RopeStyle::half);
//   DecoderSpec spec = r.begin();
//   for (int i = 0; i < r.hparams().n_layer; ++i) {
//     DecoderLayer& l = r.next_layer(spec);
//     l.attn_norm = r.norm("attn_norm");
//     l.attention = r.attention();
//     ...
//   }
//   return make_decoder(std::move(spec));
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "model/families.h"

namespace tandem {

// How a model divides its layers into dense ones and mixtures.
struct Mixtures {
  MoeRouteParams route;
  int64_t n_dense = 0;      // leading layers without experts
  int64_t period = 1;       // of the others, every period-th of the model has experts
  int64_t n_ff_shared = 0;  // width of the shared experts together; 0: none

  bool at(int layer) const { return layer >= n_dense && (layer + 1) % period == 0; }
};

// The sizes of latent attention (LatentAttention in decoder.h), and the factor of its scores.
struct LatentSizes {
  int64_t q_rank = 0;  // 0: queries are not compressed
  int64_t rank = 0;
  int64_t key = 0, value = 0;  // columns of a head; the last n_rot of a key are rotated
  float scale = 1.0f;
};

class DecoderReader : public HparamReader {
 public:
  // Reads what all families share: Hparams and the rotation.
  DecoderReader(const ModelSource& source, const std::string& architecture, RopeStyle style,
                LayerKinds kinds = LayerKinds::alike);

  const Hparams& hparams() const { return hparams_; }
  Hparams& hparams() { return hparams_; }
  const RopeParams& rope() const { return rope_; }
  // For what the functions below do not bind; names as those of the current layer.
  WeightBinder& weights() { return w_; }

  // Reads embedding, output norm and head, and rope factors. A family may change hparams() before.
  DecoderSpec begin(const std::string& output_norm = "output_norm");
  // Adds a layer; the following calls bind its weights.
  DecoderLayer& next_layer(DecoderSpec& spec);

  // Optional biases and norms are null if the file has none.
  const Weight* norm(const std::string& name);                             // NAME.weight [n_embd]
  Linear linear(const std::string& name, int64_t n_rows, int64_t n_cols);  // NAME.weight, NAME.bias?
  AttentionLayer attention();  // attn_q, attn_k, attn_v or attn_qkv; attn_output
  // Latent attention: attn_q, or attn_q_a, attn_q_a_norm and attn_q_b; attn_kv_a_mqa, attn_kv_a_norm, attn_k_b,
  // attn_v_b; attn_output.
  AttentionLayer latent_attention(const LatentSizes& sizes);
  const Weight* head_norm(const std::string& name);  // NAME.weight [head_dim_k]
  const Weight* optional_head_norm(const std::string& name);
  const Weight* row_norm(const std::string& name, int64_t n_head);  // NAME.weight [n_head * head_dim_k]
  const Weight* per_head(const std::string& name);                  // NAME.weight [n_head]
  // attention() with attn_q twice as wide, for the gates.
  AttentionLayer gated_attention();
  // attn_qkv and attn_gate or ssm_in; ssm_beta and ssm_alpha or ssm_ba; ssm_conv1d, ssm_a, ssm_dt.bias, ssm_norm,
  // ssm_out. Call read_delta_net() first.
  DeltaNetLayer delta_net(HeadOrder order);
  // shortconv.in_proj (its rows: b, c, x), shortconv.conv, shortconv.out_proj. Call read_short_conv() first.
  ShortConvLayer short_conv();
  // ssm_in (its rows: z, x, b, c, dt), ssm_conv1d, ssm_a, ssm_d, ssm_dt.bias, ssm_norm, ssm_out. Call read_ssm() first.
  Mamba2Layer mamba2();
  FeedForward plain_ffn();                                     // without a gate: ffn_up, ffn_down
  FeedForward gated_ffn(Activation activation);                // ffn_gate, ffn_up, ffn_down
  FeedForward gated_ffn(Activation activation, int64_t n_ff);  // of a width of its own
  FeedForward fused_ffn(Activation activation);  // ffn_up (its first rows are the gate), ffn_down
  // ffn_gate_inp, ffn_gate_exps, ffn_up_exps or both as ffn_gate_up_exps, ffn_down_exps; exp_probs_b.bias if the file has it. Call
  // read_experts() first.
  FeedForward mixture(Activation activation, const MoeRouteParams& route);
  // The same without gates, in a space of n_latent columns if that is not 0 (then with ffn_latent_down and
  // ffn_latent_up); with a shared expert of n_ff_shared, unless 0.
  FeedForward plain_mixture(const MoeRouteParams& route, int64_t n_latent, int64_t n_ff_shared);
  // ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp, beside a mixture.
  void add_shared_expert(FeedForward& mixture, int64_t n_ff);
  // The feed-forward part of the current layer of a model with dense layers and mixtures: one or the other.
  FeedForward dense_or_mixture(Activation activation, const Mixtures& mixtures);

  // Reads hparams().n_expert, n_expert_used and the experts' n_ff, and returns how experts are chosen. The
  // arguments are what the family does if the file does not say.
  MoeRouteParams read_experts(bool normalize, MoeScoring scoring = MoeScoring::softmax);
  // The same, and which layers are mixtures.
  Mixtures read_mixtures(bool normalize, MoeScoring scoring = MoeScoring::softmax);

  // Reads the sizes of latent attention and checks them against those that all families share. Adjusts the rotation
  // to its way of writing YaRN's factors.
  LatentSizes read_latent_sizes();
  // Reads and checks ssm.*, and returns which layers have the delta rule: attention.recurrent_layers, or all but
  // every full_attention_interval-th. Call it after choose_part().
  std::vector<bool> read_delta_net();

  // Reads and checks the sizes of Mamba-2's layers, ssm.*.
  void read_ssm();
  // Reads shortconv.l_cache, the width of the short convolutions.
  void read_short_conv();
  // Returns which layers have the part that a key counts: all, or those for which an array is not 0.
  std::vector<bool> layers_with(std::string_view suffix) const;

  // Leaves out the layers that only predict tokens further ahead (MTP), which follow the others in the file; for
  // ModelPart::mtp, all but the first of these. Call it before begin().
  void choose_part();
  // The same for families whose MTP layers do not run here.
  void skip_mtp_layers();

  // Reads a scale: finite and not 0; `fallback` if the file has none.
  float scale_or(std::string_view suffix, float fallback) const;
  // Reads Granite's four scales: sets those of embeddings, of what every branch adds, and of logits (the file has its
  // divisor), and returns the one of attention scores.
  float read_granite_scales(DecoderSpec& spec) const;

  // Returns attention.sliding_window of each layer; 0 for layers with full attention. Every `period`-th layer
  // has full attention, starting with the period-th, unless attention.sliding_window_pattern overrides it
  // (with a period, or a flag per layer). `fallback` is the window if the file has none; with a fallback of 0
  // the file may have 0 too, which means full attention everywhere.
  std::vector<int64_t> windows(int64_t period, int64_t fallback) const;

 private:
  Linear experts(const std::string& name, int64_t n_rows, int64_t n_cols);
  void take_factors(FeedForward& mixture);
  std::vector<bool> sliding_layers(int64_t period) const;

  // Reads an array with a flag per layer; the layers that only predict tokens further ahead may be in it or not.
  std::vector<bool> layer_flags(std::string_view suffix) const;

  void begin_mtp(DecoderSpec& spec);

  // The width of a recurrent layer's heads, of ssm.inner_size; the heads are in equal groups.
  int64_t inner_head_dim(int64_t n_head, int64_t n_group) const;
  void read_scoring(MoeRouteParams& route) const;
  void read_groups(MoeRouteParams& route) const;

  const ModelSource& source_;
  WeightBinder& w_;
  Hparams hparams_;
  RopeParams rope_;
  int first_layer_ = 0;  // in the file
  int n_layers_read_ = 0;
  int64_t n_mtp_ = 0;
  bool has_part_;
  DeltaRuleParams delta_rule_;
  SsmScanParams ssm_;
  int64_t n_conv_ = 0;  // width of the short convolution
  int64_t n_ff_dense_;  // of layers without experts
};

}  // namespace tandem
