#include "exec/halves.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {
namespace {

constexpr int64_t kRowUnit = 16;  // a half begins at a multiple: its inputs are aligned as any tensor

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

class Halver {
 public:
  Halver(const Graph& divided, int64_t n_first) : g_{divided, {}} {
    Halves& halves = g_.halves;
    halves.n_first = n_first;
    n_built_ = graph().tensors.size();
    halves.rows.assign(n_built_, StepRows::all);
    halves.views.assign(n_built_, {});
    first_.assign(n_built_, kNoTensor);
    second_.assign(n_built_, kNoTensor);
    is_whole_.assign(n_built_, false);
  }

  std::optional<HalvedGraph> run() {
    find_whole();
    if (!are_alike()) return std::nullopt;
    const std::vector<Node> nodes = std::move(graph().nodes);
    for (size_t i = 0; i < nodes.size();) {
      const auto* collective = std::get_if<CollectiveOp>(&nodes[i].op);
      if (!collective) {
        add(nodes[i++]);
        continue;
      }
      const size_t begin = i;
      const auto belongs = [&](const Node& n) {
        const auto* op = std::get_if<CollectiveOp>(&n.op);
        return op && op->number == collective->number;
      };
      while (i < nodes.size() && belongs(nodes[i])) ++i;
      add_collective(
          {nodes.begin() + static_cast<ptrdiff_t>(begin), nodes.begin() + static_cast<ptrdiff_t>(i)});
    }
    flush();
    graph().nodes = std::move(result_);
    return std::move(g_);
  }

 private:
  Graph& graph() { return g_.graph; }
  const Tensor& tensor(TensorId id) const { return g_.graph.tensor(id); }
  TensorId root(TensorId id) const { return tensor(id).storage; }

  bool has_tokens_rows(TensorId id) const {
    const Tensor& t = tensor(id);
    return t.role == Role::input ? has_tokens(t.input)
                                 : t.role == Role::activation && t.extent == Extent::tokens;
  }
  // Whether a node computes each token for itself, or in their order.
  bool is_halved(const Node& node) const {
    if (node.output != kNoTensor) return has_tokens_rows(node.output);
    const InputList inputs = inputs_of(node.op);
    return std::ranges::any_of(inputs, [&](TensorId id) { return has_tokens_rows(id); });
  }

