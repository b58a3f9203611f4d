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

namespace tandem {

class DecoderReader : public HparamReader {
 public:
  // Reads what all families share: Hparams and the rotation.
  DecoderReader(const ModelSource& source, const std::string& architecture, RopeStyle style);

  const Hparams& hparams() const { return hparams_; }
  Hparams& hparams() { return hparams_; }
  const RopeParams& rope() const { return rope_; }

  // Reads embedding, output norm and head, and rope factors. A family may change hparams() before.
  DecoderSpec begin();
  // Adds a layer; the following calls bind its weights.
  DecoderLayer& next_layer(DecoderSpec& spec);

  // Optional biases and norms are null if the file has none.
  const Weight* norm(const std::string& name);                             // NAME.weight [n_embd]
  Linear linear(const std::string& name, int64_t n_rows, int64_t n_cols);  // NAME.weight, NAME.bias?
  AttentionLayer attention();                        // attn_q, attn_k, attn_v or attn_qkv; attn_output
  const Weight* head_norm(const std::string& name);  // NAME.weight [head_dim_k]
  const Weight* row_norm(const std::string& name, int64_t n_head);  // NAME.weight [n_head * head_dim_k]
  const Weight* per_head(const std::string& name);                  // NAME.weight [n_head]
  FeedForward gated_ffn(Activation activation);                     // ffn_gate, ffn_up, ffn_down
  FeedForward fused_ffn(Activation activation);  // ffn_up (its first rows are the gate), ffn_down
  // ffn_gate_inp, ffn_gate_exps, ffn_up_exps, ffn_down_exps. Call read_experts() first.
  FeedForward mixture(Activation activation, const MoeRouteParams& route);

  // Reads hparams().n_expert, n_expert_used and the experts' n_ff, and returns how experts are chosen.
  MoeRouteParams read_experts(bool normalize);

  // Reads a scale: finite and not 0; `fallback` if the file has none.
  float scale_or(std::string_view suffix, float fallback) const;

  // Returns attention.sliding_window of each layer; 0 for layers with full attention. Every `period`-th layer
  // has full attention, starting with the period-th, unless attention.sliding_window_pattern overrides it
  // (with a period, or a flag per layer). `fallback` is the window if the file has none; with a fallback of 0
  // the file may have 0 too, which means full attention everywhere.
  std::vector<int64_t> windows(int64_t period, int64_t fallback) const;

 private:
  std::vector<bool> sliding_layers(int64_t period) const;

  WeightBinder& w_;
  Hparams hparams_;
  RopeParams rope_;
  int layer_ = -1;
};

}  // namespace tandem
