// DecoderReader: what families read a DecoderSpec with: hyperparameters under the family's prefix and weights
// by their GGUF names, both checked. Used by one thread, while the model is loaded; throws Error(bad_file)
// naming the key or the tensor. A family's file reads:
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

namespace tandem {

class DecoderReader : public HparamReader {
 public:
  // Reads what all families have: Hparams and the rotation.
  DecoderReader(const ModelSource& source, const std::string& architecture, RopeStyle style);

  const Hparams& hparams() const { return hparams_; }
  Hparams& hparams() { return hparams_; }
  const RopeParams& rope() const { return rope_; }

  // Embedding, output norm and head, rope factors. Before it, a family may change hparams().
  DecoderSpec begin();
  // The layer whose weights are bound from here on.
  DecoderLayer& next_layer(DecoderSpec& spec);

  // Optional biases and norms are null where the file has none.
  const Weight* norm(const std::string& name);                             // NAME.weight [n_embd]
  Linear linear(const std::string& name, int64_t n_rows, int64_t n_cols);  // NAME.weight, NAME.bias?
  AttentionPart attention();                         // attn_q, attn_k, attn_v or attn_qkv; attn_output
  const Weight* head_norm(const std::string& name);  // NAME.weight [head_dim_k]
  const Weight* row_norm(const std::string& name, int64_t n_head);  // NAME.weight [n_head * head_dim_k]
  const Weight* per_head(const std::string& name);                  // NAME.weight [n_head]
  FeedForward gated_ffn(Activation activation);                     // ffn_gate, ffn_up, ffn_down
  FeedForward fused_ffn(Activation activation);  // ffn_up with the gate's rows first, ffn_down
  // ffn_gate_inp, ffn_gate_exps, ffn_up_exps, ffn_down_exps: the experts that read_experts() has announced.
  FeedForward mixture(Activation activation, const MoeRouteParams& route);

  // Mixtures: hparams().n_expert, n_expert_used and the experts' n_ff, and how they are chosen.
  MoeRouteParams read_experts(bool normalize);

  // A scale: finite and not 0; `fallback` where the file has none.
  float scale_or(std::string_view suffix, float fallback) const;

  // attention.sliding_window of each layer, 0 for those that see everything: each `period`-th one does, from
  // the period-th on, unless attention.sliding_window_pattern says otherwise (a period, or a flag for each
  // layer). `fallback` is the window where the file has none; 0 then is allowed in the file too, and means
  // none at all.
  std::vector<int64_t> windows(int64_t period, int64_t fallback) const;

 private:
  std::vector<bool> slides(int64_t period) const;

  WeightBinder& w_;
  Hparams hparams_;
  RopeParams rope_;
  int layer_ = -1;
};

}  // namespace tandem
