// K-EXAONE: three layers with a sliding window alternate with one of full attention, which has no rotation.
// Query and key heads are normalized. A leading dense layer, then mixtures with a shared expert; experts are
// chosen by sigmoid scores plus a bias.
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_exaone_moe(const ModelSource& source) {
  DecoderReader r(source, "exaone-moe", RopeStyle::half);
  r.skip_mtp_layers();
  const Mixtures mixtures = r.read_mixtures(true, MoeScoring::sigmoid);
  const std::vector<int64_t> windows = r.windows(4, 128);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.q_norm = r.head_norm("attn_q_norm");
    l.attention.k_norm = r.head_norm("attn_k_norm");
    l.attention.params.window = windows[static_cast<size_t>(i)];
    l.attention.rotates = windows[static_cast<size_t>(i)] > 0;
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.dense_or_mixture(Activation::silu, mixtures);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
