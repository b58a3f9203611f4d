#include "exec/parts.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {
namespace {

constexpr int64_t kRowUnit = 16;  // a part begins at a multiple: its inputs are aligned as any tensor

// Inputs with a value, or a row, of each token.
bool has_tokens(Input input) {
  switch (input) {
    case Input::ids:
    case Input::positions:
    case Input::sequences:
    case Input::slots:
    case Input::hot_slots:
    case Input::hidden: return true;
    default: return false;
  }
}

// Nodes up to a collective and its own.
struct Stage {
  std::vector<Node> nodes;       // that go in parts
  std::vector<Node> whole;       // that need all parts
  std::vector<Node> collective;  // one for each device
  bool sums_parts = false;       // the collective goes in parts
};

class StepDivider {
 public:
  StepDivider(const Graph& divided, int64_t n_each, size_t n_parts) : g_{divided, {}} {
    StepParts& parts = g_.parts;
    parts.count = n_parts;
    parts.n_each = n_each;
    n_built_ = graph().tensors.size();
    parts.rows.assign(n_built_, StepRows::all);
    parts.views.assign(n_built_, {});
    parts.states.assign(n_parts, kNoTensor);
    part_ids_.assign(n_parts, std::vector<TensorId>(n_built_, kNoTensor));
    is_whole_.assign(n_built_, false);
  }

  std::optional<PartedGraph> run() {
    find_whole();
    if (!are_alike()) return std::nullopt;
    const std::vector<Stage> stages = find_stages();
    for (size_t begin = 0; begin < stages.size();) {
      size_t end = begin + 1;  // behind what needs all parts
      while (end < stages.size() && stages[end - 1].whole.empty() && stages[end - 1].sums_parts) ++end;
      add(std::span(stages).subspan(begin, end - begin));
      begin = end;
    }
    graph().nodes = std::move(result_);
    return std::move(g_);
  }

 private:
  Graph& graph() { return g_.graph; }
  const Tensor& tensor(TensorId id) const { return g_.graph.tensor(id); }
  TensorId root(TensorId id) const { return tensor(id).storage; }

  bool has_token_rows(TensorId id) const {
    const Tensor& t = tensor(id);
    return t.role == Role::input ? has_tokens(t.input)
                                 : t.role == Role::activation && t.extent == Extent::tokens;
  }
  // Whether a node computes each token for itself, or in their order.
  bool goes_in_parts(const Node& node) const {
    if (node.output != kNoTensor) return has_token_rows(node.output);
    const InputList inputs = inputs_of(node.op);
    return std::ranges::any_of(inputs, [&](TensorId id) { return has_token_rows(id); });
  }

  // What is needed of all tokens at once.
  void find_whole() {
    const auto need = [&](TensorId id) {
      if (id != kNoTensor && tensor(id).role == Role::activation && has_token_rows(id))
        is_whole_[static_cast<size_t>(root(id))] = true;
    };
    for (const Node& node : graph().nodes) {
      if (goes_in_parts(node)) continue;
      for (const TensorId id : inputs_of(node.op)) need(id);
    }
    need(graph().hidden);
    for (const TensorId id : graph().received) need(id);
    for (const TensorId id : graph().sent) need(id);
  }

  // Whether tensors in the same memory that is needed whole have rows of the same size.
  bool are_alike() const {
    for (size_t i = 0; i < n_built_; ++i) {
      const auto id = static_cast<TensorId>(i);
      const Tensor &t = tensor(id), &of = tensor(root(id));
      if (is_whole_[static_cast<size_t>(root(id))] &&
          row_bytes(t.dtype, t.n_cols) != row_bytes(of.dtype, of.n_cols))
        return false;
    }
    return true;
  }

  // ---- Tensors ----

