#include "plan/generic_kernels.h"

#include <map>
#include <set>

#include "exec/placed_graph.h"

namespace tandem {
namespace {

bool is_generic(const DeviceModel& device, const Node& node, DType dtype) {
  const DTypeSupport support = device.dtype_support(dtype);
  return (std::holds_alternative<EmbedOp>(node.op) ? support.read : support.multiply) == KernelPath::generic;
}

}  // namespace

std::string generic_kernels(std::span<const Graph* const> graphs, const DeviceModels& devices,
                            const Placement& placement) {
  std::map<DType, std::set<DeviceId>> found;
  for (const Graph* graph : graphs) {
    const PlacedGraph rewritten(*graph, placement);
    const Graph& placed = *rewritten;
    for (const Node& node : placed.nodes) {
      const DeviceId device = placement.runs_on(placed, node);
      for (TensorId id : inputs_of(node.op)) {
        if (placed.tensor(id).weight == nullptr) continue;
        const DType dtype = placed.tensor(id).dtype;
        if (is_generic(*devices[device.index()], node, dtype)) found[dtype].insert(device);
      }
    }
  }
  std::string text;
  for (const auto& [dtype, where] : found) {
    text += (text.empty() ? "generic kernels for " : "; ") + std::string(dtype_name(dtype));
    for (const DeviceId device : where) {
      text += (device == *where.begin() ? " on " : ", ") + devices[device.index()]->info().name;
    }
  }
  return text.empty() ? "" : text + " (float rows; slower)";
}

}  // namespace tandem
