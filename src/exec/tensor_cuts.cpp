#include "exec/tensor_cuts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "exec/recurrent_cuts.h"

namespace tandem {
namespace {

// Returns the tensor that an op works on column by column, or head by head; kNoTensor for any other op.
TensorId passes_on(const Op& op) {
  if (const auto* o = std::get_if<RopeOp>(&op)) return o->x;
  if (const auto* o = std::get_if<NormOp>(&op)) return o->x;
  if (const auto* o = std::get_if<HadamardOp>(&op)) return o->x;
  if (const auto* o = std::get_if<ScaleOp>(&op)) return o->x;
  if (const auto* o = std::get_if<SoftcapOp>(&op)) return o->x;
  if (const auto* o = std::get_if<ColumnsOp>(&op)) return o->x;
  if (const auto* o = std::get_if<GatherRowsOp>(&op)) return o->x;
  if (const auto* o = std::get_if<HeadLinearOp>(&op)) return o->x;
  if (const auto* o = std::get_if<GateOp>(&op)) return o->x;
  return kNoTensor;
}

bool keeps_state(const Op& op) {
  return std::holds_alternative<CausalConvOp>(op) || std::holds_alternative<DeltaRuleOp>(op) ||
         std::holds_alternative<SsmScanOp>(op);
}

int64_t sum_of_widths(const std::vector<Cuts::Range>& ranges) {
  int64_t sum = 0;
  for (const Cuts::Range& range : ranges) sum += range.width;
  return sum;
}

}  // namespace

bool Cuts::divides(int64_t total) const {
  if (ranges.empty()) return total % n_groups == 0;
  const int64_t sum = sum_of_widths(ranges);
  return total % sum == 0 && std::ranges::all_of(ranges, [&](const Range& range) {
           return range.is_copied || total / sum * range.width % n_groups == 0;
         });
}

std::vector<Cuts::Range> Cuts::ranges_of(int64_t total) const {
  if (ranges.empty()) return {{total, false}};
  const int64_t unit = total / sum_of_widths(ranges);
  std::vector<Range> list = ranges;
  for (Range& range : list) range.width *= unit;
  return list;
}

// The widths without a common factor, so that equal cuts compare as such.
Cuts Cuts::with(const std::vector<Range>& other) const {
  Cuts cuts{n_groups, first, other};
  if (other.size() == 1 && !other.front().is_copied) cuts.ranges.clear();
  int64_t factor = 0;
  for (const Range& range : cuts.ranges) factor = std::gcd(factor, range.width);
  for (Range& range : cuts.ranges) range.width /= factor;
  return cuts;
}

ColumnRuns Cuts::runs_of(size_t i, int64_t total) const {
  ColumnRuns runs;
  int64_t begin = 0;
  for (const Range& range : ranges_of(total)) {
    if (range.is_copied) {
      add_run(runs, {begin, has(i) ? range.width : 0});
    } else {
      add_run(runs, {begin + range.width / n_groups * first[i], range.width / n_groups * n(i)});
    }
    begin += range.width;
  }
  return runs;
}

int64_t Cuts::n_of(size_t i, int64_t total) const {
  return n_columns(runs_of(i, total));
}

Cuts cut_by_shares(const TensorParallel& parallel, int64_t n_groups, int64_t unit) {
  TANDEM_CHECK(n_groups % unit == 0);
  const auto n_units = static_cast<double>(n_groups / unit);
  const double total = std::accumulate(parallel.shares.begin(), parallel.shares.end(), 0.0);
  Cuts cuts{n_groups, {0}};
  double upto = 0;
  for (const double share : parallel.shares) {
    upto += share;
    cuts.first.push_back(unit * std::llround(upto / total * n_units));
  }
  return cuts;
}

TensorCuts::TensorCuts(const Graph& graph, const Placement& placement)
    : graph_(graph), placement_(placement), parallel_(placement.parallel.value()) {
  find_makers();
  for (const Node& node : graph.nodes) mark(node);
  mark_output_head();
}

void TensorCuts::find_makers() {
  makers_.assign(graph_.tensors.size(), nullptr);
  for (const Node& node : graph_.nodes) {
    if (node.output != kNoTensor) makers_[static_cast<size_t>(node.output)] = &node;
  }
}

const Node* TensorCuts::maker(TensorId id) const {
  return id == kNoTensor ? nullptr : makers_[static_cast<size_t>(id)];
}

bool TensorCuts::is_divided(const Node& node) const {
  return !node.device && parallel_.find(placement_.runs_on(graph_, node));
}

// Attention on the host, too, reads what devices have computed of each head.
std::optional<Cuts> TensorCuts::head_cuts(const Node& node, int64_t n_head, int64_t n_head_kv) const {
  const KvHome& home = placement_.layers[static_cast<size_t>(node.layer)].kv;
  if (const auto* divided = std::get_if<DividedKv>(&home))
    return Cuts{divided->is_copied ? n_head : n_head_kv, divided->first};
  if (attends_on(home, StepKind::decode).is_host()) return cut_by_shares(parallel_, n_head_kv > 1 ? n_head_kv : n_head);
  return std::nullopt;
}

void TensorCuts::mark(const Node& node) {
  if (keeps_state(node.op)) {
    mark_state_op(node);
  } else if (const auto* gate = std::get_if<GateOp>(&node.op)) {
    mark_gate(*gate);
  } else if (const auto* op = std::get_if<AttentionOp>(&node.op)) {
    if (const auto cuts = head_cuts(node, op->n_head, op->n_head_kv)) mark_heads(op->q, *cuts);
  } else if (const auto* latent = std::get_if<LatentAttentionOp>(&node.op)) {
    if (const auto cuts = head_cuts(node, latent->n_head, 1)) mark_heads(latent->q, *cuts);
  } else if (const auto* write = std::get_if<KvWriteOp>(&node.op)) {
    const auto* divided = std::get_if<DividedKv>(&placement_.layers[static_cast<size_t>(node.layer)].kv);
    if (!divided || divided->is_copied) return;
    const Cuts cuts{divided->first.back(), divided->first};
    mark_heads(write->k, cuts);
    if (write->v != kNoTensor) mark_heads(write->v, cuts);
  } else if (const auto* linear = std::get_if<LinearOp>(&node.op)) {
    if (is_divided(node)) mark_linear(node, *linear);
  } else if (const auto* moe = std::get_if<MoeFfnOp>(&node.op)) {
    if (is_divided(node)) mark_route(moe->route, cut_by_shares(parallel_, moe->n_expert));
  }
}

// Goes back to the products that make the heads.
void TensorCuts::mark_heads(TensorId id, const Cuts& cuts) {
  const Node* node = maker(id);
  if (!node || !is_divided(*node)) return;
  if (const auto* linear = std::get_if<LinearOp>(&node->op)) {
    if (linear->residual == kNoTensor && cuts.divides(graph_.tensor(id).n_cols))
      outputs_.try_emplace(id, cuts);
    return;
  }
  if (const auto* join = std::get_if<JoinOp>(&node->op)) return mark_joined(*join, cuts);
  if (std::holds_alternative<ColumnsOp>(node->op) && !cuts.ranges.empty()) return;
  mark_heads(passes_on(node->op), cuts);
  if (const auto* gate = std::get_if<GateOp>(&node->op)) mark_heads(gate->gate, cuts);
}

// Each side has some of the ranges.
void TensorCuts::mark_joined(const JoinOp& op, const Cuts& cuts) {
  const int64_t n_a = graph_.tensor(op.a).n_cols, n_b = graph_.tensor(op.b).n_cols;
  if (op.residual != kNoTensor || !cuts.divides(n_a + n_b)) return;
  std::vector<Cuts::Range> a, b;
  int64_t upto = 0;
  for (const Cuts::Range& range : cuts.ranges_of(n_a + n_b)) {
    (upto < n_a ? a : b).push_back(range);
    upto += range.width;
  }
  if (sum_of_widths(a) != n_a || b.empty()) return;
  mark_heads(op.a, cuts.with(a));
  mark_heads(op.b, cuts.with(b));
}

const DividedState* TensorCuts::divided_state(const Node& node) const {
  return std::get_if<DividedState>(&placement_.layers[static_cast<size_t>(node.layer)].kv);
}

// What a recurrence reads; on the host, any rows will do.
void TensorCuts::mark_state_op(const Node& node) {
  const DividedState* divided = divided_state(node);
  if (!divided && !placement_.runs_on(graph_, node).is_host()) return;
  std::optional<RecurrentCuts> cuts;
  if (divided) cuts = recurrent_layer(graph_, node.layer).cuts(divided->first);
  const auto mark_input = [&](TensorId id, Cuts RecurrentCuts::*which) {
    mark_heads(id, cuts ? (*cuts).*which : row_cuts(graph_.tensor(id).n_cols));
  };
  if (const auto* conv = std::get_if<CausalConvOp>(&node.op)) mark_input(conv->x, &RecurrentCuts::channels);
  if (const auto* scan = std::get_if<SsmScanOp>(&node.op)) mark_input(scan->dt, &RecurrentCuts::heads);
  if (const auto* rule = std::get_if<DeltaRuleOp>(&node.op)) {
    mark_input(rule->beta, &RecurrentCuts::heads);
    mark_input(rule->alpha, &RecurrentCuts::heads);
  }
}

// The gates of what a recurrence gives.
void TensorCuts::mark_gate(const GateOp& op) {
  const Node* behind = cache_op_behind(op.x);
  const DividedState* divided = behind ? divided_state(*behind) : nullptr;
  if (divided) mark_heads(op.gate, recurrent_layer(graph_, behind->layer).cuts(divided->first).heads);
}

// Those of a recurrence on the host, if the product follows at once.
void TensorCuts::mark_gate_behind_host(const LinearOp& op) {
  for (const Node* node = maker(op.x); node; node = maker(passes_on(node->op))) {
    if (std::holds_alternative<NormOp>(node->op)) return;
    if (const auto* gate = std::get_if<GateOp>(&node->op)) return mark_heads(gate->gate, block_cuts(op));
  }
}

Cuts TensorCuts::row_cuts(int64_t n_rows) const {
  return cut_by_shares(parallel_, n_rows % 32 == 0 ? n_rows / 32 : n_rows);
}

// Whole blocks of the matrix that multiplies them.
Cuts TensorCuts::block_cuts(const LinearOp& op) const {
  const Weight& w = *graph_.tensor(op.weight).weight;
  const int64_t block = dtype_info(w.dtype).block_elements;
  return cut_by_shares(parallel_, w.n_cols / block);
}

// Feed-forward units, with and without a gate, and the product behind attention or a recurrence on the host, or behind a
// norm over all heads of a recurrence.
void TensorCuts::mark_linear(const Node& node, const LinearOp& op) {
  const Node* before = maker(op.x);
  if (!before) return;
  if (const Node* behind = cache_op_behind(op.x)) {
    const bool is_on_host = placement_.runs_on(graph_, *behind).is_host();
    if (is_on_host || divided_state(*behind)) inputs_.try_emplace(node.output, block_cuts(op));
    if (is_on_host && keeps_state(behind->op)) mark_gate_behind_host(op);
  }
  if (!is_divided(*before)) return;
  if (std::holds_alternative<GluOp>(before->op)) outputs_.try_emplace(op.x, block_cuts(op));
  const auto* squared = std::get_if<GateOp>(&before->op);
  if (!squared || squared->kind != GateKind::relu || squared->x != squared->gate) return;
  const Node* up = maker(squared->x);
  const auto* product = up ? std::get_if<LinearOp>(&up->op) : nullptr;
  if (product && product->residual == kNoTensor && is_divided(*up))
    outputs_.try_emplace(squared->x, block_cuts(op));
}

// Returns what has made x with the layer's cache, apart from ops that work column by column; null if nothing has.
const Node* TensorCuts::cache_op_behind(TensorId x) const {
  for (const Node* node = maker(x); node; node = maker(passes_on(node->op))) {
    if (uses_cache(node->op)) return node;
  }
  return nullptr;
}

void TensorCuts::mark_route(TensorId route, const Cuts& cuts) {
  const Node* node = maker(route);
  const auto* part = node ? std::get_if<ColumnsOp>(&node->op) : nullptr;
  routes_.try_emplace(route, cuts);
  if (part) mark_route(part->x, cuts);
}

void TensorCuts::mark_output_head() {
  TensorId id = graph_.logits;
  for (const Node* node = maker(id); node; node = maker(id)) {
    const auto* linear = std::get_if<LinearOp>(&node->op);
    if (linear && is_divided(*node)) {
      outputs_.try_emplace(id, row_cuts(graph_.tensor(id).n_cols));
    }
    if (linear) return;
    id = passes_on(node->op);
  }
}

const Weight* multiplied_by(const Graph& graph, TensorId y) {
  for (const Node& node : graph.nodes) {
    if (std::ranges::none_of(inputs_of(node.op), [&](TensorId id) { return id == y; })) continue;
    if (const auto* linear = std::get_if<LinearOp>(&node.op)) return graph.tensor(linear->weight).weight;
    if (passes_on(node.op) != kNoTensor && node.output != kNoTensor) return multiplied_by(graph, node.output);
  }
  return nullptr;
}

int64_t whole_block_groups(const Weight& w, const Cuts& cuts) {
  const int64_t block = dtype_info(w.dtype).block_elements;
  int64_t unit = 1;
  for (const Cuts::Range& range : cuts.ranges_of(w.n_cols)) {
    const int64_t width = range.width / cuts.n_groups;
    if (width > 0) unit = std::lcm(unit, std::lcm(block, width) / width);
  }
  return unit;
}

void divide_caches(Placement& placement, const Graph& graph) {
  const TensorParallel& parallel = placement.parallel.value();
  const auto n_devices = static_cast<int64_t>(parallel.devices.size());
  for (const Node& node : graph.nodes) {
    const auto* attention = std::get_if<AttentionOp>(&node.op);
    const auto* latent = std::get_if<LatentAttentionOp>(&node.op);
    const bool is_recurrent = std::holds_alternative<CausalConvOp>(node.op);
    if (!attention && !latent && !is_recurrent) continue;
    KvHome& home = placement.layers[static_cast<size_t>(node.layer)].kv;
    const auto* resident = std::get_if<ResidentKv>(&home);
    if (!resident || !parallel.find(resident->device)) continue;
    if (is_recurrent) {
      home = divide_state(graph, node.layer, parallel);
      continue;
    }
    const int64_t n_head = attention ? attention->n_head : latent->n_head;
    const int64_t n_head_kv = attention ? attention->n_head_kv : 1;
    const bool is_copied = n_head_kv == 1;
    const int64_t n = is_copied ? n_head : n_head_kv;
    const Weight* out = multiplied_by(graph, node.output);
    const int64_t unit = out ? whole_block_groups(*out, Cuts{n, {}}) : 1;
    const bool fits = n % unit == 0 && n / unit >= n_devices;
    home = DividedKv{parallel.devices, cut_by_shares(parallel, n, fits ? unit : 1).first, is_copied};
  }
}

}  // namespace tandem
