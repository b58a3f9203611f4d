#include "model/stage.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace tandem {
namespace {

// Of the shape classes that differ in the weights they read: some models have other RoPE factors for long contexts.
std::vector<ShapeClass> all_shapes() {
  ShapeClass small, large;
  small.n_ctx = 1;
  large.n_ctx = int64_t{1} << 40;
  large.max_tokens = 4096;
  return {small, large};
}

// Index of the first node of a layer; the number of nodes behind the last layer. Attention over the cache of an earlier layer
// has that layer's number, so a smaller number does not tell that a node comes earlier.
size_t begin_of(const Graph& graph, int layer, int n_layer) {
  if (layer <= 0) return 0;
  if (layer >= n_layer) return graph.nodes.size();
  const auto node = std::ranges::find_if(graph.nodes, [&](const Node& n) { return n.layer >= layer; });
  return static_cast<size_t>(node - graph.nodes.begin());
}

bool is_activation(const Graph& graph, TensorId id) {
  return graph.tensor(id).role == Role::activation;
}

// Activations made before node `at` and read by it or later ones, by id.
std::vector<TensorId> crossing(const Graph& graph, size_t at) {
  std::set<TensorId> made, read;
  for (size_t i = 0; i < at; ++i) {
    if (graph.nodes[i].output != kNoTensor) made.insert(graph.nodes[i].output);
  }
  for (size_t i = at; i < graph.nodes.size(); ++i) {
    for (const TensorId id : inputs_of(graph.nodes[i].op)) {
      if (is_activation(graph, id) && made.contains(id)) read.insert(id);
    }
  }
  return {read.begin(), read.end()};
}

// An earlier layer whose cache is read by a node of layer `layer` or a later one.
std::optional<int> cache_across(const Graph& graph, int layer, int n_layer) {
  for (size_t i = begin_of(graph, layer, n_layer); i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (uses_cache(node.op) && node.layer < layer) return node.layer;
  }
  return {};
}

}  // namespace

Stage::Stage(std::unique_ptr<Architecture> whole, const std::deque<Weight>& weights, LayerRange layers)
    : whole_(std::move(whole)), layers_(layers) {
  hparams_ = whole_->hparams();
  const auto n_layer = static_cast<int>(hparams_.n_layer);
  TANDEM_CHECK(0 <= layers.first && layers.first < layers.end && layers.end <= n_layer);
  std::set<const Weight*> read;
  for (const ShapeClass& shape : all_shapes()) {
    const Graph graph = whole_->build(shape);
    for (const int layer : {layers.first, layers.end}) {
      const std::optional<int> cache = cache_across(graph, layer, n_layer);
      if (!cache) continue;
      throw_error(ErrorCode::usage,
                  "a stage cannot begin with layer {}: that layer or a later one reads the cache of layer {}",
                  layer, *cache);
    }
    const Graph part = cut(graph);
    for (const Node& node : part.nodes) {
      for (const TensorId id : inputs_of(node.op)) read.insert(part.tensor(id).weight);
    }
  }
  for (const Weight& w : weights) {
    if (read.contains(&w)) copies_.emplace_back(&w, &weights_.emplace_back(w));
  }
  std::ranges::sort(copies_);
}

KvShape Stage::kv_shape(int layer) const {
  const KvShape shape = whole_->kv_shape(layer);
  if (layers_.has(layer)) return shape;
  KvShape none;
  none.has_states_elsewhere = shape.is_recurrent();
  return none;
}

Graph Stage::cut(Graph graph) const {
  const auto n_layer = static_cast<int>(hparams_.n_layer);
  const size_t begin = begin_of(graph, layers_.first, n_layer), end = begin_of(graph, layers_.end, n_layer);
  graph.received = crossing(graph, begin);
  graph.sent = crossing(graph, end);
  if (end < graph.nodes.size()) graph.logits = graph.top = graph.hidden = kNoTensor;
  graph.nodes.erase(graph.nodes.begin() + static_cast<int64_t>(end), graph.nodes.end());
  graph.nodes.erase(graph.nodes.begin(), graph.nodes.begin() + static_cast<int64_t>(begin));
  return graph;
}

Graph Stage::build(const ShapeClass& shape) const {
  Graph graph = cut(whole_->build(shape));
  for (Tensor& t : graph.tensors) {
    if (t.weight == nullptr) continue;
    const auto copy = std::ranges::lower_bound(copies_, t.weight, std::less<>(),
                                               &std::pair<const Weight*, const Weight*>::first);
    if (copy != copies_.end() && copy->first == t.weight) t.weight = copy->second;
  }
  return graph;
}

std::vector<LayerLoad> layer_loads(const Architecture& whole) {
  const Hparams& h = whole.hparams();
  const auto n_layer = static_cast<int>(h.n_layer);
  const Graph graph = whole.build(ShapeClass{});
  std::vector<LayerLoad> loads(static_cast<size_t>(n_layer));
  std::vector<std::set<const Weight*>> counted(loads.size());
  int layer = 0;
  for (const Node& node : graph.nodes) {
    layer = std::clamp(node.layer, layer, n_layer - 1);
    LayerLoad& load = loads[static_cast<size_t>(layer)];
    for (const TensorId id : inputs_of(node.op)) {
      const Weight* w = graph.tensor(id).weight;
      if (w == nullptr || !counted[static_cast<size_t>(layer)].insert(w).second) continue;
      const auto n_bytes = static_cast<double>(w->n_bytes());
      load.n_bytes += n_bytes;
      if (std::holds_alternative<EmbedOp>(node.op)) {
        load.read_bytes += n_bytes / static_cast<double>(w->n_rows);
      } else if (const auto* experts = std::get_if<MoeFfnOp>(&node.op); experts && w->n_mats > 1) {
        load.read_bytes += n_bytes * static_cast<double>(experts->n_used) / static_cast<double>(w->n_mats);
      } else {
        load.read_bytes += n_bytes;
      }
    }
  }
  for (int i = 0; i < n_layer; ++i) {
    const KvShape kv = whole.kv_shape(i);
    loads[static_cast<size_t>(i)].kv_bytes =
        2.0 * static_cast<double>(kv.n_head_kv * (kv.n_key_sets * kv.head_dim_k + kv.head_dim_v));
  }
  return loads;
}

std::vector<bool> possible_cuts(const Architecture& whole) {
  const auto n_layer = static_cast<int>(whole.hparams().n_layer);
  const Graph graph = whole.build(ShapeClass{});
  std::vector<bool> possible;
  for (int i = 0; i <= n_layer; ++i) possible.push_back(!cache_across(graph, i, n_layer));
  return possible;
}

}  // namespace tandem