  TensorId part_of(TensorId id, size_t part) {
    const Tensor& t = tensor(id);
    if (t.role == Role::input && t.input == Input::states && part > 0) return later_states(id, part);
    if (!has_token_rows(id)) return id;
    TensorId& known = part_ids_[part][static_cast<size_t>(id)];
    if (known != kNoTensor) return known;
    const bool is_whole = t.role == Role::input || is_whole_[static_cast<size_t>(root(id))];
    const TensorId made = part == 0 && !is_whole ? id : add_part(id, part);
    known = made;
    if (made == id) {  // the rows of the first part alone are left of it
      graph().tensors[static_cast<size_t>(id)].n_rows = n_rows_of(part);
      g_.parts.rows[static_cast<size_t>(id)] = rows_of_part(part);
    }
    if (is_whole) {
      g_.parts.views[static_cast<size_t>(made)] = {id, offset_of(id, part)};
      graph().tensors[static_cast<size_t>(made)].is_view = graph().tensors[static_cast<size_t>(id)].is_view = true;
    }
    if (root(id) != id) {
      const TensorId storage = part_of(root(id), part);
      graph().tensors[static_cast<size_t>(made)].storage = storage;
    }
    return made;
  }

  static bool has_tokens_as_columns(const Tensor& t) {
    return t.role == Role::input && t.extent != Extent::tokens;
  }
  int64_t n_rows_of(size_t part) const {
    const StepParts& parts = g_.parts;
    const int64_t n_before = static_cast<int64_t>(part) * parts.n_each;
    return std::min(parts.n_each, g_.graph.shape.max_tokens - n_before);
  }

  TensorId add_part(TensorId id, size_t part) {
    Tensor t = tensor(id);
    t.name += format(".part{}", part + 1);
    (has_tokens_as_columns(t) ? t.n_cols : t.n_rows) = n_rows_of(part);
    return push(std::move(t), rows_of_part(part));
  }

  size_t offset_of(TensorId id, size_t part) const {
    const Tensor& t = tensor(id);
    return part * static_cast<size_t>(g_.parts.n_each) *
           row_bytes(t.dtype, has_tokens_as_columns(t) ? 1 : t.n_cols);
  }

  TensorId later_states(TensorId id, size_t part) {
    TensorId& states = g_.parts.states[part];
    if (states == kNoTensor) {
      Tensor t = tensor(id);
      t.name += format(".part{}", part + 1);
      states = push(std::move(t), StepRows::all);
    }
    return states;
  }

  TensorId push(Tensor t, StepRows rows) {
    const auto id = static_cast<TensorId>(graph().tensors.size());
    t.storage = id;
    graph().tensors.push_back(std::move(t));
    g_.parts.rows.push_back(rows);
    g_.parts.views.push_back({});
    return id;
  }

  // ---- Nodes ----

  std::vector<Stage> find_stages() const {
    std::vector<Stage> stages(1);
    for (const Node& node : g_.graph.nodes) {
      const auto* op = std::get_if<CollectiveOp>(&node.op);
      const std::vector<Node>& last = stages.back().collective;
      if (!last.empty() && (!op || op->number != std::get<CollectiveOp>(last.front().op).number))
        stages.emplace_back();
      Stage& stage = stages.back();
      if (op) {
        stage.collective.push_back(node);
        stage.sums_parts |= goes_in_parts(node);
      } else {
        (goes_in_parts(node) ? stage.nodes : stage.whole).push_back(node);
      }
    }
    return stages;
  }

  // Stages that parts go through in turns, the later half of them one stage behind. Of those that are as far, and in each stage,
  // tokens come in their order.
  void add(std::span<const Stage> stages) {
    const size_t n = g_.parts.count, n_early = n > 2 ? ceil_div(n, size_t{2}) : n;
    for (size_t turn = 0; turn <= stages.size(); ++turn) {
      for (size_t i = 0; i < n_early; ++i) {
        if (turn < stages.size()) add(stages[turn], i);
        if (turn > 0 && n_early + i < n) add(stages[turn - 1], n_early + i);
      }
    }
    std::ranges::copy(stages.back().whole, std::back_inserter(result_));
    const Stage& last = stages.back();
    if (!last.sums_parts && !last.collective.empty()) add_collective(last.collective);
  }

