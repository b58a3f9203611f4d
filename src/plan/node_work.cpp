#include "plan/node_work.h"

#include <cmath>

#include "device/kv_index.h"
#include "graph/latent_form.h"

namespace tandem {
namespace {

double weight_bytes(const Graph& graph, const Node& node) {
  double n_bytes = 0;
  for (TensorId id : inputs_of(node.op)) {
    if (graph.tensor(id).weight) n_bytes += static_cast<double>(graph.tensor(id).n_bytes());
  }
  return n_bytes;
}

// Multiplications with a matrix are two operations an element and row.
double matrix_elements(const Graph& graph, const Node& node) {
  double n = 0;
  for (TensorId id : inputs_of(node.op)) {
    const Weight* w = graph.tensor(id).weight;
    if (w && w->n_rows > 1) n += static_cast<double>(w->n_rows) * static_cast<double>(w->n_cols);
  }
  return n;
}

// Of products with the node's matrices.
double DeviceRates::*pace_of(const Graph& graph, const Node& node) {
  for (TensorId id : inputs_of(node.op)) {
    const Weight* w = graph.tensor(id).weight;
    if (w && w->n_rows > 1)
      return dtype_info(w->dtype).block_elements > 1 ? &DeviceRates::ops_per_s
                                                     : &DeviceRates::float_ops_per_s;
  }
  return &DeviceRates::ops_per_s;
}

double rows_of(const Tensor& t, const StepLoad& load) {
  return static_cast<double>(t.extent == Extent::tokens    ? load.n_tokens
                             : t.extent == Extent::outputs ? load.n_outputs
                                                           : t.n_rows);
}

// Cached positions that a step reads, and pairs of a query and one of them, of each sequence.
struct Attended {
  double positions = 0, pairs = 0;
};

// A sequence's tokens of the step.
double tokens_of_each(const StepLoad& load) {
  return static_cast<double>(load.n_tokens) / static_cast<double>(load.n_sequences);
}

Attended attended(const AttentionOp& op, const StepLoad& load) {
  const double n = tokens_of_each(load), n_past = static_cast<double>(load.n_past);
  const Attended all{n_past + n, n * (n_past + (n + 1) / 2)};
  if (op.window == 0) return all;
  const auto window = static_cast<double>(op.window);
  return {std::min(all.positions, window + n), std::min(all.pairs, n * window)};
}

// Of those, the ones before a position that is none of the step's.
Attended attended_before(const AttentionOp& op, const StepLoad& load, int64_t position) {
  const auto end = static_cast<double>(std::min(position, load.n_past));
  const double n = tokens_of_each(load);
  if (op.window == 0) return {end, n * end};
  // The first query sees this many, each one after it one less, until the window has passed the position.
  const double first = std::min(end, std::max(0.0, end - static_cast<double>(load.n_past - op.window + 1)));
  const double n_queries = std::min(n, first);
  return {first, n_queries * (first + (first - n_queries + 1)) / 2};
}

NodeWork attention_work(const AttentionOp& op, const StepLoad& load, const KvFormat& format) {
  const Attended whole = attended(op, load);
  Attended done = whole;
  if (op.part != KvPart::whole) {
    const Attended old = attended_before(op, load, load.hot_from);
    done = op.part == KvPart::cold ? old : Attended{whole.positions - old.positions, whole.pairs - old.pairs};
  }
  const double n_sequences = static_cast<double>(load.n_sequences);
  const double position_bytes =
      static_cast<double>(row_bytes(format.k, op.head_dim_k) +
                          (op.values_in_keys ? 0 : row_bytes(format.v, op.head_dim_v))) *
      static_cast<double>(op.n_head_kv);
  return {.n_bytes = n_sequences * done.positions * position_bytes,
          .n_ops = 2 * n_sequences * done.pairs * static_cast<double>(op.n_head) *
                   static_cast<double>(op.head_dim_k + op.head_dim_v),
          .pace = load.n_tokens > load.n_sequences ? &DeviceRates::attention_ops_per_s
                                                   : &DeviceRates::single_attention_ops_per_s};
}

// Each token of a step reads for itself.
NodeWork sparse_work(const AttentionOp& op, const StepLoad& load, const KvFormat& format,
                     int64_t block_size) {
  NodeWork work = attention_work(op, load, format);
  const int64_t n =
      op.part == KvPart::cold ? std::min(load.hot_from, load.n_past) : load.n_past + 1;  // positions
  KvLayer layer;
  layer.k_dtype = format.k;
  layer.v_dtype = format.v;
  layer.head_dim_k = op.head_dim_k;
  layer.head_dim_v = op.head_dim_v;
  layer.block_size = block_size;
  if (!reads_sparsely(op.sparse, block_size, n, load.n_past)) return work;
  const auto n_tokens = static_cast<double>(load.n_tokens);
  const auto n_read = static_cast<double>(always_read(op.sparse, n, load.n_past).n() + op.sparse.n_positions);
  work.n_bytes = n_tokens * static_cast<double>(op.n_head_kv) *
                 static_cast<double>(sparse_read_bytes(op.sparse, layer, n));
  // Products, and about as many operations as for kChoiceOps of them to choose among the positions.
  constexpr double kChoiceOps = 32;
  work.n_ops = n_tokens * static_cast<double>(op.n_head) *
               (static_cast<double>(n) * (2 * static_cast<double>(op.sparse.n_components) + kChoiceOps) +
                2 * n_read * static_cast<double>(op.head_dim_k + op.head_dim_v));
  return work;
}

// As attention: of expanded forms the products are few.
NodeWork latent_work(const LatentAttentionOp& op, const StepLoad& load, const KvFormat& format) {
  const double n = tokens_of_each(load), n_past = static_cast<double>(load.n_past);
  const LatentOps ops = latent_ops(op, n, n_past);
  NodeWork work = attention_work(AttentionOp{absorbed_attention(op)}, load, format);
  work.n_ops = static_cast<double>(load.n_sequences) * (expands(op, n, n_past) ? ops.expanded : ops.absorbed);
  return work;
}

// Steps with several tokens of a sequence go through a recurrence in chunks of so many.
constexpr double kStateChunkTokens = 32;

// Of a state [rows, columns] of each head, read and written once a step. A token alone takes `single` operations an
// element; in a chunk `chunked`, and each head two for every column and pair of tokens, `pairs_of_column` times, as do the
// rows of each head of keys, `pairs_of_row` times.
struct Recurrence {
  int64_t n_head_k, n_head, rows, columns;
  double single, chunked, pairs_of_column, pairs_of_row;
};

NodeWork recurrence_work(const Recurrence& r, int64_t row_floats, const StepLoad& load) {
  const auto n = static_cast<double>(load.n_tokens), n_sequences = static_cast<double>(load.n_sequences);
  const auto n_state = static_cast<double>(r.n_head * r.rows * r.columns);
  const double before =
      (std::min(tokens_of_each(load), kStateChunkTokens) + 1) / 2;  // tokens of a chunk, itself included
  const double of_pairs = 2 * before *
                          (r.pairs_of_column * static_cast<double>(r.n_head * r.columns) +
                           r.pairs_of_row * static_cast<double>(r.n_head_k * r.rows));
  return {
      .n_bytes = (2 * n_sequences * n_state + n * static_cast<double>(row_floats)) * sizeof(float),
      .n_ops = n * (load.n_tokens > load.n_sequences ? r.chunked * n_state + of_pairs : r.single * n_state),
      .pace = &DeviceRates::attention_ops_per_s};
}

NodeWork delta_rule_work(const DeltaRuleOp& op, const StepLoad& load) {
  return recurrence_work({op.n_head_k, op.n_head_v, op.head_dim_k, op.head_dim_v, 7, 6, 2, 2},
                         op.n_qkv() + op.n_head_v * op.head_dim_v, load);
}

NodeWork ssm_scan_work(const SsmScanOp& op, const StepLoad& load) {
  return recurrence_work({op.n_group, op.n_head, op.n_state, op.head_dim, 5, 4, 1, 1},
                         op.n_xbc() + op.n_inner(), load);
}

// Each token chooses n_used of the experts, as if by lot: what a batch reads is what anybody chose.
NodeWork moe_work(const Graph& graph, const Node& node, const MoeFfnOp& op, double n) {
  const double share = static_cast<double>(op.n_used) / static_cast<double>(op.n_expert);
  const double touched = 1 - std::pow(1 - share, n);
  return {.n_bytes = touched * weight_bytes(graph, node),
          .n_ops = 2 * n * static_cast<double>(op.n_used) * matrix_elements(graph, node),
          .pace = pace_of(graph, node)};
}

}  // namespace

double tensor_bytes(const Tensor& tensor, const StepLoad& load) {
  return static_cast<double>(row_bytes(tensor.dtype, tensor.n_cols)) * rows_of(tensor, load);
}

NodeWork node_work(const Graph& graph, const Node& node, const StepLoad& load, const KvConfig& kv,
                   DeviceId device) {
  const KvFormat format = uses_cache(node.op) ? kv.format(static_cast<size_t>(node.layer)) : KvFormat{};
  if (const auto* attention = std::get_if<AttentionOp>(&node.op)) {
    if (attention->sparse.on() && format.indexed && device.is_host() && attention->part != KvPart::hot)
      return sparse_work(*attention, load, format, kv.block_size);
    return attention_work(*attention, load, format);
  }
  if (const auto* latent = std::get_if<LatentAttentionOp>(&node.op)) {
    NodeWork work = latent_work(*latent, load, format);
    work.n_bytes += weight_bytes(graph, node);
    return work;
  }
  if (const auto* rule = std::get_if<DeltaRuleOp>(&node.op)) return delta_rule_work(*rule, load);
  if (const auto* scan = std::get_if<SsmScanOp>(&node.op)) return ssm_scan_work(*scan, load);
  const auto* write = std::get_if<KvWriteOp>(&node.op);
  const Tensor& out = graph.tensor(write ? write->k : node.output);
  const double n = rows_of(out, load);
  if (const auto* moe = std::get_if<MoeFfnOp>(&node.op)) return moe_work(graph, node, *moe, n);
  if (const auto* top = std::get_if<TopKOp>(&node.op))
    return {.n_bytes = tensor_bytes(graph.tensor(top->x), load)};
  const double activations = 3 * n * static_cast<double>(out.n_cols) * sizeof(float);
  if (const auto* heads = std::get_if<HeadLinearOp>(&node.op)) {
    const double n_mats = static_cast<double>(graph.tensor(heads->weight).weight->n_mats);
    return {.n_bytes = weight_bytes(graph, node) + activations,
            .n_ops = 2 * n * n_mats * matrix_elements(graph, node),
            .pace = pace_of(graph, node)};
  }
  if (std::holds_alternative<LinearOp>(node.op) || std::holds_alternative<GluOp>(node.op)) {
    return {.n_bytes = weight_bytes(graph, node) + activations,
            .n_ops = 2 * n * matrix_elements(graph, node),
            .pace = pace_of(graph, node)};
  }
  return {.n_bytes = activations};
}

double NodeWork::compute_seconds(const DeviceRates& rates) const {
  return n_ops / (rates.*pace > 0 ? rates.*pace : rates.ops_per_s);
}

double NodeWork::seconds(const DeviceRates& rates, double read_seconds) const {
  const double compute = compute_seconds(rates);
  const bool adds_up =
      rates.in_turn && (pace == &DeviceRates::ops_per_s || pace == &DeviceRates::float_ops_per_s);
  return adds_up ? read_seconds + compute : std::max(read_seconds, compute);
}

NodeWork part_of_experts(const Graph& graph, const MoeFfnOp& op, const NodeWork& all, double n_experts,
                         double share) {
  NodeWork part = all;
  part.n_bytes = 0;
  for (const TensorId id : {op.gate, op.up, op.down}) {
    if (id == kNoTensor) continue;
    const Weight& w = *graph.tensor(id).weight;
    part.n_bytes += n_experts * static_cast<double>(w.n_bytes()) / static_cast<double>(w.n_mats);
  }
  part.n_ops *= share;
  return part;
}

double node_seconds(const NodeWork& work, const DeviceRates& rates) {
  return rates.node_s + work.seconds(rates, work.n_bytes / rates.read_bytes_per_s);
}

}  // namespace tandem
