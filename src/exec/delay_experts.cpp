#include "exec/delay_experts.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

bool is_delayed(const Graph& graph, const Placement& placement, const Node& node) {
  const auto* op = std::get_if<MoeFfnOp>(&node.op);
  return op && op->joins_later && placement.runs_on(graph, node).is_host() &&
         !placement.streams(graph, node, *graph.tensor(op->down).weight);
}

bool reads(const Node& node, TensorId id) {
  bool found = false;
  for_each_input(node.op, [&](TensorId input) { found |= input == id; });
  return found;
}

}  // namespace

bool delays_experts(const Graph& graph, const Placement& placement) {
  return std::ranges::any_of(graph.nodes,
                             [&](const Node& node) { return is_delayed(graph, placement, node); });
}

Graph delay_experts(Graph graph, const Placement& placement) {
  std::optional<Node> waiting;
  for (Node& node : std::exchange(graph.nodes, {})) {
    if (waiting && (placement.runs_on(graph, node).is_host() || reads(node, waiting->output))) {
      graph.nodes.push_back(std::move(*waiting));
      waiting.reset();
    }
    if (is_delayed(graph, placement, node)) {
      waiting = std::move(node);
    } else {
      graph.nodes.push_back(std::move(node));
    }
  }
  const auto is_sent = [&](const Node& node) {
    return std::ranges::find(graph.sent, node.output) != graph.sent.end();
  };
  if (waiting && is_sent(*waiting)) graph.nodes.push_back(std::move(*waiting));
  return graph;  // a result that nobody reads is not computed
}

}  // namespace tandem
