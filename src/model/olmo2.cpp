// OLMo 2: norms come after the branches instead of before them, and queries and keys are normalized as whole
// rows, not per head (arXiv:2501.00656). OLMo 3: three layers with a sliding window and plain rotation, then
// one with full attention, the only one with context scaling.
#include "model/decoder_reader.h"

namespace tandem {
namespace {

RopeParams without_context_scaling(RopeParams rope) {
  rope.freq_scale = 1.0f;
  rope.ext_factor = 0.0f;
  rope.attn_factor = 1.0f;
  return rope;
}

}  // namespace

std::unique_ptr<Architecture> load_olmo2(const ModelSource& source) {
  DecoderReader r(source, "olmo2", RopeStyle::half);
  const std::vector<int64_t> windows = r.windows(4, 0);
  DecoderSpec spec = r.begin();
  for (int64_t window : windows) {
    DecoderLayer& l = r.next_layer(spec);
    l.attention = r.attention();
    l.attention.q_norm = r.row_norm("attn_q_norm", r.hparams().n_head);
    l.attention.k_norm = r.row_norm("attn_k_norm", r.hparams().n_head_kv);
    l.attention.params.window = window;
    if (window > 0) l.attention.rope = without_context_scaling(r.rope());
    l.attn_post_norm = r.norm("post_attention_norm");
    l.ffn = r.gated_ffn(Activation::silu);
    l.ffn_post_norm = r.norm("post_ffw_norm");
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
