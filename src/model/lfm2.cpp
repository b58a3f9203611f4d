// LFM2, dense or a mixture of experts: gated short convolutions in most layers, attention with normalized heads in
// the others. The layers without keys and values have no attention. Of the mixture, the first layers are dense;
// experts are chosen by sigmoid scores plus a bias, and their weights sum to 1.
#include "model/decoder_reader.h"

namespace tandem {
namespace {

enum class Lfm2Kind { dense, mixture };

std::unique_ptr<Architecture> load_lfm2_of(const ModelSource& source, const char* architecture,
                                           Lfm2Kind kind) {
  DecoderReader r(source, architecture, RopeStyle::half, LayerKinds::mixed);
  r.read_short_conv();
  const std::vector<bool> attends = r.layers_with("attention.head_count_kv");
  Mixtures mixtures;
  if (kind == Lfm2Kind::mixture) mixtures = r.read_mixtures(true, MoeScoring::sigmoid);
  DecoderSpec spec = r.begin("token_embd_norm");  // the norm of the output, despite its name
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    if (attends[static_cast<size_t>(i)]) {
      l.attention = r.attention();
      l.attention.q_norm = r.head_norm("attn_q_norm");
      l.attention.k_norm = r.head_norm("attn_k_norm");
    } else {
      l.short_conv = r.short_conv();
    }
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = kind == Lfm2Kind::mixture ? r.dense_or_mixture(Activation::silu, mixtures)
                                      : r.gated_ffn(Activation::silu);
  }
  return make_decoder(std::move(spec));
}

}  // namespace

std::unique_ptr<Architecture> load_lfm2(const ModelSource& source) {
  return load_lfm2_of(source, "lfm2", Lfm2Kind::dense);
}

std::unique_ptr<Architecture> load_lfm2moe(const ModelSource& source) {
  return load_lfm2_of(source, "lfm2moe", Lfm2Kind::mixture);
}

}  // namespace tandem
