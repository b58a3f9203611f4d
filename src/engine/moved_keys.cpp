#include "engine/moved_keys.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/error.h"
#include "gguf/quants.h"
#include "graph/rope_frequencies.h"

namespace tandem {
namespace {

constexpr DType kMovable[] = {DType::F32, DType::F16, DType::BF16};

// The node whose output is this tensor; null: an input or a weight.
const Node* producer(const Graph& graph, TensorId id) {
  const auto found = std::ranges::find(graph.nodes, id, &Node::output);
  return found == graph.nodes.end() ? nullptr : &*found;
}

// Whether a tensor depends on positions by what its layer computes. What comes from the layers before does not count: it
// stays as it was.
bool depends_on_position(const Graph& graph, TensorId id, int layer) {
  if (id == kNoTensor) return false;
  if (id == graph.inputs[static_cast<size_t>(Input::positions)]) return true;
  const Node* node = producer(graph, id);
  if (node == nullptr || node->layer != layer) return false;
  bool depends = false;
  for_each_input(node->op,
                 [&](TensorId input) { depends = depends || depends_on_position(graph, input, layer); });
  return depends;
}

std::optional<KeyRotation> key_rotation(const Graph& graph, const KvWriteOp& write, int layer) {
  if (depends_on_position(graph, write.v, layer)) return std::nullopt;
  const Node* node = producer(graph, write.k);
  const RopeOp* rope = node ? std::get_if<RopeOp>(&node->op) : nullptr;
  if (!rope) {
    if (depends_on_position(graph, write.k, layer)) return std::nullopt;
    return KeyRotation{};
  }
  if (depends_on_position(graph, rope->x, layer) || rope->temperature_scale != 0.0f) return std::nullopt;
  std::span<const float> factors;
  if (rope->freq_factors != kNoTensor) {
    const Weight* weight = graph.tensor(rope->freq_factors).weight;
    if (!weight || weight->dtype != DType::F32) return std::nullopt;
    factors = {reinterpret_cast<const float*>(weight->data), static_cast<size_t>(rope->n_rot / 2)};
  }
  return KeyRotation{rope->style, rope->first, rope_frequencies(*rope, factors)};
}

}  // namespace

std::optional<std::vector<KeyRotation>> key_rotations(const Graph& graph, const KvConfig& config) {
  if (config.is_recurrent()) return std::nullopt;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (!config.layers[i].has_rows()) continue;
    const KvFormat format = config.format(i);
    if (!config.layers[i].has_heads() || format.rotation != KvRotation{}) return std::nullopt;
    if (std::ranges::find(kMovable, format.k) == std::end(kMovable)) return std::nullopt;
  }
  std::vector<KeyRotation> rotations(config.layers.size());
  for (const Node& node : graph.nodes) {
    const KvWriteOp* write = std::get_if<KvWriteOp>(&node.op);
    if (!write) continue;
    const std::optional<KeyRotation> rotation = key_rotation(graph, *write, node.layer);
    if (!rotation) return std::nullopt;
    rotations[static_cast<size_t>(node.layer)] = *rotation;
  }
  return rotations;
}

void rotate_keys(const KeyRotation& rotation, DType dtype, int64_t head_dim, int64_t n_rows, int64_t by,
                 std::byte* rows) {
  const size_t n_pairs = rotation.frequency.size();
  if (n_pairs == 0 || by == 0) return;
  std::vector<float> cos(n_pairs), sin(n_pairs), row(static_cast<size_t>(head_dim));
  for (size_t i = 0; i < n_pairs; ++i) {
    const double angle = static_cast<double>(by) * rotation.frequency[i];
    cos[i] = static_cast<float>(std::cos(angle));
    sin[i] = static_cast<float>(std::sin(angle));
  }
  const bool interleaved = rotation.style == RopeStyle::pair;
  const size_t apart = interleaved ? 1 : n_pairs, step = interleaved ? 2 : 1,
               n_row = row_bytes(dtype, head_dim);
  float* columns = row.data() + rotation.first;
  for (int64_t i = 0; i < n_rows; ++i, rows += n_row) {
    dequantize_row(dtype, rows, row.data(), head_dim);
    for (size_t pair = 0; pair < n_pairs; ++pair) {
      float &a = columns[pair * step], &b = columns[pair * step + apart];
      const float x = a, y = b;
      a = x * cos[pair] - y * sin[pair];
      b = x * sin[pair] + y * cos[pair];
    }
    quantize_row(dtype, row.data(), rows, head_dim);
  }
}

}  // namespace tandem
