// DeepSeek V2 and V3, R1, Kimi K2 and GLM-4.7-Flash: multi-head latent attention, leading dense layers, then mixtures
// with shared experts. V2 chooses experts by softmax, within the groups that have the best experts; V3 and the
// others by sigmoid scores plus a bias, within the groups whose two best have the largest sum. (arXiv:2405.04434,
// 2412.19437)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_deepseek2(const ModelSource& source) {
  DecoderReader r(source, "deepseek2", RopeStyle::pair);
  r.choose_part();
  const LatentSizes sizes = r.read_latent_sizes();
  Mixtures mixtures = r.read_mixtures(false);
  if (mixtures.route.scoring == MoeScoring::softmax) mixtures.route.group_rank = MoeGroupRank::best;
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.latent_attention(sizes);
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.dense_or_mixture(Activation::silu, mixtures);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
