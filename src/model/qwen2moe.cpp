// Qwen1.5 and Qwen2 with a mixture of experts: the weights of the chosen experts are their softmax scores,
// not normalized, and every token also passes a shared expert scaled by its own sigmoid gate.
// (arXiv:2407.10671, section 2.2.2)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_qwen2moe(const ModelSource& source) {
  DecoderReader r(source, "qwen2moe", RopeStyle::half);
  const int64_t n_ff_shared =
      r.integer_or("expert_shared_feed_forward_length", r.hparams().n_ff, 1, kMaxDimension);
  const MoeRouteParams route = r.read_experts(false);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();  // with its biases
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.mixture(Activation::silu, route);
    r.add_shared_expert(l.ffn, n_ff_shared);
    l.ffn.shared_expert_gate = r.linear("ffn_gate_inp_shexp", 1, r.hparams().n_embd).w;
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
