// Seed-OSS: Llama's decoder with rotated halves and biases on queries, keys and values.
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_seed_oss(const ModelSource& source) {
  DecoderReader r(source, "seed_oss", RopeStyle::half);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();  // with its biases
    l.ffn_norm = r.norm("post_attention_norm");
    l.ffn = r.gated_ffn(Activation::silu);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
