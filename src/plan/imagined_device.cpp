#include "plan/imagined_device.h"

#include <algorithm>

#include "base/checked.h"

namespace tandem {
namespace {

// Returns the tensor that an op multiplies with matrices; kNoTensor if it has none.
TensorId input_of_products(const Op& op) {
  if (const auto* linear = std::get_if<LinearOp>(&op)) return linear->x;
  if (const auto* heads = std::get_if<HeadLinearOp>(&op)) return heads->x;
  if (const auto* glu = std::get_if<GluOp>(&op)) return glu->x;
  if (const auto* experts = std::get_if<MoeFfnOp>(&op)) return experts->x;
  return kNoTensor;
}

// The rows that latent attention makes of a chunk, 16 bits an element, its results over two of them; or its wide
// queries and results in the other form.
size_t latent_bytes(const Graph& graph, const LatentAttentionOp& op) {
  constexpr int64_t kChunkPositions = 4096, kAbsorbedTokens = 128,
                    kBlock = 32;  // positions, tokens, positions
  const int64_t n = graph.shape.max_tokens,
                n_positions = std::min(kChunkPositions, graph.shape.max_blocks * kBlock);
  const int64_t expanded = 2 * n_positions * (op.key + op.value) + 4 * n * (op.value + 2) +
                           2 * op.rank * (op.key - op.n_rot + op.value);
  const int64_t absorbed = 4 * std::min(n, kAbsorbedTokens) * (2 * op.rank + op.n_rot);
  return static_cast<size_t>(op.n_head * std::max(expanded, absorbed));
}

}  // namespace

ImaginedDevice::ImaginedDevice(std::string name, size_t memory_bytes, WeightBytes weight_bytes,
                               Support support)
    : memory_bytes_(memory_bytes), weight_bytes_(std::move(weight_bytes)), support_(std::move(support)) {
  info_.name = std::move(name);
  info_.description = "to plan for";
}

size_t ImaginedDevice::scratch_bytes(const Segment& segment) const {
  const Graph& graph = *segment.graph;
  size_t most = 0;
  for (int32_t i : segment.nodes) {
    const Node& node = graph.nodes[i];
    if (const auto* latent = std::get_if<LatentAttentionOp>(&node.op)) {
      most = std::max(most, latent_bytes(graph, *latent));
    }
    const TensorId multiplied = input_of_products(node.op);
    if (multiplied == kNoTensor) continue;
    const Tensor& x = graph.tensor(multiplied);
    // A byte an element, and a scale and a sum for each 32.
    most = std::max(most, static_cast<size_t>(x.n_rows) * static_cast<size_t>(x.n_cols) * 5 / 4);
  }
  return align_up(most, 256);
}

}  // namespace tandem
