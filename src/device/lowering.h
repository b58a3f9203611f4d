// Lowering: turns the nodes of a segment into compiled ops, one for each node or for a run of nodes that
// one kernel computes. A device defines, in the namespace of its context,
//   CompiledOpPtr compile(context, node, op)      for each op but linear, and
//   CompiledOpPtr compile_linear(context, nodes)  for linear nodes that all read the same x.
// An op without a compile function is a compile-time error.
#pragma once

#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "device/device.h"

namespace tandem {

// The view of a segment for compile functions; the context of a device derives from it.
struct SegmentView {
  const Segment& segment;

  const Graph& graph() const { return *segment.graph; }
  const Node& node(int32_t index) const { return graph().nodes[index]; }
  const Tensor& tensor(TensorId id) const { return graph().tensor(id); }
  // Returns the address of a tensor on this device as T*; null for kNoTensor, and for every tensor when
  // only the scratch size is queried.
  template <class T = float>
  T* address(TensorId id) const {
    if (id == kNoTensor || segment.addresses.empty()) return nullptr;
    const DevicePtr p = segment.addresses[tensor(id).storage];
    TANDEM_CHECK(p != nullptr);
    return reinterpret_cast<T*>(p);
  }
};

// Returns the rows of a tensor in a step; 0 for the outputs of a step without any.
inline int64_t row_count(Extent extent, int64_t fixed, const StepShape& shape) {
  return extent == Extent::tokens ? shape.n_tokens : extent == Extent::outputs ? shape.n_outputs : fixed;
}
inline int64_t row_count(const Tensor& t, const StepShape& shape) {
  return row_count(t.extent, t.n_rows, shape);
}

// A compiled op (null: none) and the number of nodes that it computes.
template <class CompiledOpPtr>
struct Lowered {
  CompiledOpPtr op;
  size_t n_nodes = 0;
};

// Returns the linear nodes at the front of `nodes` that read the same x, so x is encoded once for all of
// them.
std::span<const int32_t> linear_group(const SegmentView& view, std::span<const int32_t> nodes);

// Lowers the first node, together with the linear nodes of its group.
template <class CompiledOpPtr, class Context>
Lowered<CompiledOpPtr> lower_first(const Context& context, std::span<const int32_t> nodes) {
  const Node& node = context.node(nodes.front());
  const auto lower_op = [&]<class AnyOp>(const AnyOp& op) -> Lowered<CompiledOpPtr> {
    if constexpr (std::is_same_v<AnyOp, LinearOp>) {
      const std::span<const int32_t> group = linear_group(context, nodes);
      return {compile_linear(context, group), group.size()};
    } else if constexpr (std::is_same_v<AnyOp, CollectiveOp>) {
      TANDEM_CHECK(false);  // no segment has one
      return {};
    } else {
      return {compile(context, node, op), 1};
    }
  };
  return std::visit(lower_op, node.op);
}

// Lowers the context's segment, in order. The device's fusions, each called as fusion(context, nodes), are
// tried first; one returns an op if it can compute the front of `nodes`.
template <class CompiledOpPtr, class Context, class... Fusion>
std::vector<CompiledOpPtr> lower(const Context& context, const Fusion&... fusions) {
  std::vector<CompiledOpPtr> ops;
  for (std::span<const int32_t> nodes = context.segment.nodes; !nodes.empty();) {
    Lowered<CompiledOpPtr> next;
    [[maybe_unused]] const auto found = [&](const auto& fusion) {
      return (next = fusion(context, nodes)).op != nullptr;
    };
    if (!(found(fusions) || ...)) next = lower_first<CompiledOpPtr>(context, nodes);
    ops.push_back(std::move(next.op));
    nodes = nodes.subspan(next.n_nodes);
  }
  return ops;
}

}  // namespace tandem