  void add(const Stage& stage, size_t part) {
    for (const Node& node : stage.nodes) result_.push_back(part_of(node, part));
    if (!stage.sums_parts) return;
    std::vector<Node> nodes = stage.collective;
    for (Node& node : nodes) node = part_of(std::move(node), part);
    add_collective(std::move(nodes));
  }

  void add_collective(std::vector<Node> nodes) {
    for (Node& node : nodes) {
      std::get<CollectiveOp>(node.op).number = n_collectives_;
      result_.push_back(std::move(node));
    }
    ++n_collectives_;
  }

  Node part_of(Node node, size_t part) {
    for_each_input(node.op, [&](TensorId& id) { id = part_of(id, part); });
    if (node.output != kNoTensor) node.output = part_of(node.output, part);
    return node;
  }

  PartedGraph g_;
  size_t n_built_ = 0;                           // tensors
  std::vector<std::vector<TensorId>> part_ids_;  // [part][TensorId] what a part has for it
  std::vector<bool> is_whole_;                   // [TensorId] memory that is needed whole
  std::vector<Node> result_;
  int32_t n_collectives_ = 0;
};

bool streams_any(const Graph& graph, const Placement& placement) {
  return std::ranges::any_of(graph.nodes, [&](const Node& node) {
    const InputList inputs = inputs_of(node.op);
    return std::ranges::any_of(inputs, [&](TensorId id) {
      const Weight* w = graph.tensor(id).weight;
      return w && placement.streams(graph, node, *w);
    });
  });
}

}  // namespace

StepRows StepParts::rows_of(const Node& node) const {
  if (!on()) return StepRows::all;
  if (node.output != kNoTensor) return rows_of(node.output);
  const InputList inputs = inputs_of(node.op);
  const auto found = std::ranges::find_if(inputs, [&](TensorId id) { return rows_of(id) != StepRows::all; });
  return found == inputs.end() ? StepRows::all : rows_of(*found);
}

int64_t StepParts::n_before(StepRows which) const {
  return which == StepRows::all ? 0 : static_cast<int64_t>(part_index(which)) * n_each;
}

int64_t StepParts::n_tokens(StepRows which, int64_t n_step) const {
  return which == StepRows::all ? n_step : std::clamp<int64_t>(n_step - n_before(which), 0, n_each);
}

int64_t tokens_of_part(int64_t max_tokens, int64_t n_parts) {
  if (n_parts < 2) return 0;
  const auto n = static_cast<int64_t>(align_up(static_cast<size_t>(ceil_div(max_tokens, n_parts)), kRowUnit));
  return n < max_tokens ? n : 0;
}

bool goes_in_parts(const Placement& placement, int64_t max_tokens, int64_t n_tokens) {
  if (!placement.parallel) return false;
  const PrefillParts& wanted = placement.parallel->parts;
  const int64_t n_each = tokens_of_part(max_tokens, wanted.count);
  return n_each > 0 && n_tokens >= wanted.from && n_tokens > n_each;
}

std::optional<PartedGraph> parted_graph(const Graph& divided, const Placement& placement) {
  if (!placement.parallel || step_kind(divided.shape) != StepKind::prefill) return std::nullopt;
  const PrefillParts& wanted = placement.parallel->parts;
  const int64_t max_tokens = divided.shape.max_tokens, n_each = tokens_of_part(max_tokens, wanted.count);
  if (n_each == 0 || wanted.from > max_tokens) return std::nullopt;
  TANDEM_CHECK(wanted.count <= kMaxParts);
  if (streams_any(divided, placement)) return std::nullopt;
  const auto is_sum = [&](const Node& node) {
    const auto* op = std::get_if<CollectiveOp>(&node.op);
    return op && op->kind == CollectiveKind::all_reduce && node.output != kNoTensor &&
           divided.tensor(node.output).extent == Extent::tokens;
  };
  if (std::ranges::none_of(divided.nodes, is_sum)) return std::nullopt;
  return StepDivider(divided, n_each, static_cast<size_t>(ceil_div(max_tokens, n_each))).run();
}

}  // namespace tandem
