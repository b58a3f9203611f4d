#include "exec/divide_experts.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

class ExpertDivider {
 public:
  ExpertDivider(Graph graph, const Placement& placement) : graph_(std::move(graph)), placement_(placement) {}

  Graph run() {
    for (const Node& node : std::exchange(graph_.nodes, {})) {
      const auto* op = std::get_if<MoeFfnOp>(&node.op);
      const CachedExperts* cached = op ? cached_of(node) : nullptr;
      if (!cached || !placement_.runs_on(graph_, node).is_host()) {
        graph_.nodes.push_back(node);
      } else {
        divide(node, *op, *cached);
      }
    }
    return std::move(graph_);
  }

 private:
  const CachedExperts* cached_of(const Node& node) const {
    const WeightHome* home = placement_.home_of(node);
    return home ? cached_experts(*home, step_kind(graph_.shape)) : nullptr;
  }

  // The GPU's part comes first, because the host does not wait for it.
  void divide(const Node& whole, const MoeFfnOp& op, const CachedExperts& cached) {
    const Weight* down = graph_.tensor(op.down).weight;
    const std::string name = graph_.tensor(whole.output).name;
    const TensorId for_gpu = add(CachedRouteOp{op.route, kNoTensor, op.x, down}, name + ".cached", op.route,
                                 whole.layer, DeviceId::host());
    const TensorId gpu_part =
        add(on_gpu(op, for_gpu, cached), name + ".device", whole.output, whole.layer, cached.on);
    const TensorId for_host = add(CachedRouteOp{op.route, for_gpu, kNoTensor, down}, name + ".others",
                                  op.route, whole.layer, DeviceId::host());
    MoeFfnOp others = op;
    others.route = for_host;
    others.residual = kNoTensor;  // the GPU adds it
    const TensorId host_part = add(others, name + ".host", whole.output, whole.layer, DeviceId::host());
    graph_.nodes.push_back(Node{AddOp{gpu_part, host_part}, whole.output, whole.layer, cached.on});
  }

  MoeFfnOp on_gpu(MoeFfnOp op, TensorId route, const CachedExperts& cached) {
    op.route = route;
    op.n_expert = cached.n_slots;
    for (TensorId* id : {&op.gate, &op.up, &op.down, &op.gate_bias, &op.up_bias, &op.down_bias, &op.gate_factors}) {
      if (*id != kNoTensor) *id = add_slots(*graph_.tensor(*id).weight, cached.n_slots);
    }
    return op;
  }

  TensorId add(Op op, std::string name, TensorId like, int layer, DeviceId device) {
    Tensor t = graph_.tensor(like);
    t.name = std::move(name);
    const TensorId id = add_tensor(std::move(t));
    graph_.nodes.push_back(Node{std::move(op), id, layer, device});
    return id;
  }

  TensorId add_slots(const Weight& whole, int64_t n_slots) {
    const Weight* slots = placement_.slices->experts_of(whole, n_slots);
    Tensor t;
    t.name = slots->name;
    t.role = Role::weight;
    t.dtype = slots->dtype;
    t.n_rows = slots->n_rows * slots->n_mats;
    t.n_cols = slots->n_cols;
    t.weight = slots;
    return add_tensor(std::move(t));
  }

  TensorId add_tensor(Tensor t) {
    t.storage = static_cast<TensorId>(graph_.tensors.size());
    graph_.tensors.push_back(std::move(t));
    return graph_.tensors.back().storage;
  }

  Graph graph_;
  const Placement& placement_;
};

}  // namespace

Graph divide_experts(Graph graph, const Placement& placement) {
  if (!placement.caches_experts(step_kind(graph.shape))) return graph;
  return ExpertDivider(std::move(graph), placement).run();
}

std::vector<CachedLayer> cached_layers(const Graph& divided, const Placement& placement) {
  std::vector<CachedLayer> list;
  const StepKind kind = step_kind(divided.shape);
  for (const Node& node : divided.nodes) {
    const auto* op = std::get_if<MoeFfnOp>(&node.op);
    const WeightHome* home = op ? placement.home_of(node) : nullptr;
    const CachedExperts* cached = home ? cached_experts(*home, kind) : nullptr;
    if (!cached || placement.runs_on(divided, node).is_host()) continue;
    const Weight* down = placement.slices->whole(divided.tensor(op->down).weight);
    if (const auto same = std::ranges::find(list, down, &CachedLayer::down); same != list.end()) {
      same->n_used += op->n_used;  // the others of its experts
      continue;
    }
    CachedLayer layer{.layer = node.layer,
                      .device = cached->on,
                      .n_slots = cached->n_slots,
                      .n_used = op->n_used,
                      .fetched = cached->fetched,
                      .kept = cached->kept,
                      .on_disk = std::holds_alternative<OnDisk>(*home),
                      .router = router_of(divided, *op)};
    for (TensorId id : {op->gate, op->up, op->down, op->gate_bias, op->up_bias, op->down_bias, op->gate_factors}) {
      if (id == kNoTensor) continue;
      const Weight* slots = divided.tensor(id).weight;
      const Weight* whole = placement.slices->whole(slots);
      layer.weights.push_back({whole, slots});
      if (id != op->down) continue;
      layer.down = whole;
      layer.n_expert = whole->n_mats;
    }
    list.push_back(std::move(layer));
  }
  return list;
}

}  // namespace tandem
