// SmolLM3: Llama's decoder without rotation in every fourth layer. (NoPE, arXiv:2501.18795)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_smollm3(const ModelSource& source) {
  constexpr int kPeriod = 4;
  DecoderReader r(source, "smollm3", RopeStyle::pair);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.rotates = (i + 1) % kPeriod != 0;
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.gated_ffn(Activation::silu);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
