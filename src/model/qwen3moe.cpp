// Qwen3 with a mixture of experts in every layer: many small experts; the weights of the chosen ones sum to
// 1. (arXiv:2505.09388) The text model of Qwen3-VL is the same (qwen3.cpp says why).
#include "model/decoder_reader.h"

namespace tandem {

namespace {

std::unique_ptr<Architecture> load_mixture(const ModelSource& source, const char* architecture) {
  DecoderReader r(source, architecture, RopeStyle::half);
  const MoeRouteParams route = r.read_experts(true);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.q_norm = r.head_norm("attn_q_norm");
    l.attention.k_norm = r.head_norm("attn_k_norm");
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.mixture(Activation::silu, route);
  }
  return make_decoder(std::move(spec));
}

}  // namespace

std::unique_ptr<Architecture> load_qwen3moe(const ModelSource& source) {
  return load_mixture(source, "qwen3moe");
}

std::unique_ptr<Architecture> load_qwen3vlmoe(const ModelSource& source) {
  return load_mixture(source, "qwen3vlmoe");
}

}  // namespace tandem
