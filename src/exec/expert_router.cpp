#include "exec/expert_router.h"

#include <algorithm>

namespace tandem {
namespace {

// Returns the node that makes a tensor; null for inputs and weights.
const Node* maker_of(const Graph& graph, TensorId id) {
  const auto found = std::ranges::find(graph.nodes, id, &Node::output);
  return found == graph.nodes.end() ? nullptr : &*found;
}

}  // namespace

ExpertRouter router_of(const Graph& graph, const MoeFfnOp& op) {
  const Node* route = maker_of(graph, op.route);
  if (const auto* part = route ? std::get_if<CachedRouteOp>(&route->op) : nullptr)
    route = maker_of(graph, part->route);
  if (const auto* part = route ? std::get_if<ColumnsOp>(&route->op) : nullptr)
    route = maker_of(graph, part->x);
  const auto* ranks = route ? std::get_if<MoeRouteOp>(&route->op) : nullptr;
  const Node* logits = ranks ? maker_of(graph, ranks->logits) : nullptr;
  const auto* product = logits ? std::get_if<LinearOp>(&logits->op) : nullptr;
  if (!product) return {};
  const auto weight = [&](TensorId id) { return id == kNoTensor ? nullptr : graph.tensor(id).weight; };
  return {weight(product->weight), weight(product->bias), weight(ranks->selection_bias), *ranks};
}

}  // namespace tandem
