#include "exec/spread_graph.h"

#include <algorithm>

#include "base/error.h"

namespace tandem {

SpreadGraph::SpreadGraph(Graph graph, const Placement& placement)
    : graph_(std::move(graph)),
      placement_(placement),
      devices_(placement.parallel.value().devices),
      waiting_(devices_.size()) {
  // The host computes while it issues, so it comes last.
  for (size_t i = 0; i < devices_.size(); ++i) order_.push_back(i);
  std::stable_partition(order_.begin(), order_.end(), [&](size_t i) { return !devices_[i].is_host(); });
}

void SpreadGraph::set_partial(const Node& node, std::vector<TensorId> parts, const Cuts& cuts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!cuts.has(i) && parts[i] != kNoTensor) passed_on_.insert(parts[i]);
  }
  spread_[node.output] = {Spread::Kind::partial, std::move(parts), {}, {}};
}

void SpreadGraph::all_reduce(TensorId id) {
  issue();
  const std::vector<TensorId> parts = spread_.at(id).at;
  Spread y = everywhere();
  const int32_t number = n_collectives_++;
  const int layer = layer_of_.at(id);
  tensor(id).storage = id;
  for (const size_t i : order_) {
    y.at[i] = i == 0 ? id : add_like(id, i, graph_.tensor(id).n_cols);
    if (parts[i] != kNoTensor && !passed_on_.contains(parts[i])) tensor(parts[i]).storage = y.at[i];
    result_.push_back(
        Node{CollectiveOp{CollectiveKind::all_reduce, number, parts[i]}, y.at[i], layer, devices_[i]});
  }
  spread_[id] = std::move(y);
}

void SpreadGraph::gather(TensorId id, To to) {
  const Spread x = spread_.at(id);
  issue();
  Spread y = everywhere();
  const int32_t number = n_collectives_++;
  const int layer = layer_of_.at(id);
  tensor(id).storage = id;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const bool gets = i == 0 || to == To::all;
    y.at[i] = i == 0 ? id : gets ? add_like(id, i, graph_.tensor(id).n_cols) : kNoTensor;
    result_.push_back(
        Node{CollectiveOp{CollectiveKind::all_gather, number, x.at[i]}, y.at[i], layer, devices_[i]});
  }
  spread_[id] = std::move(y);
}

const Spread* SpreadGraph::find(TensorId id) const {
  const auto found = spread_.find(id);
  return found == spread_.end() ? nullptr : &found->second;
}

bool SpreadGraph::is(TensorId id, Spread::Kind kind) const {
  const Spread* spread = id == kNoTensor ? nullptr : find(id);
  return spread && spread->kind == kind;
}

TensorId SpreadGraph::whole_at(TensorId id, size_t i) {
  const Spread* spread = find(id);
  if (!spread) return id;
  if (spread->kind == Spread::Kind::divided) gather(id);
  return spread_.at(id).at[i];
}

TensorId SpreadGraph::whole_on(TensorId id, DeviceId device) {
  const Spread* spread = find(id);
  if (!spread) return id;
  if (spread->kind == Spread::Kind::divided) return joined(id, device);
  return spread->at[placement_.parallel->find(device).value_or(0)];
}

// Joins parts on a device: only it needs them.
TensorId SpreadGraph::joined(TensorId id, DeviceId device) {
  const auto [at, is_new] = joined_.try_emplace({id, device}, kNoTensor);
  if (!is_new) return at->second;
  issue();
  TensorId sum = kNoTensor;
  for (const TensorId part : spread_.at(id).at) {
    if (part == kNoTensor) continue;
    if (sum == kNoTensor) {
      sum = part;
      continue;
    }
    const TensorId both = add_like(id, 0, graph_.tensor(sum).n_cols + graph_.tensor(part).n_cols);
    result_.push_back(Node{JoinOp{sum, part, kNoTensor}, both, layer_of_.at(id), device});
    sum = both;
  }
  return joined_[{id, device}] = sum;
}

TensorId SpreadGraph::part_of(TensorId id, size_t i, const Cuts& cuts) {
  const Spread* spread = find(id);
  TANDEM_CHECK(spread != nullptr);
  if (spread->kind == Spread::Kind::divided) {
    if (spread->cuts == cuts) return spread->at[i];
    gather(id);
  }
  const int64_t n_cols = graph_.tensor(id).n_cols;
  const ColumnsOp op{{n_cols, cuts.first_of(i, n_cols), cuts.n_of(i, n_cols)}, spread_.at(id).at[i]};
  if (op.width == n_cols) return op.x;
  const TensorId part = add_like(id, i, op.width);
  const std::optional<DeviceId> maker = spread_.at(id).maker;
  if (maker) {  // so that no more than the part is copied
    issue();
    result_.push_back(Node{op, part, layer_of_.at(id), *maker});
  } else {
    waiting_[i].push_back(Node{op, part, layer_of_.at(id), devices_[i]});
  }
  return part;
}

TensorId SpreadGraph::rows(TensorId id, size_t i, const Cuts& cuts) {
  if (id == kNoTensor) return id;
  const Weight& w = *graph_.tensor(id).weight;
  const int64_t n = w.n_rows > 1 ? w.n_rows : w.n_cols;
  return add_weight(placement_.slices->rows_of(w, cuts.first_of(i, n), cuts.n_of(i, n)));
}

