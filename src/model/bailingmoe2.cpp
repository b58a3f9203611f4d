// Ling 2.0 and Ring 2.0: leading dense layers, then mixtures with a shared expert. Experts are in groups, and
// only those of the best groups can be chosen, by sigmoid scores plus a bias. Query and key heads are normalized,
// and half of each is rotated. (arXiv:2510.22115)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_bailingmoe2(const ModelSource& source) {
  DecoderReader r(source, "bailingmoe2", RopeStyle::half);
  r.choose_part();
  const Mixtures mixtures = r.read_mixtures(true, MoeScoring::sigmoid);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();  // attn_qkv
    l.attention.q_norm = r.head_norm("attn_q_norm");
    l.attention.k_norm = r.head_norm("attn_k_norm");
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.dense_or_mixture(Activation::silu, mixtures);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
