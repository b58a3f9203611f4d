#include "graph/builder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "graph/top_k.h"

namespace tandem {

GraphBuilder::GraphBuilder(const ShapeClass& shape) {
  graph_.shape = shape;
  graph_.inputs.fill(kNoTensor);
}

TensorId GraphBuilder::input(Input which) {
  TensorId& id = graph_.inputs[static_cast<size_t>(which)];
  if (id != kNoTensor) return id;
  static constexpr const char* names[kInputCount] = {
      "ids",      "positions", "sequences", "slots",  "block_table",   "outputs",         "hot_blocks",
      "hot_from", "hot_slots", "states",    "hidden", "far_positions", "grouped_queries", "grouped_keys"};
  Tensor t;
  t.name = names[static_cast<size_t>(which)];
  t.role = Role::input;
  t.dtype = DType::I32;
  t.input = which;
  t.n_rows = 1;
  switch (which) {
    case Input::outputs: t.n_cols = graph_.shape.max_outputs; break;
    case Input::block_table:
      t.n_rows = graph_.shape.max_sequences;
      t.n_cols = graph_.shape.max_blocks;
      break;
    case Input::hot_blocks:
      t.n_rows = graph_.shape.max_sequences;
      t.n_cols = graph_.shape.max_hot_blocks;
      break;
    case Input::states:
      t.n_rows = graph_.shape.max_sequences;
      t.n_cols = 2;
      break;
    case Input::hot_from: t.n_cols = graph_.shape.max_sequences; break;
    default: t.n_cols = graph_.shape.max_tokens;
  }
  id = static_cast<TensorId>(graph_.tensors.size());
  t.storage = id;
  graph_.tensors.push_back(std::move(t));
  return id;
}

TensorId GraphBuilder::hidden_input(int64_t n_embd) {
  const TensorId id = input(Input::hidden);
  Tensor& t = graph_.tensors[static_cast<size_t>(id)];
  t.dtype = DType::F32;
  t.extent = Extent::tokens;
  t.n_rows = graph_.shape.max_tokens;
  t.n_cols = n_embd;
  return id;
}

namespace {

GateKind gate_kind(Activation activation, const Weight& gate) {
  if (activation == Activation::silu) return GateKind::silu;
  if (activation == Activation::gelu_tanh) return GateKind::gelu_tanh;
  throw_error(ErrorCode::bad_file, "tensor {}: a scale of the whole tensor is not supported with this activation",
              printable(gate.name));
}

}  // namespace

TensorId GraphBuilder::weight(const Weight* w) {
  if (w != nullptr && !w->factors.empty()) {
    throw_error(ErrorCode::bad_file, "tensor {}: a scale of the whole tensor is not supported", printable(w->name));
  }
  return matrix(w);
}

TensorId GraphBuilder::matrix(const Weight* w) {
  if (w == nullptr) return kNoTensor;
  const auto [it, added] = weights_.try_emplace(w, static_cast<TensorId>(graph_.tensors.size()));
  if (!added) return it->second;
  Tensor t;
  t.name = w->name;
  t.role = Role::weight;
  t.dtype = w->dtype;
  t.n_rows = w->n_rows * w->n_mats;
  t.n_cols = w->n_cols;
  t.storage = it->second;
  t.weight = w;
  graph_.tensors.push_back(std::move(t));
  return it->second;
}

TensorId GraphBuilder::append(Op op, int64_t n_cols, Extent extent, TensorId in_place_of) {
  const TensorId id = static_cast<TensorId>(graph_.tensors.size());
  Tensor t;
  t.name = std::string(op_name(op)) + "." + std::to_string(graph_.nodes.size());
  t.extent = extent;
  t.n_rows = extent == Extent::outputs ? graph_.shape.max_outputs : graph_.shape.max_tokens;
  t.n_cols = n_cols;
  t.storage = in_place_of == kNoTensor ? id : tensor(in_place_of).storage;
  graph_.tensors.push_back(std::move(t));
  graph_.nodes.push_back(Node{std::move(op), id, layer_});
  return id;
}

TensorId GraphBuilder::embed(const Weight* table, float scale) {
  if (!table->factors.empty()) scale *= table->factors.front();
  return append(EmbedOp{input(Input::ids), matrix(table), scale}, table->n_cols, Extent::tokens);
}

TensorId GraphBuilder::norm(TensorId x, const NormParams& params, const Weight* w, const Weight* bias) {
  TANDEM_CHECK(params.group > 0 && tensor(x).n_cols % params.group == 0 && w->n_cols == params.group);
  TANDEM_CHECK(w->n_rows == 1 || (bias == nullptr && w->n_rows == tensor(x).n_cols / params.group));
  return append(NormOp{params, x, weight(w), weight(bias)}, tensor(x).n_cols, tensor(x).extent);
}

TensorId GraphBuilder::linear(TensorId x, const Weight* w, const Weight* bias, TensorId residual) {
  TANDEM_CHECK(tensor(x).n_cols == w->n_cols && (bias == nullptr || bias->n_cols == w->n_rows));
  TANDEM_CHECK(residual == kNoTensor ||
               (tensor(residual).n_cols == w->n_rows && tensor(residual).extent == tensor(x).extent));
  if (w->factors.empty()) return append(LinearOp{x, weight(w), weight(bias), residual}, w->n_rows, tensor(x).extent);
  const TensorId product = append(LinearOp{x, matrix(w), weight(bias)}, w->n_rows, tensor(x).extent);
  const float factor = w->factors.front();
  return residual == kNoTensor ? scale(product, factor) : add(residual, product, factor);
}

TensorId GraphBuilder::head_linear(TensorId x, const Weight* w) {
  const int64_t n_head = w->n_mats, head_cols = tensor(x).n_cols / n_head;
  TANDEM_CHECK(tensor(x).n_cols % n_head == 0 && head_cols >= w->n_cols);
  return append(HeadLinearOp{x, weight(w)}, n_head * (w->n_rows + head_cols - w->n_cols), tensor(x).extent);
}

TensorId GraphBuilder::rope(TensorId x, const RopeParams& params, const Weight* freq_factors,
                            Input positions) {
  TANDEM_CHECK(tensor(x).n_cols == params.n_head * params.head_dim && params.first >= 0 &&
               params.first + params.n_rot <= params.head_dim && params.n_rot % 2 == 0);
  TANDEM_CHECK(freq_factors == nullptr || freq_factors->n_cols == params.n_rot / 2);
  TANDEM_CHECK(params.temperature_scale == 0.0f ||
               (params.n_rot == params.head_dim && params.temperature_length >= 1));
  return append(RopeOp{params, x, input(positions), weight(freq_factors)}, tensor(x).n_cols, Extent::tokens,
                x);
}

TensorId GraphBuilder::hadamard(TensorId x, int64_t width) {
  if (width == 0) return x;
  TANDEM_CHECK(width >= kMinHadamard && width <= kMaxHadamard && (width & (width - 1)) == 0 &&
               tensor(x).n_cols % width == 0);
  return append(HadamardOp{x, width}, tensor(x).n_cols, tensor(x).extent, x);
}

void GraphBuilder::kv_write(TensorId k, TensorId v) {
  graph_.nodes.push_back(Node{KvWriteOp{k, v, input(Input::slots)}, kNoTensor, layer_});
}

TensorId GraphBuilder::attention(TensorId q, const AttentionParams& params, const Weight* sinks,
                                 Input positions) {
  TANDEM_CHECK(tensor(q).n_cols == params.n_head * params.head_dim_k &&
               params.n_head % params.n_head_kv == 0);
  TANDEM_CHECK(!params.values_in_keys || params.head_dim_v <= params.head_dim_k);
  const bool whole = params.part == KvPart::whole;
  const TensorId blocks = input(params.part == KvPart::hot ? Input::hot_blocks : Input::block_table);
  const AttentionOp op{params,
                       q,
                       input(positions),
                       input(Input::sequences),
                       blocks,
                       weight(sinks),
                       whole ? kNoTensor : input(Input::hot_from)};
  return append(op, op.n_result_columns(), Extent::tokens);
}

TensorId GraphBuilder::latent_attention(TensorId q, const LatentAttentionParams& p, const Weight* k_up,
                                        const Weight* v_up) {
  TANDEM_CHECK(tensor(q).n_cols == p.n_head * p.key && tensor(q).extent == Extent::tokens);
  TANDEM_CHECK(k_up->n_mats == p.n_head && k_up->n_rows == p.rank && k_up->n_cols == p.key - p.n_rot);
  TANDEM_CHECK(v_up->n_mats == p.n_head && v_up->n_rows == p.value && v_up->n_cols == p.rank);
  return append(LatentAttentionOp{p, q, weight(k_up), weight(v_up), input(Input::positions),
                                  input(Input::sequences), input(Input::block_table)},
                p.n_head * p.value, Extent::tokens);
}

TensorId GraphBuilder::merge(TensorId a, TensorId b, const MergeParams& params) {
  const int64_t n_cols = params.n_head * (params.head_dim_v + 1);
  TANDEM_CHECK(tensor(a).n_cols == n_cols && tensor(b).n_cols == n_cols &&
               tensor(a).extent == tensor(b).extent);
  return append(MergeOp{params, a, b}, params.n_head * params.head_dim_v, tensor(a).extent);
}

TensorId GraphBuilder::join(TensorId a, TensorId b, TensorId residual) {
  const int64_t n_cols = tensor(a).n_cols + tensor(b).n_cols;
  TANDEM_CHECK(tensor(a).extent == tensor(b).extent);
  TANDEM_CHECK(residual == kNoTensor || tensor(residual).n_cols == n_cols);
  return append(JoinOp{a, b, residual}, n_cols, tensor(a).extent);
}

TensorId GraphBuilder::glu(TensorId x, Activation activation, const Weight* gate, const Weight* up,
                           const Weight* gate_bias, const Weight* up_bias) {
  TANDEM_CHECK(tensor(x).n_cols == gate->n_cols && up->n_cols == gate->n_cols && up->n_rows == gate->n_rows);
  if (!gate->factors.empty() || !up->factors.empty()) {
    const TensorId gates = linear(x, gate, gate_bias);
    return this->gate(linear(x, up, up_bias), gates, gate_kind(activation, *gate));
  }
  return append(GluOp{x, weight(gate), weight(up), weight(gate_bias), weight(up_bias), activation},
                gate->n_rows, tensor(x).extent);
}

TensorId GraphBuilder::moe_route(TensorId logits, const MoeRouteParams& params, const Weight* selection_bias,
                                 const Weight* expert_scale) {
  TANDEM_CHECK(tensor(logits).n_cols == params.n_expert && params.n_used >= 1 &&
               params.n_used <= params.n_expert);
  TANDEM_CHECK(selection_bias == nullptr || selection_bias->n_cols == params.n_expert);
  TANDEM_CHECK(expert_scale == nullptr || expert_scale->n_cols == params.n_expert);
  TANDEM_CHECK(params.n_group >= 1 && params.n_expert % params.n_group == 0 &&
               params.n_group_used <= params.n_group);
  return append(MoeRouteOp{params, logits, weight(selection_bias), weight(expert_scale)}, 2 * params.n_used,
                tensor(logits).extent);
}

TensorId GraphBuilder::moe_ffn(TensorId x, TensorId route, const MoeFfnParams& params, const Weight* gate,
                               const Weight* up, const Weight* down, TensorId residual,
                               const ExpertBiases& biases) {
  TANDEM_CHECK(tensor(route).n_cols == 2 * params.n_used && tensor(route).extent == tensor(x).extent);
  const int64_t n_ff = down->n_cols;
  const Weight* first = gate ? gate : up;
  TANDEM_CHECK(first->n_mats == params.n_expert && down->n_mats == params.n_expert);
  TANDEM_CHECK(first->n_cols == tensor(x).n_cols && first->n_rows == (up ? n_ff : 2 * n_ff));
  TANDEM_CHECK(up == nullptr ||
               (up->n_mats == params.n_expert && up->n_cols == first->n_cols && up->n_rows == n_ff));
  TANDEM_CHECK(up != nullptr || (biases.gate == nullptr && biases.up == nullptr));
  TANDEM_CHECK(gate != nullptr || (params.activation == Activation::relu2 && biases.gate == nullptr));
  const auto fits = [&](const Weight* bias, const Weight* w) {
    return bias == nullptr || (bias->n_rows == params.n_expert && bias->n_cols == w->n_rows);
  };
  TANDEM_CHECK(fits(biases.gate, gate) && fits(biases.up, up) && fits(biases.down, down));
  const Weight* factors = biases.gate_factors;
  TANDEM_CHECK(factors == nullptr || (factors->n_rows == params.n_expert && factors->n_cols == 1 && gate && !biases.gate));
  return append(MoeFfnOp{params, x, route, matrix(gate), matrix(up), matrix(down), residual,
                         weight(biases.gate), weight(biases.up), weight(biases.down), weight(factors)},
                down->n_rows, tensor(x).extent);
}

TensorId GraphBuilder::add(TensorId a, TensorId b, float factor, TensorId gate) {
  TANDEM_CHECK(tensor(a).n_cols == tensor(b).n_cols && tensor(a).extent == tensor(b).extent);
  TANDEM_CHECK(gate == kNoTensor || (tensor(gate).n_cols == 1 && tensor(gate).extent == tensor(a).extent));
  return append(AddOp{a, b, gate, factor}, tensor(a).n_cols, tensor(a).extent);
}

TensorId GraphBuilder::scale(TensorId x, float factor) {
  return append(ScaleOp{x, factor}, tensor(x).n_cols, tensor(x).extent);
}

TensorId GraphBuilder::softcap(TensorId x, float cap) {
  return append(SoftcapOp{x, cap}, tensor(x).n_cols, tensor(x).extent);
}

TensorId GraphBuilder::top_k(TensorId x, int64_t k) {
  TANDEM_CHECK(k >= 1 && k <= kMaxTopK && k <= tensor(x).n_cols);
  return append(TopKOp{x, k}, 2 * k, tensor(x).extent);
}

TensorId GraphBuilder::columns(TensorId x, const ColumnsParams& p) {
  TANDEM_CHECK(p.period > 0 && tensor(x).n_cols % p.period == 0 && p.first >= 0 && p.width > 0 &&
               p.first + p.width <= p.period);
  return append(ColumnsOp{p, x}, tensor(x).n_cols / p.period * p.width, tensor(x).extent);
}

TensorId GraphBuilder::gate(TensorId x, TensorId gate, GateKind kind) {
  TANDEM_CHECK(tensor(x).n_cols == tensor(gate).n_cols && tensor(x).extent == tensor(gate).extent);
  return append(GateOp{x, gate, kind}, tensor(x).n_cols, tensor(x).extent);
}

TensorId GraphBuilder::causal_conv(TensorId x, const Weight* w, const Weight* bias,
                                   ConvActivation activation) {
  TANDEM_CHECK(w->n_rows == tensor(x).n_cols && w->n_cols >= 2 && w->dtype == DType::F32);
  TANDEM_CHECK(bias == nullptr || (bias->n_cols == tensor(x).n_cols && bias->dtype == DType::F32));
  return append(CausalConvOp{activation, x, weight(w), weight(bias), input(Input::positions),
                             input(Input::sequences), input(Input::states)},
                tensor(x).n_cols, Extent::tokens);
}

TensorId GraphBuilder::delta_rule(TensorId qkv, TensorId beta, TensorId alpha, const DeltaRuleParams& params,
                                  const Weight* decay, const Weight* dt_bias) {
  TANDEM_CHECK(params.n_head_k > 0 && params.n_head_v % params.n_head_k == 0 &&
               tensor(qkv).n_cols == params.n_qkv());
  TANDEM_CHECK(tensor(beta).n_cols == params.n_head_v && tensor(alpha).n_cols == params.n_head_v);
  TANDEM_CHECK(decay->n_cols == params.n_head_v && dt_bias->n_cols == params.n_head_v);
  return append(DeltaRuleOp{params, qkv, beta, alpha, weight(decay), weight(dt_bias), input(Input::positions),
                            input(Input::sequences), input(Input::states)},
                params.n_head_v * params.head_dim_v, Extent::tokens);
}

TensorId GraphBuilder::ssm_scan(TensorId xbc, TensorId dt, const SsmScanParams& params,
                                const SsmScanWeights& weights) {
  TANDEM_CHECK(params.n_group > 0 && params.n_head % params.n_group == 0);
  TANDEM_CHECK(tensor(xbc).n_cols == params.n_xbc() && tensor(dt).n_cols == params.n_head);
  for (const Weight* w : {weights.decay, weights.dt_bias, weights.skip}) {
    TANDEM_CHECK(w->n_cols == params.n_head && w->dtype == DType::F32);
  }
  return append(
      SsmScanOp{params, xbc, dt, weight(weights.decay), weight(weights.dt_bias), weight(weights.skip),
                input(Input::positions), input(Input::sequences), input(Input::states)},
      params.n_inner(), Extent::tokens);
}

TensorId GraphBuilder::gather_outputs(TensorId x) {
  return append(GatherRowsOp{x, input(Input::outputs)}, tensor(x).n_cols, Extent::outputs);
}

Graph GraphBuilder::finish(TensorId logits, TensorId hidden) {
  TANDEM_CHECK(tensor(logits).extent == Extent::outputs);
  TANDEM_CHECK(hidden == kNoTensor || tensor(hidden).extent == Extent::tokens);
  graph_.logits = logits;
  graph_.hidden = hidden;
  if (const int64_t k = std::min(graph_.shape.n_top, tensor(logits).n_cols); k > 0)
    graph_.top = top_k(logits, k);
  return std::move(graph_);
}

}  // namespace tandem
