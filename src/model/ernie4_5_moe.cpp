// ERNIE 4.5 with a mixture of experts: leading dense layers, then mixtures in every layer or every few, with
// shared experts. A bias is added to the softmax scores that choose experts; their weights sum to 1.
// (ERNIE 4.5 Technical Report, 2025)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_ernie4_5_moe(const ModelSource& source) {
  DecoderReader r(source, "ernie4_5-moe", RopeStyle::pair);
  const Mixtures mixtures = r.read_mixtures(true);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.dense_or_mixture(Activation::silu, mixtures);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
