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
  const int64_t n_cols = graph_.tensor(id).n_cols;
  const ColumnRuns order = order_in_parts(x.cuts, n_cols);
  const bool are_in_order = order.size() == 1;
  tensor(id).storage = id;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const bool gets = i == 0 || to == To::all;
    y.at[i] = i == 0 ? id : gets ? add_like(id, i, n_cols) : kNoTensor;
    const TensorId all = are_in_order || !gets ? y.at[i] : add_like(id, i, n_in_parts(x.cuts, n_cols));
    result_.push_back(
        Node{CollectiveOp{CollectiveKind::all_gather, number, x.at[i]}, all, layer, devices_[i]});
    if (!are_in_order && gets) take(waiting_[i], all, order, {id, i, layer, devices_[i]}, y.at[i]);
  }
  spread_[id] = std::move(y);
}

int64_t SpreadGraph::n_in_parts(const Cuts& cuts, int64_t n_cols) const {
  int64_t n = 0;
  for (size_t i = 0; i < devices_.size(); ++i) n += cuts.n_of(i, n_cols);
  return n;
}

// Where the columns of a row are, in their order, if the parts of all devices lie side by side.
ColumnRuns SpreadGraph::order_in_parts(const Cuts& cuts, int64_t n_cols) const {
  std::vector<std::pair<ColumnRun, int64_t>> pieces;  // a run of the row, and where it begins in the parts
  int64_t at = 0;
  for (size_t i = 0; i < devices_.size(); ++i) {
    for (const ColumnRun& run : cuts.runs_of(i, n_cols)) {
      pieces.emplace_back(run, at);
      at += run.n;
    }
  }
  std::ranges::sort(pieces);
  ColumnRuns order;
  int64_t upto = 0;
  for (const auto& [run, first] : pieces) {  // several devices may have the same columns
    TANDEM_CHECK(run.first <= upto);
    const int64_t n_had = std::min(upto - run.first, run.n);
    add_run(order, {first + n_had, run.n - n_had});
    upto = std::max(upto, run.first + run.n);
  }
  TANDEM_CHECK(upto == n_cols);
  return order;
}

// Adds nodes that put some runs of x side by side; `output` is a tensor for them, or is made.
TensorId SpreadGraph::take(std::vector<Node>& nodes, TensorId x, const ColumnRuns& runs, const Place& place,
                           TensorId output) {
  const int64_t n_cols = graph_.tensor(x).n_cols;
  TensorId sum = kNoTensor;
  int64_t n_sum = 0;
  for (size_t k = 0; k < runs.size(); ++k) {
    const bool is_last = k + 1 == runs.size();
    const auto new_tensor = [&](int64_t n, bool is_result) {
      return is_result && output != kNoTensor ? output : add_like(place.like, place.i, n);
    };
    const TensorId run = new_tensor(runs[k].n, runs.size() == 1);
    nodes.push_back(Node{ColumnsOp{{n_cols, runs[k].first, runs[k].n}, x}, run, place.layer, place.device});
    n_sum += runs[k].n;
    if (k == 0) {
      sum = run;
      continue;
    }
    const TensorId both = new_tensor(n_sum, is_last);
    nodes.push_back(Node{JoinOp{sum, run, kNoTensor}, both, place.layer, place.device});
    sum = both;
  }
  return sum;
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
  const ColumnRuns order = order_in_parts(spread_.at(id).cuts, graph_.tensor(id).n_cols);
  if (order.size() > 1) sum = take(result_, sum, order, {id, 0, layer_of_.at(id), device});
  return joined_[{id, device}] = sum;
}

TensorId SpreadGraph::part_of(TensorId id, size_t i, const Cuts& cuts) {
  const Spread* spread = find(id);
  TANDEM_CHECK(spread != nullptr);
  if (spread->kind == Spread::Kind::divided) {
    if (spread->cuts == cuts) return spread->at[i];
    gather(id);
  }
  const ColumnRuns runs = cuts.runs_of(i, graph_.tensor(id).n_cols);
  const TensorId whole = spread_.at(id).at[i];
  if (n_columns(runs) == graph_.tensor(id).n_cols) return whole;
  const std::optional<DeviceId> maker = spread_.at(id).maker;
  if (maker) issue();  // it makes the part, so that no more is copied
  return take(maker ? result_ : waiting_[i], whole, runs,
              {id, i, layer_of_.at(id), maker.value_or(devices_[i])});
}

TensorId SpreadGraph::rows(TensorId id, size_t i, const Cuts& cuts) {
  if (id == kNoTensor) return id;
  const Weight& w = *graph_.tensor(id).weight;
  const int64_t n = w.n_rows > 1 ? w.n_rows : w.n_cols;
  return add_weight(placement_.slices->rows_of(w, cuts.runs_of(i, n)));
}

TensorId SpreadGraph::mats(TensorId id, size_t i, const Cuts& cuts) {
  if (id == kNoTensor) return id;
  const Weight& w = *graph_.tensor(id).weight;
  const int64_t n = w.n_mats > 1 ? w.n_mats : w.n_rows;
  TANDEM_CHECK(cuts.ranges.empty());
  return add_weight(placement_.slices->mats_of(w, cuts.first_of(i, n), cuts.n_of(i, n)));
}

TensorId SpreadGraph::columns(TensorId id, size_t i, const Cuts& cuts) {
  const Weight& w = *graph_.tensor(id).weight;
  return add_weight(placement_.slices->columns_of(w, cuts.runs_of(i, w.n_cols)));
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
