#include "graph/builder.h"

#include <type_traits>
#include <utility>

#include "base/error.h"

namespace tandem {

std::string_view op_name(const Op& op) {
  static constexpr std::string_view names[] = {"embed",     "norm",    "linear",      "rope",    "kv_write",
                                               "attention", "glu",     "moe_route",   "moe_ffn", "add",
                                               "scale",     "softcap", "gather_rows", "merge",   "join"};
  static_assert(std::size(names) == std::variant_size_v<Op>);
  return names[op.index()];
}

GraphBuilder::GraphBuilder(const ShapeClass& shape) {
  graph_.shape = shape;
  graph_.inputs.fill(kNoTensor);
}

TensorId GraphBuilder::input(Input which) {
  TensorId& id = graph_.inputs[static_cast<size_t>(which)];
  if (id != kNoTensor) return id;
  static constexpr const char* names[kInputCount] = {"ids",           "positions",   "sequences",
                                                     "slots",         "block_table", "outputs",
                                                     "recent_blocks", "recent_from", "recent_slots"};
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
    case Input::recent_blocks:
      t.n_rows = graph_.shape.max_sequences;
      t.n_cols = graph_.shape.max_recent_blocks;
      break;
    case Input::recent_from: t.n_cols = graph_.shape.max_sequences; break;
    default: t.n_cols = graph_.shape.max_tokens;
  }
  id = static_cast<TensorId>(graph_.tensors.size());
  t.storage = id;
  graph_.tensors.push_back(std::move(t));
  return id;
}

