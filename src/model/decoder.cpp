#include "model/decoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/setting.h"
#include "graph/latent_form.h"

namespace tandem {
namespace {

// Whether SelfExtend changes a layer: not one whose window no distance exceeds, nor one without positions.
bool may_extend(const AttentionLayer& a) {
  return a.q.w && a.rotates && a.params.window == 0 && a.latent.v_up == nullptr;
}

// Throws Error(usage) if a model cannot be extended, or not with these numbers.
void check_can_extend(const DecoderSpec& spec) {
  const SelfExtend& o = spec.hparams.self_extend;
  if (!o.on()) return;
  const auto refuse = [&](const std::string& why) {
    throw_error(ErrorCode::usage, "{}: {}", setting_text(Setting::self_extend, o.factor), why);
  };
  bool any = false;
  for (const DecoderLayer& l : spec.layers) {
    const AttentionLayer& a = l.attention;
    if (l.delta_net || l.short_conv || l.mamba2 || !a.q.w) continue;
    if (a.latent.v_up) refuse("the rows of latent attention are cached once, with one rotation");
    if (!may_extend(a)) continue;
    any = true;
    if (a.rope.temperature_scale != 0.0f)
      refuse("this model scales its queries by their positions, and has its own way to long texts");
    TANDEM_CHECK(!a.params.values_in_keys);
  }
  if (!any) {
    refuse(
        "no layer of this model attends to all positions with rotated keys; it has windows, states or no "
        "positions");
  }
  if (o.neighbours >= spec.hparams.n_ctx_train) {
    throw_error(
        ErrorCode::usage,
        "{}: needed less than the {} tokens that the model was trained with, or groups begin beyond them",
        setting_text(Setting::self_extend_width, o.neighbours), spec.hparams.n_ctx_train);
  }
}

// Builds one graph. x is the residual stream [n, n_embd], which every branch reads and adds to.
class DecoderGraph {
 public:
  DecoderGraph(const DecoderSpec& spec, const ShapeClass& shape)
      : spec_(spec), shape_(shape), g_(shape), rope_factors_(spec.rope_factors.at(shape.n_ctx)) {}

  Graph build() {
    x_ = g_.embed(spec_.token_embd, spec_.embedding_scale);
    if (spec_.layer_inputs.token_embd) embed_layer_inputs();
    if (spec_.join_hidden.proj) join_hidden(spec_.join_hidden);
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      g_.set_layer(static_cast<int>(i));
      const DecoderLayer& l = spec_.layers[i];
      const bool last = is_last(i);
      const TensorId deferred = std::exchange(deferred_, kNoTensor);
      if (l.mixer_out().w) {
        add_mixer(l, last);
      } else if (last) {
        x_ = g_.gather_outputs(x_);
      }
      if (l.ffn.down.w) add_feed_forward(l, i);
      if (layer_inputs_ != kNoTensor) add_layer_input(l.input, i);
      if (l.output_scale != 1.0f) x_ = g_.scale(x_, l.output_scale);
      if (deferred != kNoTensor)
        x_ = g_.add(x_, last ? g_.gather_outputs(deferred) : deferred, spec_.residual_scale);
    }
    g_.set_layer(static_cast<int>(spec_.layers.size()));
    const TensorId out = norm(x_, spec_.output_norm), hidden = shape_.keeps_hidden ? out : kNoTensor;
    TensorId logits = g_.linear(shape_.keeps_hidden ? g_.gather_outputs(out) : out, spec_.output);
    if (spec_.logit_scale != 1.0f) logits = g_.scale(logits, spec_.logit_scale);
    if (spec_.logit_softcap > 0.0f) logits = g_.softcap(logits, spec_.logit_softcap);
    return g_.finish(logits, hidden);
  }

 private:
  // Whether only the rows whose logits are needed go on after this layer.
  bool is_last(size_t layer) const { return layer + 1 == spec_.layers.size() && !shape_.keeps_hidden; }

  // Normalizes groups of w's width: whole rows, or each head on its own.
  TensorId norm(TensorId x, const Weight* w) {
    return w ? g_.norm(x, NormParams{NormKind::rms, spec_.hparams.norm_eps, w->n_cols}, w) : x;
  }

