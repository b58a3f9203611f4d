#include "exec/tensor_cuts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

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

}  // namespace

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
  if (attends_on(home).is_host()) return cut_by_shares(parallel_, n_head_kv > 1 ? n_head_kv : n_head);
  return std::nullopt;
}

void TensorCuts::mark(const Node& node) {
  if (const auto* op = std::get_if<AttentionOp>(&node.op)) {
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
    if (linear->residual == kNoTensor && graph_.tensor(id).n_cols % cuts.n_groups == 0)
      outputs_.try_emplace(id, cuts);
    return;
  }
  mark_heads(passes_on(node->op), cuts);
  if (const auto* gate = std::get_if<GateOp>(&node->op)) mark_heads(gate->gate, cuts);
}

// Whole blocks of the matrix that multiplies them.
Cuts TensorCuts::block_cuts(const LinearOp& op) const {
  const Weight& w = *graph_.tensor(op.weight).weight;
  const int64_t block = dtype_info(w.dtype).block_elements;
  return cut_by_shares(parallel_, w.n_cols / block);
}

// Feed-forward units, with and without a gate, and the product behind attention on the host.
void TensorCuts::mark_linear(const Node& node, const LinearOp& op) {
  const Node* before = maker(op.x);
  if (!before) return;
  if (attends_on_host(op.x)) inputs_.try_emplace(node.output, block_cuts(op));
  if (!is_divided(*before)) return;
  if (std::holds_alternative<GluOp>(before->op)) outputs_.try_emplace(op.x, block_cuts(op));
  const auto* squared = std::get_if<GateOp>(&before->op);
  if (!squared || squared->kind != GateKind::relu || squared->x != squared->gate) return;
  const Node* up = maker(squared->x);
  const auto* product = up ? std::get_if<LinearOp>(&up->op) : nullptr;
  if (product && product->residual == kNoTensor && is_divided(*up))
    outputs_.try_emplace(squared->x, block_cuts(op));
}

bool TensorCuts::attends_on_host(TensorId x) const {
  for (const Node* node = maker(x); node; node = maker(passes_on(node->op))) {
    if (std::holds_alternative<AttentionOp>(node->op) || std::holds_alternative<LatentAttentionOp>(node->op))
      return placement_.runs_on(graph_, *node).is_host();
  }
  return false;
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
      const int64_t n = graph_.tensor(id).n_cols;
      outputs_.try_emplace(id, n % 32 == 0 ? cut_by_shares(parallel_, n / 32) : cut_by_shares(parallel_, n));
    }
    if (linear) return;
    id = passes_on(node->op);
  }
}

namespace {

// Key-value heads whose columns in the product behind attention are whole blocks.
int64_t whole_heads(const Graph& graph, TensorId y, int64_t n_head_kv) {
  for (const Node& node : graph.nodes) {
    if (std::ranges::none_of(inputs_of(node.op), [&](TensorId id) { return id == y; })) continue;
    if (const auto* linear = std::get_if<LinearOp>(&node.op)) {
      const Weight& w = *graph.tensor(linear->weight).weight;
      const int64_t block = dtype_info(w.dtype).block_elements, width = w.n_cols / n_head_kv;
      return std::lcm(block, width) / width;
    }
    if (passes_on(node.op) != kNoTensor && node.output != kNoTensor)
      return whole_heads(graph, node.output, n_head_kv);
  }
  return 1;
}

}  // namespace

void divide_caches(Placement& placement, const Graph& graph) {
  const TensorParallel& parallel = placement.parallel.value();
  const auto n_devices = static_cast<int64_t>(parallel.devices.size());
  for (const Node& node : graph.nodes) {
    const auto* attention = std::get_if<AttentionOp>(&node.op);
    const auto* latent = std::get_if<LatentAttentionOp>(&node.op);
    if (!attention && !latent) continue;
    KvHome& home = placement.layers[static_cast<size_t>(node.layer)].kv;
    const auto* resident = std::get_if<ResidentKv>(&home);
    if (!resident || !parallel.find(resident->device)) continue;
    const int64_t n_head = attention ? attention->n_head : latent->n_head;
    const int64_t n_head_kv = attention ? attention->n_head_kv : 1;
    const bool is_copied = n_head_kv == 1;
    const int64_t n = is_copied ? n_head : n_head_kv;
    const int64_t unit = whole_heads(graph, node.output, n);
    const bool fits = n % unit == 0 && n / unit >= n_devices;
    home = DividedKv{parallel.devices, cut_by_shares(parallel, n, fits ? unit : 1).first, is_copied};
  }
}

}  // namespace tandem
