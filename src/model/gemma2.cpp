// Gemma 2: embeddings times the square root of their width, GELU gates, norms before and after each branch, a
// sliding window in every other layer, and tanh softcaps on scores and logits. (arXiv:2408.00118)
#include <cmath>

#include "model/decoder_reader.h"

namespace tandem {
namespace {

// Query heads are scaled by head_dim, in the 27B model (46 layers) by the model's width divided by its number
// of heads. attention.scale overrides it.
float gemma2_attention_scale(const DecoderReader& r) {
  const Hparams& h = r.hparams();
  const int64_t width = h.n_layer == 46 ? h.n_embd / h.n_head : h.head_dim_k;
  return r.scale_or("attention.scale", 1.0f / std::sqrt(static_cast<float>(width)));
}

}  // namespace

std::unique_ptr<Architecture> load_gemma2(const ModelSource& source) {
  DecoderReader r(source, "gemma2", RopeStyle::half);
  const std::vector<int64_t> windows = r.windows(2, 4096);  // layers 0, 2, 4, ... have one
  const float score_cap = r.number_or("attn_logit_softcapping", 50.0f, 0.0f, 1e6f);
  DecoderSpec spec = r.begin();
  spec.embedding_scale = std::sqrt(static_cast<float>(r.hparams().n_embd));
  spec.logit_softcap = r.number_or("final_logit_softcapping", 30.0f, 0.0f, 1e6f);
  for (int64_t window : windows) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.params.scale = gemma2_attention_scale(r);
    l.attention.params.softcap = score_cap;
    l.attention.params.window = window;
    l.attn_post_norm = r.norm("post_attention_norm");
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.gated_ffn(Activation::gelu_tanh);
    l.ffn_post_norm = r.norm("post_ffw_norm");
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
