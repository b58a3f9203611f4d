// GLM-4.5, 4.6 and 4.7: leading dense layers, then mixtures with a shared expert; experts are chosen by sigmoid
// scores plus a bias, and their weights sum to a constant. Half of each head is rotated. The large models
// normalize query and key heads, Air has biases instead. (arXiv:2508.06471)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_glm4moe(const ModelSource& source) {
  DecoderReader r(source, "glm4moe", RopeStyle::half);
  r.choose_part();
  const Mixtures mixtures = r.read_mixtures(true, MoeScoring::sigmoid);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();  // with its biases
    l.attention.q_norm = r.optional_head_norm("attn_q_norm");
    l.attention.k_norm = r.optional_head_norm("attn_k_norm");
    l.ffn_norm = r.norm("post_attention_norm");
    l.ffn = r.dense_or_mixture(Activation::silu, mixtures);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
