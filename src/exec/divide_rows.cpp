#include "exec/divide_rows.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace tandem {
namespace {

class Divider {
 public:
  Divider(Graph graph, const Placement& placement) : graph_(std::move(graph)), placement_(placement) {}

  Graph run() {
    const std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    for (size_t i = 0; i < nodes.size();) {
      size_t end = i;
      while (end < nodes.size() && is_divided(nodes[end]) &&
             product_of(nodes[end]).x == product_of(nodes[i]).x)
        ++end;
      if (end == i) {
        graph_.nodes.push_back(nodes[i++]);
        if (is_for_host(graph_.nodes.back())) graph_.nodes.back().device = DeviceId::host();
        continue;
      }
      divide(std::span(nodes).subspan(i, end - i));
      i = end;
    }
    return std::move(graph_);
  }

 private:
  // The product of a node that can be divided. For a glu, `weight` is the gate; up has the same number of
  // rows.
  struct Product {
    TensorId x = kNoTensor, weight = kNoTensor, residual = kNoTensor;
  };
  static Product product_of(const Node& node) {
    if (const auto* linear = std::get_if<LinearOp>(&node.op))
      return {linear->x, linear->weight, linear->residual};
    if (const auto* glu = std::get_if<GluOp>(&node.op)) return {glu->x, glu->gate};
    return {};
  }

  double share_of(const Node& node) const {
    const WeightHome* home = placement_.home_of(node);
    return home ? row_share(*home, step_kind(graph_.shape)) : 1;
  }

  bool is_shared(const Node& node) const { return !node.device && share_of(node) < 1; }

  bool is_divided(const Node& node) const {
    const TensorId weight = product_of(node).weight;
    if (weight == kNoTensor || !is_shared(node)) return false;
    const Weight& w = *graph_.tensor(weight).weight;
    return placement_.streams(graph_, node, w) && rows_of(node) < w.n_rows;
  }

  bool is_for_host(const Node& node) const {
    const auto* experts = std::get_if<MoeFfnOp>(&node.op);
    return experts && is_shared(node) && host_computes_experts(graph_, *experts) &&
           placement_.streams(graph_, node, *graph_.tensor(experts->down).weight);
  }

  // Returns the rows that the device computes.
  int64_t rows_of(const Node& node) const {
    return device_rows(graph_.tensor(product_of(node).weight).n_rows, share_of(node));
  }

  // Divides products with the same input. The device's parts come first, because the host does not wait for
  // them.
  void divide(std::span<const Node> nodes) {
    std::vector<TensorId> device_parts, host_parts;
    for (const Node& node : nodes) {
      const DeviceId device = placement_.runs_on(graph_, node);
      device_parts.push_back(add_part(node, {0, rows_of(node)}, device, product_of(node).x));
    }
    const TensorId x = on_host(product_of(nodes.front()).x);
    for (const Node& node : nodes) {
      const int64_t n_rows = graph_.tensor(product_of(node).weight).n_rows, first = rows_of(node);
      host_parts.push_back(add_part(node, {first, n_rows - first}, DeviceId::host(), x));
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      const TensorId residual = product_of(nodes[i]).residual;
      const DeviceId device = placement_.runs_on(graph_, nodes[i]);
      add_join(nodes[i], {device_parts[i], host_parts[i], residual}, nodes[i].output, device);
      if (residual == kNoTensor) joined_[nodes[i].output] = {device_parts[i], host_parts[i]};
    }
  }

  // Returns x for use on the host. If the device joined x from two parts, the host joins the parts itself
  // when it needs them, so it does not wait for the device.
  TensorId on_host(TensorId x) {
    const auto found = joined_.find(x);
    if (found == joined_.end()) return x;
    Joined& j = found->second;
    if (j.on_host == kNoTensor) {
      j.on_host = add_activation(graph_.tensor(x).name + "@host", graph_.tensor(x), graph_.tensor(x).n_cols);
      add_join(graph_.nodes.back(), {j.device_part, j.host_part, kNoTensor}, j.on_host, DeviceId::host());
    }
    return j.on_host;
  }

  struct Rows {
    int64_t first, n;
  };

  TensorId add_part(const Node& whole, const Rows& rows, DeviceId device, TensorId x) {
    Node part = whole;
    part.device = device;
    for_each_input(part.op, [&](TensorId& id) {
      if (const Weight* weight = graph_.tensor(id).weight) id = add_slice(*weight, rows);
    });
    if (auto* glu = std::get_if<GluOp>(&part.op)) glu->x = x;
    if (auto* linear = std::get_if<LinearOp>(&part.op)) {
      linear->x = x;
      linear->residual = kNoTensor;  // the join adds it
    }
    const Tensor& y = graph_.tensor(whole.output);
    part.output = add_activation(y.name + (device.is_host() ? ".host" : ".device"), y, rows.n);
    graph_.nodes.push_back(part);
    return part.output;
  }

  void add_join(const Node& like, const JoinOp& join, TensorId output, DeviceId device) {
    graph_.nodes.push_back(Node{join, output, like.layer, device});
  }

  TensorId add_activation(std::string name, const Tensor& like, int64_t n_cols) {
    Tensor t = like;
    t.name = std::move(name);
    t.n_cols = n_cols;
    t.storage = static_cast<TensorId>(graph_.tensors.size());
    graph_.tensors.push_back(std::move(t));
    return graph_.tensors.back().storage;
  }

  TensorId add_slice(const Weight& whole, const Rows& rows) {
    const Weight* slice = placement_.slices->rows_of(whole, rows.first, rows.n);
    Tensor t;
    t.name = slice->name;
    t.role = Role::weight;
    t.dtype = slice->dtype;
    t.n_rows = slice->n_rows;
    t.n_cols = slice->n_cols;
    t.weight = slice;
    t.storage = static_cast<TensorId>(graph_.tensors.size());
    graph_.tensors.push_back(std::move(t));
    return graph_.tensors.back().storage;
  }

  struct Joined {
    TensorId device_part, host_part;
    TensorId on_host = kNoTensor;
  };

  Graph graph_;
  const Placement& placement_;
  std::unordered_map<TensorId, Joined> joined_;  // outputs of joins without a residual
};

}  // namespace

int64_t device_rows(int64_t n_rows, double share) {
  const int64_t strip = n_rows >= 1024 ? 64 : 32;
  if (!(share < 1) || n_rows < 2 * strip) return n_rows;
  const auto strips = std::llround(share * static_cast<double>(n_rows) / static_cast<double>(strip));
  return std::clamp<int64_t>(strips * strip, strip, (n_rows - 1) / strip * strip);
}

bool host_computes_experts(const Graph& graph, const MoeFfnOp& op) {
  return graph.shape.max_tokens * op.n_used < op.n_expert;
}

Graph divide_rows(Graph graph, const Placement& placement) {
  return placement.divides_rows(step_kind(graph.shape)) ? Divider(std::move(graph), placement).run() : graph;
}

}  // namespace tandem
