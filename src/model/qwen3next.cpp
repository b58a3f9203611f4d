// Qwen3-Next, and Qwen3.5 and 3.6: three layers with the gated delta rule (arXiv:2412.06464) alternate with one of
// attention, whose result is gated and whose heads are normalized and partly rotated. In a mixture, every layer has
// many small experts, whose weights sum to 1, with a gated shared expert.
//
// Qwen3-Next stores the value heads that share a key head together. Qwen3.5 and later store them so that head h
// uses key head h modulo their number. They are vision models, of which this is the text part: text has one position
// where pictures have three, so the rotation is the usual one.
#include "model/decoder_reader.h"

namespace tandem {
namespace {

enum class Kind { dense, mixture };

std::unique_ptr<Architecture> load(const ModelSource& source, const char* architecture, Kind kind,
                                   HeadOrder order) {
  DecoderReader r(source, architecture, RopeStyle::half);
  r.choose_part();
  int64_t n_ff_shared = 0;
  MoeRouteParams route;
  if (kind == Kind::mixture) {
    route = r.read_experts(true);
    n_ff_shared = r.integer_or("expert_shared_feed_forward_length", r.hparams().n_ff, 1, kMaxDimension);
  }
  const std::vector<bool> recurrent = r.read_delta_net();
  DecoderSpec spec = r.begin();
  for (int i = 0; i < r.hparams().n_layer; ++i) {
    DecoderLayer& l = r.next_layer(spec);
    l.attn_norm = r.norm("attn_norm");
    if (recurrent[static_cast<size_t>(i)]) {
      l.delta_net = r.delta_net(order);
    } else {
      l.attention = r.gated_attention();
      l.attention.q_norm = r.head_norm("attn_q_norm");
      l.attention.k_norm = r.head_norm("attn_k_norm");
    }
    l.ffn_norm = r.norm("post_attention_norm");
    if (kind == Kind::dense) {
      l.ffn = r.gated_ffn(Activation::silu);
      continue;
    }
    l.ffn = r.mixture(Activation::silu, route);
    r.add_shared_expert(l.ffn, n_ff_shared);
    l.ffn.shared_expert_gate = r.linear("ffn_gate_inp_shexp", 1, r.hparams().n_embd).w;
  }
  return make_decoder(std::move(spec));
}

}  // namespace

std::unique_ptr<Architecture> load_qwen3next(const ModelSource& source) {
  return load(source, "qwen3next", Kind::mixture, HeadOrder::grouped);
}

std::unique_ptr<Architecture> load_qwen35(const ModelSource& source) {
  return load(source, "qwen35", Kind::dense, HeadOrder::tiled);
}

std::unique_ptr<Architecture> load_qwen35moe(const ModelSource& source) {
  return load(source, "qwen35moe", Kind::mixture, HeadOrder::tiled);
}

}  // namespace tandem
