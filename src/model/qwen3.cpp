// Qwen3: query and key heads are normalized before rotation; no biases. (arXiv:2505.09388) The text model of
// Qwen3-VL is the same: its rotation has a section for each of the three coordinates of a picture's patch, and
// a token of text has three equal ones.
#include "model/decoder_reader.h"

namespace tandem {

namespace {

std::unique_ptr<Architecture> load_dense(const ModelSource& source, const char* architecture) {
  DecoderReader r(source, architecture, RopeStyle::half);
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.q_norm = r.head_norm("attn_q_norm");
    l.attention.k_norm = r.head_norm("attn_k_norm");
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = r.gated_ffn(Activation::silu);
  }
  return make_decoder(std::move(spec));
}

}  // namespace

std::unique_ptr<Architecture> load_qwen3(const ModelSource& source) {
  return load_dense(source, "qwen3");
}

std::unique_ptr<Architecture> load_qwen3vl(const ModelSource& source) {
  return load_dense(source, "qwen3vl");
}

}  // namespace tandem
