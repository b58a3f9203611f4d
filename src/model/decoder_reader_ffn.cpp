// Feed-forward parts: gated units and mixtures of them.
#include <algorithm>

#include "base/error.h"
#include "model/decoder_reader.h"

namespace tandem {

FeedForward DecoderReader::plain_ffn() {
  FeedForward f;
  f.activation = Activation::relu2;
  f.up = linear("ffn_up", n_ff_dense_, hparams_.n_embd);
  f.down = linear("ffn_down", hparams_.n_embd, n_ff_dense_);
  return f;
}

FeedForward DecoderReader::gated_ffn(Activation activation) {
  return gated_ffn(activation, n_ff_dense_);
}

FeedForward DecoderReader::gated_ffn(Activation activation, int64_t n_ff) {
  const int64_t n_embd = hparams_.n_embd;
  FeedForward f;
  f.activation = activation;
  f.gate = linear("ffn_gate", n_ff, n_embd);
  f.up = linear("ffn_up", n_ff, n_embd);
  f.down = linear("ffn_down", n_embd, n_ff);
  return f;
}

FeedForward DecoderReader::fused_ffn(Activation activation) {
  const Hparams& h = hparams_;
  FeedForward f;
  f.activation = activation;
  f.gate.w = w_.rows_of("ffn_up.weight", {2 * h.n_ff, 0, h.n_ff}, h.n_embd);
  f.up.w = w_.rows_of("ffn_up.weight", {2 * h.n_ff, h.n_ff, h.n_ff}, h.n_embd);
  f.down = linear("ffn_down", h.n_embd, h.n_ff);
  return f;
}

FeedForward DecoderReader::mixture(Activation activation, const MoeRouteParams& route) {
  const Hparams& h = hparams_;
  FeedForward f;
  f.activation = activation;
  f.route = route;
  f.router = linear("ffn_gate_inp", h.n_expert, h.n_embd);
  f.selection_bias = w_.optional_vector("exp_probs_b.bias", h.n_expert);
  if (w_.has("ffn_gate_up_exps.weight")) {
    f.gate.w = w_.experts("ffn_gate_up_exps.weight", h.n_expert, 2 * h.n_ff, h.n_embd);
  } else {
    f.gate = experts("ffn_gate_exps", h.n_ff, h.n_embd);
    f.up = experts("ffn_up_exps", h.n_ff, h.n_embd);
  }
  f.down = experts("ffn_down_exps", h.n_embd, h.n_ff);
  take_factors(f);
  return f;
}

Linear DecoderReader::experts(const std::string& name, int64_t n_rows, int64_t n_cols) {
  const Weight* matrices = w_.experts(name + ".weight", hparams_.n_expert, n_rows, n_cols);
  const Weight* biases = w_.optional_vectors(name + ".bias", hparams_.n_expert, n_rows);
  if (biases && !matrices->factors.empty()) w_.refuse(*biases, "biases of experts beside scales of their matrices are");
  return {matrices, biases};
}

// Of the experts' matrices: the factors of what an activation follows are an input of the op, all others those of what the experts
// return.
void DecoderReader::take_factors(FeedForward& f) {
  const auto factor = [](const Weight* w, size_t expert) { return w == nullptr || w->factors.empty() ? 1.0f : w->factors[expert]; };
  const auto has = [](const Weight* w) { return w != nullptr && !w->factors.empty(); };
  const Weight *gate = f.gate.w, *up = f.up.w ? f.up.w : f.gate.w, *down = f.down.w;
  if (!has(gate) && !has(up) && !has(down)) return;
  if (f.activation == Activation::swiglu_oai) w_.refuse(*up, "a scale of the whole matrix with this activation is");
  std::vector<float> results(static_cast<size_t>(hparams_.n_expert));
  for (size_t e = 0; e < results.size(); ++e) {
    const float of_up = factor(up, e);
    if (!gate && of_up < 0) w_.refuse(*up, "a negative scale before this activation is");  // of a square only where x > 0
    results[e] = (gate ? of_up : of_up * of_up) * factor(down, e);
  }
  if (has(gate)) f.gate_factors = w_.floats("ffn_gate_exps.factors", gate->factors, hparams_.n_expert);
  f.expert_scale = w_.floats("ffn_exps.factors", std::move(results));
}

FeedForward DecoderReader::plain_mixture(const MoeRouteParams& route, int64_t n_latent, int64_t n_ff_shared) {
  const Hparams& h = hparams_;
  const int64_t width = n_latent > 0 ? n_latent : h.n_embd;
  FeedForward f;
  f.activation = Activation::relu2;
  f.route = route;
  f.router = linear("ffn_gate_inp", h.n_expert, h.n_embd);
  f.selection_bias = w_.optional_vector("exp_probs_b.bias", h.n_expert);
  if (n_latent > 0) {
    f.latent_down = linear("ffn_latent_down", n_latent, h.n_embd);
    f.latent_up = linear("ffn_latent_up", h.n_embd, n_latent);
  }
  f.up = experts("ffn_up_exps", h.n_ff, width);
  f.down = experts("ffn_down_exps", width, h.n_ff);
  take_factors(f);
  if (n_ff_shared > 0) {
    f.shared_up = linear("ffn_up_shexp", n_ff_shared, h.n_embd);
    f.shared_down = linear("ffn_down_shexp", h.n_embd, n_ff_shared);
  }
  return f;
}

void DecoderReader::add_shared_expert(FeedForward& mixture, int64_t n_ff) {
  const int64_t n_embd = hparams_.n_embd;
  mixture.shared_gate = linear("ffn_gate_shexp", n_ff, n_embd);
  mixture.shared_up = linear("ffn_up_shexp", n_ff, n_embd);
  mixture.shared_down = linear("ffn_down_shexp", n_embd, n_ff);
}

FeedForward DecoderReader::dense_or_mixture(Activation activation, const Mixtures& mixtures) {
  if (!mixtures.at(first_layer_ + n_layers_read_ - 1)) return gated_ffn(activation);
  FeedForward f = mixture(activation, mixtures.route);
  if (mixtures.n_ff_shared > 0 || w_.has("ffn_gate_shexp.weight")) add_shared_expert(f, mixtures.n_ff_shared);
  return f;
}

MoeRouteParams DecoderReader::read_experts(bool normalize, MoeScoring scoring) {
  Hparams& h = hparams_;
  h.n_expert = integer("expert_count", 1, 65536);
  h.n_expert_used = integer("expert_used_count", 1, h.n_expert);
  h.n_ff = integer_or("expert_feed_forward_length", h.n_ff, 1, kMaxDimension);
  MoeRouteParams route{h.n_expert, h.n_expert_used};
  route.scoring = scoring;
  route.normalize = flag_or("expert_weights_norm", normalize);
  read_scoring(route);
  read_groups(route);
  const float scale = number_or("expert_weights_scale", 1.0f, 0.0f, 1e6f);
  route.scale = scale == 0.0f ? 1.0f : scale;
  return route;
}

void DecoderReader::read_scoring(MoeRouteParams& route) const {
  constexpr int64_t kUnset = 0, kSoftmax = 1, kSigmoid = 2, kSoftmaxOfChosen = 3;
  const int64_t scoring = integer_or("expert_gating_func", kUnset, INT32_MIN, INT32_MAX);
  if (scoring == kUnset) return;
  if (scoring != kSoftmax && scoring != kSigmoid && scoring != kSoftmaxOfChosen) {
    fail("expert_gating_func", std::to_string(scoring),
         "1 (softmax), 2 (sigmoid) or 3 (softmax of the chosen)");
  }
  route.scoring = scoring == kSigmoid ? MoeScoring::sigmoid : MoeScoring::softmax;
  if (scoring == kSoftmaxOfChosen) route.normalize = true;
}

void DecoderReader::read_groups(MoeRouteParams& route) const {
  route.n_group = integer_or("expert_group_count", 1, 0, route.n_expert);
  if (route.n_group <= 1) {
    route.n_group = 1;
    return;
  }
  if (route.n_expert % route.n_group != 0) {
    fail("expert_group_count", std::to_string(route.n_group),
         "a divisor of expert_count, " + std::to_string(route.n_expert));
  }
  route.n_group_used = integer("expert_group_used_count", 1, route.n_group);
  const int64_t n_choosable = route.n_expert / route.n_group * route.n_group_used;
  if (route.n_used > n_choosable) {
    fail("expert_group_used_count", std::to_string(route.n_group_used),
         format("groups of at least expert_used_count, {}, experts: these have {}", route.n_used,
                n_choosable));
  }
}

Mixtures DecoderReader::read_mixtures(bool normalize, MoeScoring scoring) {
  Mixtures m{read_experts(normalize, scoring)};
  m.n_dense = integer_or("leading_dense_block_count", 0, 0, hparams_.n_layer);
  m.period = std::max<int64_t>(1, integer_or("interleave_moe_layer_step", 1, 0, INT32_MAX));
  // Files of models without shared experts may give a width all the same, and others no count.
  constexpr int64_t kUnknown = -1;
  const int64_t n_shared = integer_or("expert_shared_count", kUnknown, 0, 65536);
  if (n_shared != 0) {
    m.n_ff_shared = integer_or("expert_shared_feed_forward_length",
                               std::max<int64_t>(0, n_shared) * hparams_.n_ff, 0, int64_t{1} << 40);
  }
  return m;
}

}  // namespace tandem
