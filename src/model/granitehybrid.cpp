// Granite 4 hybrid: Mamba-2 in most layers, attention in the others, usually without positions; Granite 3's four
// scales (granite.cpp). The feed-forward part is a mixture of experts with a shared one, or dense.
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_granitehybrid(const ModelSource& source) {
  DecoderReader r(source, "granitehybrid", RopeStyle::pair, LayerKinds::mixed);
  r.read_ssm();
  const std::vector<bool> attends = r.layers_with("attention.head_count_kv");
  const bool is_mixture = r.integer_or("expert_count", 0, 0, 65536) > 0;
  const bool rotates = r.flag_or("rope.scaling.finetuned", false);
  const int64_t n_ff_shared = r.integer_or("expert_shared_feed_forward_length", 0, 0, kMaxDimension);
  const MoeRouteParams route = is_mixture ? r.read_experts(true) : MoeRouteParams{};
  DecoderSpec spec = r.begin();
  const float score_scale = r.read_granite_scales(spec);
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    if (attends[static_cast<size_t>(i)]) {
      l.attention = r.attention();
      l.attention.rotates = rotates;
      l.attention.params.scale = score_scale;
    } else {
      l.mamba2 = r.mamba2();
    }
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = is_mixture ? r.mixture(Activation::silu, route) : r.gated_ffn(Activation::silu);
    if (is_mixture && n_ff_shared > 0) r.add_shared_expert(l.ffn, n_ff_shared);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
