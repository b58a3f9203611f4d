// Granite 3: Llama's decoder with four scales: for embeddings, for what every branch adds, for attention
// scores, and a divisor of logits. (The "maximal update" scaling of arXiv:2203.03466.)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_granite(const ModelSource& source) {
  DecoderReader r(source, "granite", RopeStyle::pair);
  DecoderSpec spec = r.begin();
  const float score_scale = r.read_granite_scales(spec);
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.params.scale = score_scale;
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.gated_ffn(Activation::silu);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
