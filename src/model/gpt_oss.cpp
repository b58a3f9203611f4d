// gpt-oss: a mixture of experts with biases everywhere and a clamped SiLU gate; a sliding window of 128
// tokens in every other layer; each head has a sink, a score that takes part in the softmax but adds no
// value. YaRN's ramp is not rounded to whole pairs. (arXiv:2508.10925)
#include "model/decoder_reader.h"

namespace tandem {

std::unique_ptr<Architecture> load_gpt_oss(const ModelSource& source) {
  DecoderReader r(source, "gpt-oss", RopeStyle::half);
  const MoeRouteParams route = r.read_experts(true);  // softmax over the chosen experts
  const std::vector<int64_t> windows = r.windows(2, 128);
  DecoderSpec spec = r.begin();
  for (int64_t window : windows) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    l.attention = r.attention();
    l.attention.sinks = r.per_head("attn_sinks");
    l.attention.params.window = window;
    l.attention.rope.yarn_truncate = false;
    l.ffn_norm = r.norm("post_attention_norm");
    l.ffn = r.mixture(Activation::swiglu_oai, route);
  }
  return make_decoder(std::move(spec));
}

}  // namespace tandem
