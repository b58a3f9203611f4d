// Hunyuan-A13B: a mixture with a shared expert in every layer. Query and key heads are normalized after their
// rotation.
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_hunyuan_moe(const ModelSource& source) {
  DecoderReader r(source, "hunyuan-moe", RopeStyle::half);
  const Mixtures mixtures = r.read_mixtures(true);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.rotates_first = true;
    l.attention.q_norm = r.head_norm("attn_q_norm");
    l.attention.k_norm = r.head_norm("attn_k_norm");
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.dense_or_mixture(Activation::silu, mixtures);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
