// Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention without positions, and a feed-forward part
// without a gate, down(relu(up x)^2), which is dense or a mixture of experts with a shared one. Experts are chosen by
// sigmoid scores plus a bias, and may work in a narrower space.
#include "model/decoder_reader.h"

namespace tandem {
namespace {

enum class NemotronKind { dense, mixture };

std::unique_ptr<Architecture> load_nemotron(const ModelSource& source, const char* architecture,
                                            NemotronKind kind) {
  DecoderReader r(source, architecture, RopeStyle::half, LayerKinds::mixed);
  r.skip_mtp_layers();
  r.read_ssm();
  const std::vector<bool> attends = r.layers_with("attention.head_count_kv");
  const std::vector<bool> feeds_forward = r.layers_with("feed_forward_length");
  Mixtures mixtures;
  if (kind == NemotronKind::mixture) mixtures = r.read_mixtures(true, MoeScoring::sigmoid);
  const int64_t n_latent = r.integer_or("moe_latent_size", 0, 0, kMaxDimension);
  DecoderSpec spec = r.begin();
  for (size_t i = 0; i < attends.size(); ++i) {
    DecoderLayer& l = r.next_layer(spec);
    const Weight* norm = r.norm("attn_norm");
    if (feeds_forward[i]) {
      l.ffn_norm = norm;
      l.ffn = kind == NemotronKind::mixture ? r.plain_mixture(mixtures.route, n_latent, mixtures.n_ff_shared)
                                            : r.plain_ffn();
      continue;
    }
    l.attn_norm = norm;
    if (attends[i]) {
      l.attention = r.attention();
      l.attention.rotates = false;
    } else {
      l.mamba2 = r.mamba2();
    }
  }
  return make_decoder(std::move(spec));
}

}  // namespace

std::unique_ptr<Architecture> load_nemotron_h(const ModelSource& source) {
  return load_nemotron(source, "nemotron_h", NemotronKind::dense);
}

std::unique_ptr<Architecture> load_nemotron_h_moe(const ModelSource& source) {
  return load_nemotron(source, "nemotron_h_moe", NemotronKind::mixture);
}

}  // namespace tandem