TensorId SpreadGraph::mats(TensorId id, size_t i, const Cuts& cuts) {
  if (id == kNoTensor) return id;
  const Weight& w = *graph_.tensor(id).weight;
  const int64_t n = w.n_mats > 1 ? w.n_mats : w.n_rows;
  return add_weight(placement_.slices->mats_of(w, cuts.first_of(i, n), cuts.n_of(i, n)));
}

TensorId SpreadGraph::columns(TensorId id, size_t i, const Cuts& cuts) {
  const Weight& w = *graph_.tensor(id).weight;
  return add_weight(placement_.slices->columns_of(w, cuts.first_of(i, w.n_cols), cuts.n_of(i, w.n_cols)));
}

TensorId SpreadGraph::add_weight(const Weight* slice) {
  const auto [at, is_new] = weights_.try_emplace(slice, kNoTensor);
  if (!is_new) return at->second;
  Tensor t;
  t.name = slice->name;
  t.role = Role::weight;
  t.dtype = slice->dtype;
  t.n_rows = slice->n_rows * slice->n_mats;
  t.n_cols = slice->n_cols;
  t.weight = slice;
  return at->second = add(std::move(t));
}

Spread SpreadGraph::everywhere() const {
  return {Spread::Kind::everywhere, std::vector<TensorId>(devices_.size(), kNoTensor), {}, {}};
}

Spread SpreadGraph::divided(const Cuts& cuts) const {
  return {Spread::Kind::divided, std::vector<TensorId>(devices_.size(), kNoTensor), {}, cuts};
}

TensorId SpreadGraph::emit(size_t i, const Node& like, Op op, int64_t n_cols) {
  const TensorId output = like.output == kNoTensor ? kNoTensor : add_like(like.output, i, n_cols);
  return push(i, like, std::move(op), output);
}

TensorId SpreadGraph::emit_whole(size_t i, const Node& like, Op op) {
  if (i > 0 || like.output == kNoTensor)
    return emit(i, like, std::move(op), like.output == kNoTensor ? 0 : graph_.tensor(like.output).n_cols);
  return push(i, like, std::move(op), like.output);
}

TensorId SpreadGraph::push(size_t i, const Node& like, Op op, TensorId output) {
  if (output != kNoTensor) {
    set_storage(like, op, output);
    layer_of_[like.output] = like.layer;
  }
  waiting_[i].push_back(Node{std::move(op), output, like.layer, devices_[i]});
  return output;
}

// What an op computes in the place of an input stays so.
void SpreadGraph::set_storage(const Node& like, const Op& op, TensorId output) {
  const TensorId storage = built_storage(like.output);
  tensor(output).storage = output;
  if (storage == like.output) return;
  const InputList before = inputs_of(like.op), now = inputs_of(op);
  for (const TensorId *b = before.begin(), *n = now.begin(); b != before.end(); ++b, ++n) {
    if (built_storage(*b) == storage) tensor(output).storage = graph_.tensor(*n).storage;
  }
}

TensorId SpreadGraph::built_storage(TensorId id) {
  return storage_.try_emplace(id, graph_.tensor(id).storage).first->second;
}

TensorId SpreadGraph::add_like(TensorId id, size_t i, int64_t n_cols) {
  Tensor t = graph_.tensor(id);
  t.name += "@" + std::to_string(i);
  t.n_cols = n_cols;
  return add(std::move(t));
}

TensorId SpreadGraph::add(Tensor t) {
  t.storage = static_cast<TensorId>(graph_.tensors.size());
  graph_.tensors.push_back(std::move(t));
  return graph_.tensors.back().storage;
}

// Issues what waits, device by device, so that each has long segments.
void SpreadGraph::issue() {
  for (const size_t i : order_) {
    std::ranges::move(waiting_[i], std::back_inserter(result_));
    waiting_[i].clear();
  }
}

std::vector<Node> SpreadGraph::without_unused() {
  std::vector<bool> used(graph_.tensors.size(), false);
  for (TensorId id : {graph_.logits, graph_.top, graph_.hidden}) {
    if (id != kNoTensor) used[static_cast<size_t>(id)] = true;
  }
  std::vector<Node> kept;
  for (const TensorId id : graph_.sent) used[static_cast<size_t>(id)] = true;
  for (auto node = result_.rbegin(); node != result_.rend(); ++node) {
    const bool is_needed = node->output == kNoTensor || used[static_cast<size_t>(node->output)] ||
                           std::holds_alternative<CollectiveOp>(node->op);
    if (!is_needed) continue;
    for (TensorId id : inputs_of(node->op)) used[static_cast<size_t>(id)] = true;
    kept.push_back(std::move(*node));
  }
  std::ranges::reverse(kept);
  return kept;
}

void SpreadGraph::emit_alone(const Node& like, Node node) {
  issue();
  if (node.output != kNoTensor) {
    set_storage(like, node.op, node.output);
    layer_of_[node.output] = node.layer;
  }
  result_.push_back(std::move(node));
}

void SpreadGraph::append(const Node& node) {
  issue();
  result_.push_back(node);
}

Graph SpreadGraph::finish() {
  issue();
  graph_.nodes = without_unused();
  return std::move(graph_);
}

}  // namespace tandem
