// Qwen3-Next: three layers with the gated delta rule (arXiv:2412.06464) alternate with one of attention, whose
// result is gated and whose heads are normalized and partly rotated. Every layer is a mixture of many small
// experts, whose weights sum to 1, with a gated shared expert.
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_qwen3next(const ModelSource& source) {
  DecoderReader r(source, "qwen3next", RopeStyle::half);
  r.skip_nextn_layers();
  const int64_t n_ff_shared =
      r.integer_or("expert_shared_feed_forward_length", r.hparams().n_ff, 1, kMaxDimension);
  const MoeRouteParams route = r.read_experts(true);
  const std::vector<bool> recurrent = r.read_delta_net();
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    if (recurrent[static_cast<size_t>(i)]) {
      l.delta_net = r.delta_net(HeadOrder::grouped);
    } else {
      l.attention = r.gated_attention();
      l.attention.q_norm = r.head_norm("attn_q_norm");
      l.attention.k_norm = r.head_norm("attn_k_norm");
    }
    l.ffn_norm = r.norm("post_attention_norm");
    l.ffn = r.mixture(Activation::silu, route);
    r.add_shared_expert(l.ffn, n_ff_shared);
    l.ffn.shared_expert_gate = r.linear("ffn_gate_inp_shexp", 1, r.hparams().n_embd).w;
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
