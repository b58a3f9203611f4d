// MiniMax-M2 and M2.1: a mixture in every layer, without a shared expert; experts are chosen by sigmoid scores
// plus a bias. Queries and keys are normalized over all heads at once, and half of each head is rotated.
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_minimax_m2(const ModelSource& source) {
  DecoderReader r(source, "minimax-m2", RopeStyle::half);
  const MoeRouteParams route = r.read_experts(true, MoeScoring::sigmoid);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.q_norm = r.row_norm("attn_q_norm", r.hparams().n_head);
    l.attention.k_norm = r.row_norm("attn_k_norm", r.hparams().n_head_kv);
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.mixture(Activation::silu, route);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
