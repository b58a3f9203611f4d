// Granite 3: Llama's decoder with four scales: for embeddings, for what every branch adds, for attention
// scores, and a divisor of logits. (The "maximal update" scaling of arXiv:2203.03466.)
#include <cmath>

#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_granite(const ModelSource& source) {
  DecoderReader r(source, "granite", RopeStyle::pair);
  const float default_scale = 1.0f / std::sqrt(static_cast<float>(r.hparams().head_dim_k));
  DecoderSpec spec = r.begin();
  spec.embedding_scale = r.scale_or("embedding_scale", 1.0f);
  spec.residual_scale = r.scale_or("residual_scale", 1.0f);
  spec.logit_scale = 1.0f / r.scale_or("logit_scale", 1.0f);
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.params.scale = r.scale_or("attention.scale", default_scale);
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.gated_ffn(Activation::silu);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