  // The rows of the table are gathered where the embedding is; the projection is the first layer's work.
  void embed_layer_inputs() {
    const LayerInputs& in = spec_.layer_inputs;
    const TensorId rows = g_.embed(in.token_embd, in.embedding_scale);
    g_.set_layer(0);
    const TensorId projected = linear(x_, in.proj);
    const NormParams params{NormKind::rms, in.norm_eps, in.norm->n_cols};
    layer_inputs_ = g_.add(g_.norm(projected, params, in.norm), rows);
  }

  void join_hidden(const JoinHidden& j) {
    g_.set_layer(0);
    const TensorId hidden = norm(g_.hidden_input(spec_.hparams.n_embd), j.hidden_norm);
    x_ = g_.linear(g_.join(norm(x_, j.embedding_norm), hidden), j.proj);
  }

  void add_layer_input(const LayerInput& input, size_t layer) {
    const int64_t width = spec_.layer_inputs.norm->n_cols, n_layer = spec_.hparams.n_layer;
    TensorId in = g_.columns(layer_inputs_, {n_layer * width, static_cast<int64_t>(layer) * width, width});
    if (is_last(layer)) in = g_.gather_outputs(in);
    const TensorId gated = g_.gate(in, linear(x_, input.gate), GateKind::gelu_tanh);
    x_ = g_.add(x_, norm(linear(gated, input.out), input.post_norm));
  }

  TensorId linear(TensorId x, const Linear& l, TensorId residual = kNoTensor) {
    return g_.linear(x, l.w, l.bias, residual);
  }