TensorId GraphBuilder::weight(const Weight* w) {
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

TensorId GraphBuilder::append(Op op, std::vector<TensorId> inputs, int64_t n_cols, Extent extent,
                              TensorId in_place_of) {
  const TensorId id = static_cast<TensorId>(graph_.tensors.size());
  Tensor t;
  t.name = std::string(op_name(op)) + "." + std::to_string(graph_.nodes.size());
  t.extent = extent;
  t.n_rows = extent == Extent::outputs ? graph_.shape.max_outputs : graph_.shape.max_tokens;
  t.n_cols = n_cols;
  t.storage = in_place_of == kNoTensor ? id : tensor(in_place_of).storage;
  graph_.tensors.push_back(std::move(t));
  graph_.nodes.push_back(Node{std::move(op), std::move(inputs), id, layer_});
  return id;
}

TensorId GraphBuilder::embed(const Weight* table, float scale) {
  return append(EmbedOp{scale}, {input(Input::ids), weight(table)}, table->n_cols, Extent::tokens);
}

TensorId GraphBuilder::norm(TensorId x, const NormOp& op, const Weight* w, const Weight* bias) {
  TANDEM_CHECK(op.group > 0 && tensor(x).n_cols % op.group == 0 && w->n_cols == op.group);
  return append(op, {x, weight(w), weight(bias)}, tensor(x).n_cols, tensor(x).extent);
}

TensorId GraphBuilder::linear(TensorId x, const Weight* w, const Weight* bias, TensorId residual) {
  TANDEM_CHECK(tensor(x).n_cols == w->n_cols && (bias == nullptr || bias->n_cols == w->n_rows));
  TANDEM_CHECK(residual == kNoTensor ||
               (tensor(residual).n_cols == w->n_rows && tensor(residual).extent == tensor(x).extent));
  return append(LinearOp{}, {x, weight(w), weight(bias), residual}, w->n_rows, tensor(x).extent);
}

TensorId GraphBuilder::rope(TensorId x, const RopeOp& op, const Weight* freq_factors) {
  TANDEM_CHECK(tensor(x).n_cols == op.n_head * op.head_dim && op.n_rot <= op.head_dim && op.n_rot % 2 == 0);
  TANDEM_CHECK(freq_factors == nullptr || freq_factors->n_cols == op.n_rot / 2);
  TANDEM_CHECK(op.temperature_scale == 0.0f || (op.n_rot == op.head_dim && op.temperature_length >= 1));
  return append(op, {x, input(Input::positions), weight(freq_factors)}, tensor(x).n_cols, Extent::tokens, x);
}

void GraphBuilder::kv_write(TensorId k, TensorId v) {
  graph_.nodes.push_back(Node{KvWriteOp{}, {k, v, input(Input::slots)}, kNoTensor, layer_});
}

TensorId GraphBuilder::attention(TensorId q, const AttentionOp& op, const Weight* sinks) {
  TANDEM_CHECK(tensor(q).n_cols == op.n_head * op.head_dim_k && op.n_head % op.n_head_kv == 0);
  const bool whole = op.part == KvPart::whole;
  const TensorId blocks = input(op.part == KvPart::recent ? Input::recent_blocks : Input::block_table);
  return append(op,
                {q, input(Input::positions), input(Input::sequences), blocks, weight(sinks),
                 whole ? kNoTensor : input(Input::recent_from)},
                op.n_head * (op.head_dim_v + (whole ? 0 : 1)), Extent::tokens);
}

TensorId GraphBuilder::merge(TensorId a, TensorId b, const MergeOp& op) {
  const int64_t n_cols = op.n_head * (op.head_dim_v + 1);
  TANDEM_CHECK(tensor(a).n_cols == n_cols && tensor(b).n_cols == n_cols &&
               tensor(a).extent == tensor(b).extent);
  return append(op, {a, b}, op.n_head * op.head_dim_v, tensor(a).extent);
}

TensorId GraphBuilder::join(TensorId a, TensorId b, TensorId residual) {
  const int64_t n_cols = tensor(a).n_cols + tensor(b).n_cols;
  TANDEM_CHECK(tensor(a).extent == tensor(b).extent);
  TANDEM_CHECK(residual == kNoTensor || tensor(residual).n_cols == n_cols);
  return append(JoinOp{}, {a, b, residual}, n_cols, tensor(a).extent);
}

TensorId GraphBuilder::glu(TensorId x, const GluOp& op, const Weight* gate, const Weight* up,
                           const Weight* gate_bias, const Weight* up_bias) {
  TANDEM_CHECK(tensor(x).n_cols == gate->n_cols && up->n_cols == gate->n_cols && up->n_rows == gate->n_rows);
  return append(op, {x, weight(gate), weight(up), weight(gate_bias), weight(up_bias)}, gate->n_rows,
                tensor(x).extent);
}

TensorId GraphBuilder::moe_route(TensorId logits, const MoeRouteOp& op, const Weight* selection_bias) {
  TANDEM_CHECK(tensor(logits).n_cols == op.n_expert && op.n_used >= 1 && op.n_used <= op.n_expert);
  TANDEM_CHECK(selection_bias == nullptr || selection_bias->n_cols == op.n_expert);
  TANDEM_CHECK(op.n_group >= 1 && op.n_expert % op.n_group == 0 && op.n_group_used <= op.n_group);
  return append(op, {logits, weight(selection_bias)}, 2 * op.n_used, tensor(logits).extent);
}

TensorId GraphBuilder::moe_ffn(TensorId x, TensorId route, const MoeFfnOp& op, const Weight* gate,
                               const Weight* up, const Weight* down, TensorId residual,
                               const ExpertBiases& biases) {
  TANDEM_CHECK(tensor(route).n_cols == 2 * op.n_used && tensor(route).extent == tensor(x).extent);
  TANDEM_CHECK(gate->n_mats == op.n_expert && up->n_mats == op.n_expert && down->n_mats == op.n_expert);
  TANDEM_CHECK(gate->n_cols == tensor(x).n_cols && up->n_cols == gate->n_cols && up->n_rows == gate->n_rows);
  TANDEM_CHECK(down->n_cols == gate->n_rows);
  const auto fits = [&](const Weight* bias, const Weight* w) {
    return bias == nullptr || (bias->n_rows == op.n_expert && bias->n_cols == w->n_rows);
  };
  TANDEM_CHECK(fits(biases.gate, gate) && fits(biases.up, up) && fits(biases.down, down));
  return append(op,
                {x, route, weight(gate), weight(up), weight(down), residual, weight(biases.gate),
                 weight(biases.up), weight(biases.down)},
                down->n_rows, tensor(x).extent);
}

TensorId GraphBuilder::add(TensorId a, TensorId b, const AddOp& op, TensorId gate) {
  TANDEM_CHECK(tensor(a).n_cols == tensor(b).n_cols && tensor(a).extent == tensor(b).extent);
  TANDEM_CHECK(gate == kNoTensor || (tensor(gate).n_cols == 1 && tensor(gate).extent == tensor(a).extent));
  return append(op, {a, b, gate}, tensor(a).n_cols, tensor(a).extent);
}

TensorId GraphBuilder::scale(TensorId x, float factor) {
  return append(ScaleOp{factor}, {x}, tensor(x).n_cols, tensor(x).extent);
}

TensorId GraphBuilder::softcap(TensorId x, float cap) {
  return append(SoftcapOp{cap}, {x}, tensor(x).n_cols, tensor(x).extent);
}

TensorId GraphBuilder::gather_outputs(TensorId x) {
  return append(GatherRowsOp{}, {x, input(Input::outputs)}, tensor(x).n_cols, Extent::outputs);
}

Graph GraphBuilder::finish(TensorId logits) {
  TANDEM_CHECK(tensor(logits).extent == Extent::outputs);
  graph_.logits = logits;
  return std::move(graph_);
}

}  // namespace tandem
