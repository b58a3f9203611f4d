// Qwen2 and Qwen2.5: Llama's decoder with rotated halves instead of pairs, and biases on queries, keys and
// values. (arXiv:2407.10671)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_qwen2(const ModelSource& source) {
  DecoderReader r(source, "qwen2", RopeStyle::half);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();  // with its biases
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.gated_ffn(Activation::silu);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