  TensorId rotate(TensorId x, const AttentionLayer& a, int64_t n_head, Input positions = Input::positions) {
    if (!a.rotates) return x;
    RopeParams rope = a.rope;
    rope.n_head = n_head;
    return g_.rope(x, rope, a.has_rope_factors ? rope_factors_ : nullptr, positions);
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

  // What attention or what replaces it adds to the residual stream.
  void add_mixer(const DecoderLayer& l, bool last) {
    const TensorId in = norm(x_, l.attn_norm);
    TensorId y = mix(in, l);
    if (last) {  // only rows whose logits are needed continue
      y = g_.gather_outputs(y);
      x_ = g_.gather_outputs(x_);
    }
    const LatentAttention& latent = l.attention.latent;
    if (latent.v_up && !may_expand(l.attention)) y = g_.head_linear(y, latent.v_up);
    add_branch(linear(y, l.mixer_out(), adds_residual(l.attn_post_norm) ? x_ : kNoTensor), l.attn_post_norm);
  }

  TensorId mix(TensorId in, const DecoderLayer& l) {
    if (l.delta_net) return delta_net(in, *l.delta_net);
    if (l.short_conv) return short_conv(in, *l.short_conv);
    if (l.mamba2) return mamba2(in, *l.mamba2);
    return l.attention.latent.v_up ? latent_attention(in, l.attention) : attention(in, l.attention);
  }

  TensorId attention(TensorId in, const AttentionLayer& a) {
    TensorId q = linear(in, a.q);  // [n, n_head * head_dim_k], or with gates
    TensorId k = kNoTensor, v = kNoTensor;
    if (!a.cache_of) {
      k = linear(in, a.k);              // [n, n_head_kv * head_dim_k]
      v = a.v.w ? linear(in, a.v) : k;  // [n, n_head_kv * head_dim_v]
    }
    TensorId gate = kNoTensor;
    if (a.gated) {
      const int64_t hd_k = a.params.head_dim_k, hd_v = a.params.head_dim_v;
      gate = g_.columns(q, {hd_k + hd_v, hd_k, hd_v});
      q = g_.columns(q, {hd_k + hd_v, 0, hd_k});
    }
    const KvRotation rotation = shape_.kv_rotation(a.cache_of.value_or(g_.layer()));
    TensorId y = extends(a) ? extended(q, k, v, a, rotation) : plain(q, k, v, a, rotation);
    y = g_.hadamard(y, rotation.values);
    return a.gated ? g_.gate(y, gate, GateKind::sigmoid) : y;
  }

  // -> [n, n_head * head_dim_v]. Without k and v, the layer reads another's cache.
  TensorId plain(TensorId q, TensorId k, TensorId v, const AttentionLayer& a, const KvRotation& rotation) {
    const int layer = g_.layer();
    q = g_.hadamard(norm_and_rotate(q, a, a.q_norm, a.params.n_head), rotation.keys);
    if (a.cache_of) g_.set_layer(*a.cache_of);
    if (!a.cache_of) write_cache(k, v, a, rotation);
    AttentionParams params = a.params;
    if (params.window == 0 && !params.values_in_keys) params.sparse = shape_.sparse;
    const TensorId y = g_.attention(q, params, a.sinks);
    g_.set_layer(layer);
    return y;
  }

  // The same by SelfExtend: the neighbours by their positions, what is before them by its groups'.
  TensorId extended(TensorId q, TensorId k, TensorId v, const AttentionLayer& a, const KvRotation& rotation) {
    const int layer = g_.layer();
    const std::array<TensorId, 2> queries =
        rotated_twice(q, a, a.q_norm, a.params.n_head, Input::grouped_queries, rotation);
    if (a.cache_of) {
      g_.set_layer(*a.cache_of);
    } else {
      const std::array<TensorId, 2> keys =
          rotated_twice(k, a, a.k_norm, a.params.n_head_kv, Input::grouped_keys, rotation);
      g_.kv_write(g_.join(keys[0], keys[1]), g_.hadamard(norm(v, a.v_norm), rotation.values));
    }
    AttentionParams near = a.params;
    near.gives_logarithms = true;
    AttentionParams far = near;
    near.window = spec_.hparams.self_extend.neighbours;
    far.key_set = 1;
    const TensorId y_near = g_.attention(queries[0], near, a.sinks);
    const TensorId y_far = g_.attention(queries[1], far, nullptr, Input::far_positions);
    g_.set_layer(layer);
    return g_.merge(y_near, y_far, {a.params.n_head, a.params.head_dim_v});
  }

  // Queries or keys rotated by the positions of tokens, and by those of their groups.
  std::array<TensorId, 2> rotated_twice(TensorId x, const AttentionLayer& a, const Weight* w, int64_t n_head,
                                        Input groups, const KvRotation& rotation) {
    if (!a.rotates_first) x = norm(x, w);
    const int64_t head_dim = a.params.head_dim_k;
    std::array<TensorId, 2> both = {x, g_.columns(x, {head_dim, 0, head_dim})};  // rotations are in place
    for (size_t i = 0; i < 2; ++i) {
      both[i] = rotate(both[i], a, n_head, i == 0 ? Input::positions : groups);
      if (a.rotates_first) both[i] = norm(both[i], w);
      both[i] = g_.hadamard(both[i], rotation.keys);
    }
    return both;
  }

  bool extends(const AttentionLayer& a) const { return spec_.hparams.self_extend.on() && may_extend(a); }

  void write_cache(TensorId k, TensorId v, const AttentionLayer& a, const KvRotation& rotation) {
    AttentionLayer keys = a;
    keys.rope.temperature_scale = 0.0f;  // applies to queries only
    k = norm_and_rotate(k, keys, a.k_norm, a.params.n_head_kv);
    k = g_.hadamard(k, rotation.keys);
    g_.kv_write(k, g_.hadamard(norm(v, a.v_norm), rotation.values));
  }

  // Queries may meet the cached rows themselves: q k^T = q (c k_up^T)^T = (q k_up) c^T, and likewise for values. All
  // heads share one row, so its bytes are read once for all of them. Graphs of steps so large that it can be cheaper to
  // make keys and values leave the choice to the op.
  TensorId latent_attention(TensorId in, const AttentionLayer& a) {
    const LatentAttention& latent = a.latent;
    const TensorId q_down = latent.q_norm ? linear(in, latent.q_down) : in;
    const TensorId down = linear(in, latent.down);  // [n, rank]
    TensorId rotated = linear(in, latent.rotated);  // [n, n_rot]
    TensorId q = linear(norm(q_down, latent.q_norm), a.q);
    RopeParams rope = a.rope;
    rope.n_head = 1;
    rope.head_dim = rope.n_rot;
    rotated = g_.rope(rotated, rope, rope_factors_);
    rope.n_head = a.params.n_head;
    rope.first = latent.k_up->n_cols;
    rope.head_dim = rope.first + rope.n_rot;
    q = g_.rope(q, rope, rope_factors_);  // [n, n_head * key]
    const bool expands = may_expand(a);
    if (!expands) q = g_.head_linear(q, latent.k_up);  // [n, n_head * (rank + n_rot)]
    g_.kv_write(g_.join(norm(down, latent.norm), rotated), kNoTensor);
    if (expands) return g_.latent_attention(q, latent_params(a), latent.k_up, latent.v_up);
    return g_.attention(q, a.params);  // [n, n_head * rank]
  }

  LatentAttentionParams latent_params(const AttentionLayer& a) const {
    const AttentionParams& p = a.params;
    const int64_t n_rot = a.rope.n_rot;
    return {p.n_head,
            p.head_dim_v,
            n_rot,
            a.latent.k_up->n_cols + n_rot,
            a.latent.v_up->n_rows,
            p.scale,
            p.softcap,
            p.window,
            shape_.latent_form};
  }

  // Whether any step of this shape takes the expanded form: at the start of a text it is cheapest.
  bool may_expand(const AttentionLayer& a) const {
    return expands(latent_params(a), static_cast<double>(shape_.max_tokens), 0);
  }

  TensorId delta_net(TensorId in, const DeltaNetLayer& d) {
    const DeltaRuleParams& p = d.params;
    const int64_t ratio = p.n_head_v / p.n_head_k, dk = p.head_dim_k, n_v = ratio * p.head_dim_v;
    TensorId qkv, z;
    if (d.qkvz.w) {
      const TensorId all = linear(in, d.qkvz);
      const auto part = [&](int64_t first, int64_t width) {
        return g_.columns(all, {2 * (dk + n_v), first, width});
      };
      z = part(2 * dk + n_v, n_v);
      qkv = g_.join(g_.join(part(0, dk), part(dk, dk)), part(2 * dk, n_v));
    } else {
      qkv = linear(in, d.qkv);
      z = linear(in, d.z);
    }
    TensorId beta, alpha;
    if (d.beta_alpha.w) {
      const TensorId both = linear(in, d.beta_alpha);
      beta = g_.columns(both, {2 * ratio, 0, ratio});
      alpha = g_.columns(both, {2 * ratio, ratio, ratio});
    } else {
      beta = linear(in, d.beta);
      alpha = linear(in, d.alpha);
    }
    const TensorId y = g_.delta_rule(g_.causal_conv(qkv, d.conv), beta, alpha, p, d.decay, d.dt_bias);
    return g_.gate(norm(y, d.norm), z, GateKind::silu);  // [n, n_head_v * head_dim_v]
  }

  TensorId short_conv(TensorId in, const ShortConvLayer& s) {
    const TensorId b = linear(in, s.b), c = linear(in, s.c), x = linear(in, s.x);
    const TensorId y =
        g_.causal_conv(g_.gate(x, b, GateKind::product), s.conv, nullptr, ConvActivation::none);
    return g_.gate(y, c, GateKind::product);  // [n, n_embd]
  }

  TensorId mamba2(TensorId in, const Mamba2Layer& m) {
    const TensorId z = linear(in, m.z), xbc = linear(in, m.xbc), dt = linear(in, m.dt);
    const TensorId y =
        g_.ssm_scan(g_.causal_conv(xbc, m.conv, m.conv_bias), dt, m.params, {m.decay, m.dt_bias, m.skip});
    return norm(g_.gate(y, z, GateKind::silu), m.norm);  // [n, n_inner]
  }

  // How many of a token's experts the layer defers: its branch must be a sum, and a layer must follow.
  int64_t n_deferred(const DecoderLayer& l, size_t layer) const {
    const bool is_sum = !l.ffn_post_norm && l.output_scale == 1.0f && !l.mixture && !l.ffn.latent_down.w;
    const bool may = is_sum && layer + 1 < spec_.layers.size() && shape_.n_deferred < l.ffn.route.n_used;
    return may ? shape_.n_deferred : 0;
  }

  void add_feed_forward(const DecoderLayer& l, size_t layer) {
    const TensorId in = norm(x_, l.ffn_norm);
    if (l.mixture) {
      const ParallelMixture& m = *l.mixture;
      const TensorId dense = norm(unit(in, l.ffn, kNoTensor), m.dense_post_norm);
      const TensorId chosen = experts(norm(x_, m.norm), norm(x_, m.router_norm), m.experts, kNoTensor);
      return add_branch(g_.add(dense, norm(chosen, m.post_norm)), l.ffn_post_norm);
    }
    const TensorId residual = adds_residual(l.ffn_post_norm) ? x_ : kNoTensor;
    add_branch(
        l.ffn.router.w ? mixture(in, l.ffn, residual, n_deferred(l, layer)) : unit(in, l.ffn, residual),
        l.ffn_post_norm);
  }

  TensorId unit(TensorId in, const FeedForward& f, TensorId residual) {
    if (f.gate.w == nullptr) {
      const TensorId up = linear(in, f.up);
      return linear(g_.gate(up, up, GateKind::relu), f.down, residual);
    }
    const TensorId h = g_.glu(in, f.activation, f.gate.w, f.up.w, f.gate.bias, f.up.bias);  // [n, n_ff]
    return linear(h, f.down, residual);
  }

  // Leaves the sum of the last n_later experts of each token in deferred_.
  TensorId experts(TensorId in, TensorId router_in, const FeedForward& f, TensorId residual,
                   int64_t n_later = 0) {
    const TensorId route =
        g_.moe_route(linear(router_in, f.router), f.route, f.selection_bias, f.expert_scale);
    if (f.latent_down.w) {
      const TensorId y = some_experts(linear(in, f.latent_down), route, f, f.route.n_used, kNoTensor);
      return linear(y, f.latent_up, residual);
    }
    if (n_later == 0) return some_experts(in, route, f, f.route.n_used, residual);
    const int64_t n_used = f.route.n_used, n_now = n_used - n_later;
    const TensorId now = g_.columns(route, {n_used, 0, n_now}),
                   later = g_.columns(route, {n_used, n_now, n_later});
    const TensorId y = some_experts(in, now, f, n_now, residual);
    deferred_ = some_experts(in, later, f, n_later, kNoTensor, true);
    return y;
  }

  TensorId some_experts(TensorId in, TensorId route, const FeedForward& f, int64_t n_used, TensorId residual,
                        bool joins_later = false) {
    const MoeFfnParams params{f.route.n_expert, n_used, f.activation, joins_later};
    return g_.moe_ffn(in, route, params, f.gate.w, f.up.w, f.down.w, residual,
                      {f.gate.bias, f.up.bias, f.down.bias, f.gate_factors});
  }

  TensorId mixture(TensorId in, const FeedForward& f, TensorId residual, int64_t n_later) {
    const TensorId y = experts(in, in, f, residual, n_later);
    if (f.shared_up.w == nullptr) return y;
    FeedForward shared;
    shared.activation = f.activation;
    shared.gate = f.shared_gate;
    shared.up = f.shared_up;
    shared.down = f.shared_down;
    if (f.shared_expert_gate == nullptr) return unit(in, shared, y);
    const TensorId all = unit(in, shared, kNoTensor);
    return g_.add(y, all, 1.0f, g_.linear(in, f.shared_expert_gate));
  }

  const DecoderSpec& spec_;
  const ShapeClass shape_;
  GraphBuilder g_;
  const Weight* rope_factors_;
  TensorId x_ = kNoTensor;
  TensorId layer_inputs_ = kNoTensor;  // [n, n_layer * width]
  TensorId deferred_ = kNoTensor;      // [n, n_embd] of the layer before, not added to x_ yet
};

class Decoder final : public Architecture {
 public:
  explicit Decoder(DecoderSpec spec) : spec_(std::move(spec)) {
    // An MTP layer goes with its model.
    const bool any =
        std::ranges::any_of(spec_.layers, [](const DecoderLayer& l) { return may_extend(l.attention); });
    if (spec_.join_hidden.proj && !any) spec_.hparams.self_extend = {};
    hparams_ = spec_.hparams;
    TANDEM_CHECK(static_cast<int64_t>(spec_.layers.size()) == hparams_.n_layer);
    check_can_extend(spec_);
  }

  KvShape kv_shape(int layer) const override {
    const DecoderLayer& l = spec_.layers[layer];
    const auto recurrent = [](const Weight* conv, int64_t n_recurrence) {
      return KvShape{0, 0, 0, (conv->n_cols - 1) * conv->n_rows, n_recurrence};
    };
    if (l.delta_net) {
      const DeltaRuleParams& p = l.delta_net->params;
      return recurrent(l.delta_net->conv, p.n_head_v * p.head_dim_k * p.head_dim_v);
    }
    if (l.short_conv) return recurrent(l.short_conv->conv, 0);
    if (l.mamba2) return recurrent(l.mamba2->conv, l.mamba2->params.n_inner() * l.mamba2->params.n_state);
    if (l.attention.cache_of) return {};
    const AttentionParams& params = l.attention.params;
    KvShape shape{params.n_head_kv, params.head_dim_k, params.values_in_keys ? 0 : params.head_dim_v};
    shape.window = params.window;
    if (hparams_.self_extend.on() && may_extend(l.attention)) shape.n_key_sets = 2;
    shape.is_shared = std::ranges::any_of(
        spec_.layers, [&](const DecoderLayer& other) { return other.attention.cache_of == layer; });
    return shape;
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
