#include "model/decoder.h"

#include "base/error.h"

namespace tandem {
namespace {

// Builds one graph. x is the residual stream [n, n_embd], which every branch reads and adds to.
class DecoderGraph {
 public:
  DecoderGraph(const DecoderSpec& spec, const ShapeClass& shape)
      : spec_(spec), g_(shape), rope_factors_(spec.rope_factors.at(shape.n_ctx)) {}

  Graph build() {
    x_ = g_.embed(spec_.token_embd, spec_.embedding_scale);
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      g_.set_layer(static_cast<int>(i));
      add_attention(spec_.layers[i], i + 1 == spec_.layers.size());
      add_feed_forward(spec_.layers[i]);
    }
    g_.set_layer(static_cast<int>(spec_.layers.size()));
    TensorId logits = g_.linear(norm(x_, spec_.output_norm), spec_.output);
    if (spec_.logit_scale != 1.0f) logits = g_.scale(logits, spec_.logit_scale);
    if (spec_.logit_softcap > 0.0f) logits = g_.softcap(logits, spec_.logit_softcap);
    return g_.finish(logits);
  }

 private:
  // Normalizes groups of w's width: whole rows, or each head on its own.
  TensorId norm(TensorId x, const Weight* w) {
    return w ? g_.norm(x, NormParams{NormKind::rms, spec_.hparams.norm_eps, w->n_cols}, w) : x;
  }

  TensorId linear(TensorId x, const Linear& l, TensorId residual = kNoTensor) {
    return g_.linear(x, l.w, l.bias, residual);
  }

  TensorId rotate(TensorId x, const AttentionLayer& a, int64_t n_head) {
    if (!a.rotates) return x;
    RopeParams rope = a.rope;
    rope.n_head = n_head;
    return g_.rope(x, rope, rope_factors_);
  }

  TensorId norm_and_rotate(TensorId x, const AttentionLayer& a, const Weight* w, int64_t n_head) {
    return a.rotates_first ? norm(rotate(x, a, n_head), w) : rotate(norm(x, w), a, n_head);
  }

  // Whether the branch's last product can add the residual x: only if nothing is applied to the branch first.
  bool adds_residual(const Weight* post_norm) const {
    return post_norm == nullptr && spec_.residual_scale == 1.0f;
  }

  void add_branch(TensorId branch, const Weight* post_norm) {
    x_ = adds_residual(post_norm) ? branch : g_.add(x_, norm(branch, post_norm), spec_.residual_scale);
  }

  void add_attention(const DecoderLayer& l, bool last) {
    const AttentionLayer& a = l.attention;
    const TensorId in = norm(x_, l.attn_norm);
    const TensorId q = linear(in, a.q);  // [n, n_head * head_dim_k]
    const TensorId k = linear(in, a.k);  // [n, n_head_kv * head_dim_k]
    const TensorId v = linear(in, a.v);  // [n, n_head_kv * head_dim_v]
    AttentionLayer keys = a;
    keys.rope.temperature_scale = 0.0f;  // applies to queries only
    const TensorId q_placed = norm_and_rotate(q, a, a.q_norm, a.params.n_head);
    g_.kv_write(norm_and_rotate(k, keys, a.k_norm, a.params.n_head_kv), v);
    TensorId y = g_.attention(q_placed, a.params, a.sinks);  // [n, n_head * head_dim_v]
    if (last) {                                              // only rows whose logits are needed continue
      y = g_.gather_outputs(y);
      x_ = g_.gather_outputs(x_);
    }
    add_branch(linear(y, a.out, adds_residual(l.attn_post_norm) ? x_ : kNoTensor), l.attn_post_norm);
  }

  void add_feed_forward(const DecoderLayer& l) {
    const TensorId in = norm(x_, l.ffn_norm);
    const TensorId residual = adds_residual(l.ffn_post_norm) ? x_ : kNoTensor;
    add_branch(l.ffn.router.w ? mixture(in, l.ffn, residual) : gated_unit(in, l.ffn, residual),
               l.ffn_post_norm);
  }

  TensorId gated_unit(TensorId in, const FeedForward& f, TensorId residual) {
    const TensorId h = g_.glu(in, f.activation, f.gate.w, f.up.w, f.gate.bias, f.up.bias);  // [n, n_ff]
    return linear(h, f.down, residual);
  }

  TensorId mixture(TensorId in, const FeedForward& f, TensorId residual) {
    const TensorId route = g_.moe_route(linear(in, f.router), f.route, f.selection_bias);
    const MoeFfnParams params{f.route.n_expert, f.route.n_used, f.activation};
    const TensorId y = g_.moe_ffn(in, route, params, f.gate.w, f.up.w, f.down.w, residual,
                                  {f.gate.bias, f.up.bias, f.down.bias});
    if (f.shared_gate.w == nullptr) return y;
    FeedForward shared;
    shared.activation = f.activation;
    shared.gate = f.shared_gate;
    shared.up = f.shared_up;
    shared.down = f.shared_down;
    if (f.shared_expert_gate == nullptr) return gated_unit(in, shared, y);
    const TensorId all = gated_unit(in, shared, kNoTensor);
    return g_.add(y, all, 1.0f, g_.linear(in, f.shared_expert_gate));
  }

  const DecoderSpec& spec_;
  GraphBuilder g_;
  const Weight* rope_factors_;
  TensorId x_ = kNoTensor;
};

class Decoder final : public Architecture {
 public:
  explicit Decoder(DecoderSpec spec) : spec_(std::move(spec)) {
    hparams_ = spec_.hparams;
    TANDEM_CHECK(static_cast<int64_t>(spec_.layers.size()) == hparams_.n_layer);
  }

  KvShape kv_shape(int layer) const override {
    const AttentionParams& params = spec_.layers[layer].attention.params;
    return {params.n_head_kv, params.head_dim_k, params.head_dim_v};
  }

  Graph build(const ShapeClass& shape) const override { return DecoderGraph(spec_, shape).build(); }

 private:
  DecoderSpec spec_;
};

}  // namespace

std::unique_ptr<Architecture> make_decoder(DecoderSpec spec) {
  return std::make_unique<Decoder>(std::move(spec));
}

}  // namespace tandem
