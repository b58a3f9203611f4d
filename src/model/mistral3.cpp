// Mistral 3 and Ministral 3: Llama's decoder with YaRN, and queries scaled with the logarithm of the
// position, so that attention stays as sharp in long contexts as in training (Llama 4's temperature).
#include "base/error.h"
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_mistral3(const ModelSource& source) {
  DecoderReader r(source, "mistral3", RopeStyle::pair);
  const bool is_mixture = r.integer_or("expert_count", 0, 0, 65536) > 0;
  const MoeRouteParams route = is_mixture ? r.read_experts(true) : MoeRouteParams{};
  const float temperature = r.number_or("attention.temperature_scale", 0.0f, 0.0f, 1e3f);
  const int64_t length = r.integer_or("attention.temperature_length", r.rope().n_ctx_orig, 1, INT32_MAX);
  if (temperature != 0.0f && r.rope().n_rot != r.rope().head_dim) {
    r.fail("rope.dimension_count", std::to_string(r.rope().n_rot),
           "the whole head, " + std::to_string(r.rope().head_dim) +
               ", because attention.temperature_scale is set");
  }
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.rope.temperature_scale = temperature;
    l.attention.rope.temperature_length = length;
    l.ffn_norm = r.norm("ffn_norm");
    l.ffn = is_mixture ? r.mixture(Activation::silu, route) : r.gated_ffn(Activation::silu);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
