// Llama 1, 2 and 3.x, Mistral, TinyLlama and relatives: RMS norm, rotated pairs, grouped-query attention,
// SiLU-gated feed-forward; and Mixtral, with a mixture of experts. (arXiv:2302.13971, 2307.09288, 2407.21783,
// 2401.04088)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_llama(const ModelSource& source) {
  DecoderReader r(source, "llama", RopeStyle::pair);
  const bool is_mixture = r.integer_or("expert_count", 0, 0, 65536) > 0;
  const MoeRouteParams route = is_mixture ? r.read_experts(true) : MoeRouteParams{};
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = is_mixture ? r.mixture(Activation::silu, route) : r.gated_ffn(Activation::silu);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