  // What is needed of all tokens at once.
  void find_whole() {
    const auto need = [&](TensorId id) {
      if (id != kNoTensor && tensor(id).role == Role::activation && has_tokens_rows(id))
        is_whole_[static_cast<size_t>(root(id))] = true;
    };
    for (const Node& node : graph().nodes) {
      if (is_halved(node)) continue;
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

  TensorId half_of(TensorId id, StepRows which) {
    const Tensor& t = tensor(id);
    if (t.role == Role::input && t.input == Input::states && which == StepRows::second)
      return later_states(id);
    if (!has_tokens_rows(id)) return id;
    std::vector<TensorId>& known = which == StepRows::first ? first_ : second_;
    if (known[static_cast<size_t>(id)] != kNoTensor) return known[static_cast<size_t>(id)];
    const bool is_whole = t.role == Role::input || is_whole_[static_cast<size_t>(root(id))];
    const TensorId made = which == StepRows::first && !is_whole ? id : add_half(id, which);
    known[static_cast<size_t>(id)] = made;
    if (made == id) {  // the first rows alone are left of it
      graph().tensors[static_cast<size_t>(id)].n_rows = g_.halves.n_first;
      g_.halves.rows[static_cast<size_t>(id)] = which;
    }
    if (is_whole) {
      g_.halves.views[static_cast<size_t>(made)] = {id, offset_of(id, which)};
    }
    if (root(id) != id) {
      const TensorId storage = half_of(root(id), which);
      graph().tensors[static_cast<size_t>(made)].storage = storage;
    }
    return made;
  }

  TensorId add_half(TensorId id, StepRows which) {
    Tensor t = tensor(id);
    const bool is_first = which == StepRows::first;
    t.name += is_first ? ".first" : ".second";
    const bool in_row = t.role == Role::input && t.extent != Extent::tokens;  // the tokens are its columns
    int64_t& n = in_row ? t.n_cols : t.n_rows;
    const int64_t n_all = in_row ? t.n_cols : graph().shape.max_tokens;
    n = is_first ? g_.halves.n_first : n_all - g_.halves.n_first;
    return push(std::move(t), which);
  }

  size_t offset_of(TensorId id, StepRows which) const {
    if (which == StepRows::first) return 0;
    const Tensor& t = tensor(id);
    const bool in_row = t.role == Role::input && t.extent != Extent::tokens;
    return static_cast<size_t>(g_.halves.n_first) * row_bytes(t.dtype, in_row ? 1 : t.n_cols);
  }

  TensorId later_states(TensorId id) {
    TensorId& states = g_.halves.states;
    if (states == kNoTensor) {
      Tensor t = tensor(id);
      t.name += ".second";
      states = push(std::move(t), StepRows::all);
    }
    return states;
  }

  TensorId push(Tensor t, StepRows which) {
    const auto id = static_cast<TensorId>(graph().tensors.size());
    t.storage = id;
    graph().tensors.push_back(std::move(t));
    g_.halves.rows.push_back(which);
    g_.halves.views.push_back({});
    return id;
  }

  // ---- Nodes ----

  Node half_of(Node node, StepRows which) {
    for_each_input(node.op, [&](TensorId& id) { id = half_of(id, which); });
    if (node.output != kNoTensor) node.output = half_of(node.output, which);
    return node;
  }

  void add(const Node& node) {
    if (!is_halved(node)) return whole_.push_back(node);
    first_nodes_.push_back(half_of(node, StepRows::first));
    second_nodes_.push_back(half_of(node, StepRows::second));
  }

  void add_collective(std::vector<Node> nodes) {
    const bool in_halves = std::ranges::any_of(nodes, [&](const Node& n) { return is_halved(n); });
    const auto issue = [&](StepRows which) {
      for (Node node : nodes) {
        if (which != StepRows::all) node = half_of(std::move(node), which);
        std::get<CollectiveOp>(node.op).number = n_collectives_;
        result_.push_back(std::move(node));
      }
      ++n_collectives_;
    };
    move_to_result(first_nodes_);
    if (in_halves) issue(StepRows::first);
    move_to_result(second_nodes_);
    if (in_halves) issue(StepRows::second);
    move_to_result(whole_);
    if (!in_halves) issue(StepRows::all);
  }

  void flush() {
    for (std::vector<Node>* list : {&first_nodes_, &second_nodes_, &whole_}) move_to_result(*list);
  }
  void move_to_result(std::vector<Node>& list) {
    std::ranges::move(list, std::back_inserter(result_));
    list.clear();
  }

  HalvedGraph g_;
  size_t n_built_ = 0;                                    // tensors
  std::vector<TensorId> first_, second_;                  // [TensorId] what halves have for it
  std::vector<bool> is_whole_;                            // [TensorId] memory that is needed whole
  std::vector<Node> first_nodes_, second_nodes_, whole_;  // since the last collective
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

StepRows Halves::rows_of(const Node& node) const {
  if (!on()) return StepRows::all;
  if (node.output != kNoTensor) return rows_of(node.output);
  const InputList inputs = inputs_of(node.op);
  const auto found = std::ranges::find_if(inputs, [&](TensorId id) { return rows_of(id) != StepRows::all; });
  return found == inputs.end() ? StepRows::all : rows_of(*found);
}

int64_t Halves::n_tokens(StepRows which, int64_t n_step) const {
  if (which == StepRows::all) return n_step;
  const int64_t first = std::min(n_step, n_first);
  return which == StepRows::first ? first : n_step - first;
}

int64_t first_half(int64_t max_tokens) {
  const auto n =
      static_cast<int64_t>(align_up(static_cast<size_t>(ceil_div(max_tokens, int64_t{2})), kRowUnit));
  return n < max_tokens ? n : 0;
}

bool goes_in_halves(const Placement& placement, int64_t max_tokens, int64_t n_tokens) {
  const int64_t from = placement.parallel ? placement.parallel->halves_from : 0;
  return from > 0 && n_tokens >= from && n_tokens > first_half(max_tokens);
}

std::optional<HalvedGraph> halved_graph(const Graph& divided, const Placement& placement) {
  const int64_t n_first = first_half(divided.shape.max_tokens);
  if (!placement.parallel || n_first == 0 || step_kind(divided.shape) != StepKind::prefill)
    return std::nullopt;
  const int64_t from = placement.parallel->halves_from;
  if (from == 0 || from > divided.shape.max_tokens) return std::nullopt;
  if (streams_any(divided, placement)) return std::nullopt;
  const auto is_sum = [&](const Node& node) {
    const auto* op = std::get_if<CollectiveOp>(&node.op);
    return op && op->kind == CollectiveKind::all_reduce && node.output != kNoTensor &&
           divided.tensor(node.output).extent == Extent::tokens;
  };
  if (std::ranges::none_of(divided.nodes, is_sum)) return std::nullopt;
  return Halver(divided, n_first).run();
}

}  // namespace tandem
