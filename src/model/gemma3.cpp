// Gemma 3 (text): Gemma 2 without softcaps. Query and key heads are normalized; five layers with a sliding
// window alternate with one layer of full attention; the two kinds have different rotation bases, and context
// scaling applies only to full attention. (arXiv:2503.19786)
#include <cmath>

#include "model/decoder_reader.h"

namespace tandem {
namespace {

// As in Gemma 2: the 27B model (62 layers) divides the model's width by its number of query heads.
float gemma3_attention_scale(const DecoderReader& r) {
  const Hparams& h = r.hparams();
  const int64_t width = h.n_layer == 62 ? h.n_embd / h.n_head : h.head_dim_k;
  return r.scale_or("attention.scale", 1.0f / std::sqrt(static_cast<float>(width)));
}

}  // namespace

std::unique_ptr<Architecture> load_gemma3(const ModelSource& source) {
  DecoderReader r(source, "gemma3", RopeStyle::half);
  const std::vector<int64_t> windows = r.windows(6, 1024);
  RopeParams local = r.rope();
  local.freq_base = r.number_or("rope.freq_base_swa", 10000.0f, 1.0f, 1e30f);
  local.freq_scale = 1.0f;
  local.ext_factor = 0.0f;
  local.attn_factor = 1.0f;
  DecoderSpec spec = r.begin();
  spec.embedding_scale = std::sqrt(static_cast<float>(r.hparams().n_embd));
  spec.logit_softcap = r.number_or("final_logit_softcapping", 0.0f, 0.0f, 1e6f);
  for (int64_t window : windows) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.q_norm = r.head_norm("attn_q_norm");
    l.attention.k_norm = r.head_norm("attn_k_norm");
    l.attention.params.scale = gemma3_attention_scale(r);
    l.attention.params.window = window;
    if (window > 0) l.attention.rope = local;
    l.attn_post_norm = r.norm("post_attention_norm");
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.gated_ffn(Activation::gelu_tanh);
    l.ffn_post_norm = r.norm("post_ffw_norm");
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
