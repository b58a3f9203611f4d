#include "exec/tensor_parallel.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "exec/recurrent_cuts.h"
#include "exec/spread_graph.h"

namespace tandem {
namespace {

class LayerDivider {
 public:
  LayerDivider(Graph graph, const Placement& placement)
      : placement_(placement), cuts_(graph, placement), g_(std::move(graph), placement) {}

  Graph run() {
    const std::vector<Node> nodes = g_.graph().nodes;
    for (const Node& node : nodes) divide(node);
    bring_logits();
    bring_sent();
    return g_.finish();
  }

 private:
  // ---- Nodes ----

  void divide(const Node& node) {
    if (g_.graph().top != kNoTensor && node.output == g_.graph().top) {
      bring_logits();
      return g_.append(node);
    }
    for (TensorId id : inputs_of(node.op)) {
      if (g_.is(id, Spread::Kind::partial) && !takes_partial(node, id)) g_.all_reduce(id);
    }
    const DeviceId device = placement_.runs_on(g_.graph(), node);
    if (node.device || !g_.has(device)) return run_alone(node, device);
    std::visit([&](const auto& op) { divide(node, op); }, node.op);
  }

  // Column by column, or head by head, or on every device for itself.
  template <class AnyOp>
  void divide(const Node& node, const AnyOp&) {
    if (std::holds_alternative<AddOp>(node.op) && g_.is(std::get<AddOp>(node.op).a, Spread::Kind::partial))
      return add_partial(node, std::get<AddOp>(node.op));
    if (uses_cache(node.op)) return run_alone(node, placement_.runs_on(g_.graph(), node));
    if (const auto device = lone_device(node)) return run_alone(node, *device);
    const Cuts* cuts = nullptr;
    for (TensorId id : inputs_of(node.op)) {
      const Spread* spread = g_.find(id);
      if (!spread || spread->kind != Spread::Kind::divided) continue;
      if (cuts && *cuts != spread->cuts) return run_everywhere(node);
      cuts = &spread->cuts;
    }
    if (!cuts || !is_by_columns(node, *cuts)) return run_everywhere(node);
    run_by_columns(node, Cuts(*cuts));
  }

  void divide(const Node& node, const LinearOp& op) {
    if (const auto device = lone_device(node)) return run_alone(node, *device);
    const Spread* x = g_.find(op.x);
    const Weight& w = *g_.graph().tensor(op.weight).weight;
    if (x && x->kind == Spread::Kind::divided) {
      const Cuts cuts = x->cuts;
      if (are_whole_blocks(w, cuts)) return multiply_columns(node, op, cuts);
      return multiply_rows(node, cut_by_shares(*placement_.parallel, w.n_rows), Result::gathered);
    }
    if (const Cuts* cuts = cuts_.of_input(node.output)) return multiply_columns(node, op, Cuts(*cuts));
    if (const Cuts* cuts = cuts_.of_output(node.output))
      return multiply_rows(node, Cuts(*cuts), Result::divided);
    run_everywhere(node);
  }

  void divide(const Node& node, const GluOp&) {
    const Cuts* cuts = cuts_.of_output(node.output);
    if (const auto device = lone_device(node)) return run_alone(node, *device);
    if (!cuts) return run_everywhere(node);
    multiply_rows(node, Cuts(*cuts), Result::divided);
  }

  void divide(const Node& node, const HeadLinearOp& op) {
    if (const auto device = lone_device(node)) return run_alone(node, *device);
    const Spread* x = g_.find(op.x);
    const Weight& w = *g_.graph().tensor(op.weight).weight;
    if (!x || x->kind != Spread::Kind::divided || !x->cuts.ranges.empty() || w.n_mats % x->cuts.n_groups != 0)
      return run_everywhere(node);
    const Cuts cuts = x->cuts;
    Spread y = g_.divided(cuts);
    g_.for_each_with(cuts, [&](size_t i) {
      HeadLinearOp part = op;
      part.x = g_.part_of(op.x, i, cuts);
      part.weight = g_.mats(op.weight, i, cuts);
      y.at[i] = g_.emit(i, node, part, g_.columns_of(node.output, i, cuts));
    });
    g_.set(node.output, std::move(y));
  }

  void divide(const Node& node, const KvWriteOp& op) {
    const DividedKv* home = divided_cache(node);
    if (!home) return run_alone(node, placement_.runs_on(g_.graph(), node));
    const Cuts cuts{home->first.back(), home->first};
    g_.for_each_with(cuts, [&](size_t i) {
      KvWriteOp part = op;
      for (TensorId* id : {&part.k, &part.v}) {
        if (*id != kNoTensor) *id = home->is_copied ? g_.whole_at(*id, i) : g_.part_of(*id, i, cuts);
      }
      g_.emit(i, node, part, 0);
    });
  }

  void divide(const Node& node, const AttentionOp& op) {
    const DividedKv* home = divided_cache(node);
    if (!home) return run_alone(node, placement_.runs_on(g_.graph(), node));
    const Cuts cuts{home->first.back(), home->first};
    Spread y = g_.divided(cuts);
    g_.for_each_with(cuts, [&](size_t i) {
      AttentionOp part = op;
      part.q = g_.part_of(op.q, i, cuts);
      part.n_head = cuts.n_of(i, op.n_head);
      if (!home->is_copied) part.n_head_kv = cuts.n_of(i, op.n_head_kv);
      part.sinks = g_.rows(op.sinks, i, cuts);
      y.at[i] = g_.emit(i, node, part, g_.columns_of(node.output, i, cuts));
    });
    g_.set(node.output, std::move(y));
  }

  void divide(const Node& node, const LatentAttentionOp& op) {
    const DividedKv* home = divided_cache(node);
    if (!home) return run_alone(node, placement_.runs_on(g_.graph(), node));
    const Cuts cuts{home->first.back(), home->first};
    Spread y = g_.divided(cuts);
    g_.for_each_with(cuts, [&](size_t i) {
      LatentAttentionOp part = op;
      part.q = g_.part_of(op.q, i, cuts);
      part.n_head = cuts.n_of(i, op.n_head);
      part.k_up = g_.mats(op.k_up, i, cuts);
      part.v_up = g_.mats(op.v_up, i, cuts);
      y.at[i] = g_.emit(i, node, part, g_.columns_of(node.output, i, cuts));
    });
    g_.set(node.output, std::move(y));
  }

  // All devices choose the same experts; each has ids of its own for those that it has.
  void divide(const Node& node, const MoeRouteOp& op) {
    const Cuts* cuts = cuts_.of_experts(node.output);
    if (const auto device = lone_device(node); device || !cuts)
      return device ? run_alone(node, *device) : run_everywhere(node);
    Spread route = g_.everywhere();
    g_.for_each_device([&](size_t i) {
      MoeRouteOp here = op;
      here.logits = g_.whole_at(op.logits, i);
      here.first = cuts->first[i];
      here.n_here = cuts->n(i);
      route.at[i] = g_.emit_whole(i, node, here);
    });
    g_.set(node.output, std::move(route));
  }

  void divide(const Node& node, const MoeFfnOp& op) {
    const Cuts* found = cuts_.of_experts(op.route);
    TANDEM_CHECK(found != nullptr);
    const Cuts cuts = *found;
    std::vector<TensorId> residuals = residuals_of(op.residual, cuts), parts = residuals;
    g_.for_each_with(cuts, [&](size_t i) {
      MoeFfnOp part = op;
      part.n_expert = cuts.n(i);
      part.x = g_.whole_at(op.x, i);
      part.route = g_.whole_at(op.route, i);
      part.residual = residuals[i];
      for (TensorId* id :
           {&part.gate, &part.up, &part.down, &part.gate_bias, &part.up_bias, &part.down_bias, &part.gate_factors}) {
        *id = g_.mats(*id, i, cuts);
      }
      parts[i] = g_.emit(i, node, part, g_.graph().tensor(node.output).n_cols);
    });
    g_.set_partial(node, std::move(parts), cuts);
  }

  // ---- Recurrent layers ----

  // Their cuts; none if the layer's state is not divided.
  std::optional<RecurrentCuts> recurrent_cuts(const Node& node) const {
    const auto* home = std::get_if<DividedState>(&placement_.layers[static_cast<size_t>(node.layer)].kv);
    if (!home) return std::nullopt;
    return recurrent_layer(g_.graph(), node.layer).cuts(home->first);
  }

  // part(i) returns the op of device i.
  void divide_op(const Node& node, const Cuts& cuts, const auto& part) {
    Spread y = g_.divided(cuts);
    g_.for_each_with(
        cuts, [&](size_t i) { y.at[i] = g_.emit(i, node, part(i), g_.columns_of(node.output, i, cuts)); });
    g_.set(node.output, std::move(y));
  }

  void divide(const Node& node, const CausalConvOp& op) {
    const auto cuts = recurrent_cuts(node);
    if (!cuts) return run_alone(node, placement_.runs_on(g_.graph(), node));
    divide_op(node, cuts->channels, [&](size_t i) {
      CausalConvOp part = op;
      part.x = g_.part_of(op.x, i, cuts->channels);
      part.weight = g_.rows(op.weight, i, cuts->channels);
      part.bias = g_.rows(op.bias, i, cuts->channels);
      return part;
    });
  }

  void divide(const Node& node, const DeltaRuleOp& op) {
    const auto cuts = recurrent_cuts(node);
    if (!cuts) return run_alone(node, placement_.runs_on(g_.graph(), node));
    divide_op(node, cuts->heads, [&](size_t i) {
      DeltaRuleOp part = op;
      if (op.n_head_k > 1) part.n_head_k = cuts->heads.n(i);
      part.n_head_v = cuts->heads.n_of(i, op.n_head_v);
      part.qkv = g_.part_of(op.qkv, i, cuts->channels);
      part.beta = g_.part_of(op.beta, i, cuts->heads);
      part.alpha = g_.part_of(op.alpha, i, cuts->heads);
      for (TensorId* id : {&part.decay, &part.dt_bias}) *id = g_.rows(*id, i, cuts->heads);
      return part;
    });
  }

  void divide(const Node& node, const SsmScanOp& op) {
    const auto cuts = recurrent_cuts(node);
    if (!cuts) return run_alone(node, placement_.runs_on(g_.graph(), node));
    divide_op(node, cuts->heads, [&](size_t i) {
      SsmScanOp part = op;
      if (op.n_group > 1) part.n_group = cuts->heads.n(i);
      part.n_head = cuts->heads.n_of(i, op.n_head);
      part.xbc = g_.part_of(op.xbc, i, cuts->channels);
      part.dt = g_.part_of(op.dt, i, cuts->heads);
      for (TensorId* id : {&part.decay, &part.dt_bias, &part.skip}) *id = g_.rows(*id, i, cuts->heads);
      return part;
    });
  }

  // Columns side by side of which each device has the same groups.
  void divide(const Node& node, const JoinOp& op) {
    const Spread *a = g_.find(op.a), *b = g_.find(op.b);
    const auto is_divided = [](const Spread* s) { return s && s->kind == Spread::Kind::divided; };
    if (op.residual != kNoTensor || !is_divided(a) || !is_divided(b) || a->cuts.first != b->cuts.first ||
        a->cuts.n_groups != b->cuts.n_groups)
      return divide<JoinOp>(node, op);
    const Cuts of_a = a->cuts, of_b = b->cuts;
    std::vector<Cuts::Range> ranges = of_a.ranges_of(g_.graph().tensor(op.a).n_cols);
    std::ranges::copy(of_b.ranges_of(g_.graph().tensor(op.b).n_cols), std::back_inserter(ranges));
    divide_op(node, of_a.with(ranges), [&](size_t i) {
      return JoinOp{g_.part_of(op.a, i, of_a), g_.part_of(op.b, i, of_b), kNoTensor};
    });
  }

  // ---- Ways to run a node ----

  void run_everywhere(const Node& node) {
    Spread y = g_.everywhere();
    g_.for_each_device([&](size_t i) {
      Node here = node;
      for_each_input(here.op, [&](TensorId& id) { id = g_.whole_at(id, i); });
      y.at[i] = g_.emit_whole(i, node, here.op);
    });
    if (node.output != kNoTensor) g_.set(node.output, std::move(y));
  }

  // On one device. What is added to the residual stream all devices copy from there.
  void run_alone(const Node& node, DeviceId device) {
    const bool joins = !g_.has(device) || joins_stream(node);
    Node alone = node;
    alone.device = device;
    for_each_input(alone.op, [&](TensorId& id) { id = g_.whole_on(id, device); });
    g_.emit_alone(node, alone);
    if (node.output == kNoTensor) return;
    Spread y{joins ? Spread::Kind::everywhere : Spread::Kind::alone, {}, device, {}};
    y.at.assign(g_.n_devices(), node.output);
    g_.set(node.output, std::move(y));
  }

  bool joins_stream(const Node& node) const {
    const std::vector<TensorId>& received = g_.graph().received;
    const auto is_stream = [&](TensorId id) {
      if (std::ranges::find(received, id) != received.end()) return true;
      const Spread* spread = g_.find(id);
      return spread && spread->kind == Spread::Kind::everywhere;
    };
    if (const auto* op = std::get_if<LinearOp>(&node.op)) return is_stream(op->residual);
    if (const auto* op = std::get_if<MoeFfnOp>(&node.op)) return is_stream(op->residual);
    const auto* op = std::get_if<AddOp>(&node.op);
    return op && (is_stream(op->a) || is_stream(op->b));
  }

  void run_by_columns(const Node& node, const Cuts& cuts) {
    Spread y = g_.divided(cuts);
    g_.for_each_with(cuts, [&](size_t i) {
      Node part = node;
      const auto* add = std::get_if<AddOp>(&node.op);
      for_each_input(part.op, [&](TensorId& id) {
        const bool is_row_gate = add && id == add->gate;
        id = g_.find(id) && !is_row_gate ? g_.part_of(id, i, cuts) : g_.whole_at(id, i);
      });
      if (auto* rope = std::get_if<RopeOp>(&part.op)) rope->n_head = cuts.n_of(i, rope->n_head);
      if (auto* norm = std::get_if<NormOp>(&part.op)) {
        const Weight& w = *g_.graph().tensor(norm->weight).weight;
        if (w.n_rows > 1) norm->weight = g_.rows(norm->weight, i, cuts);
      }
      y.at[i] = g_.emit(i, node, part.op, g_.columns_of(node.output, i, cuts));
    });
    g_.set(node.output, std::move(y));
  }

  // Whether the op computes the columns of each group from those of the same group.
  bool is_by_columns(const Node& node, const Cuts& cuts) const {
    const auto divides = [&](TensorId x, int64_t width) {
      const std::vector<Cuts::Range> ranges = cuts.ranges_of(g_.graph().tensor(x).n_cols);
      return width > 0 && std::ranges::all_of(ranges, [&](const Cuts::Range& range) {
               return (range.is_copied ? range.width : range.width / cuts.n_groups) % width == 0;
             });
    };
    if (const auto* op = std::get_if<NormOp>(&node.op)) {
      const Weight& w = *g_.graph().tensor(op->weight).weight;
      return divides(op->x, op->group) && (w.n_rows == 1 || cuts.divides(w.n_rows));
    }
    if (const auto* op = std::get_if<RopeOp>(&node.op)) return divides(op->x, op->head_dim);
    if (const auto* op = std::get_if<HadamardOp>(&node.op)) return divides(op->x, op->width);
    if (const auto* op = std::get_if<ColumnsOp>(&node.op)) return divides(op->x, op->period);
    return std::holds_alternative<AddOp>(node.op) || std::holds_alternative<GateOp>(node.op) ||
           std::holds_alternative<ScaleOp>(node.op) || std::holds_alternative<SoftcapOp>(node.op) ||
           std::holds_alternative<GatherRowsOp>(node.op);
  }

  bool are_whole_blocks(const Weight& w, const Cuts& cuts) const {
    const int64_t block = dtype_info(w.dtype).block_elements;
    bool are_whole = cuts.divides(w.n_cols);
    for (size_t i = 0; are_whole && i < g_.n_devices(); ++i) {
      for (const ColumnRun& run : cuts.runs_of(i, w.n_cols))
        are_whole = are_whole && run.first % block == 0 && run.n % block == 0;
    }
    return are_whole;
  }

  // Each device multiplies its columns of x; the first one adds bias and residual.
  void multiply_columns(const Node& node, const LinearOp& op, const Cuts& cuts) {
    const Weight& w = *g_.graph().tensor(op.weight).weight;
    std::vector<TensorId> residuals = residuals_of(op.residual, cuts), parts = residuals;
    bool first = true;
    g_.for_each_with(cuts, [&](size_t i) {
      LinearOp part = op;
      part.x = g_.part_of(op.x, i, cuts);
      part.weight = g_.columns(op.weight, i, cuts);
      part.bias = first ? op.bias : kNoTensor;
      part.residual = residuals[i];
      first = false;
      parts[i] = g_.emit(i, node, part, w.n_rows);
    });
    g_.set_partial(node, std::move(parts), cuts);
  }

  // What each device adds to its part of a sum: its part of a residual that is a sum itself, or the whole residual on the
  // first device that has a part.
  std::vector<TensorId> residuals_of(TensorId residual, const Cuts& cuts) {
    std::vector<TensorId> list(g_.n_devices(), kNoTensor);
    if (residual == kNoTensor) return list;
    if (g_.is(residual, Spread::Kind::partial)) return g_.at(residual).at;
    for (size_t i = 0; i < g_.n_devices(); ++i) {
      if (!cuts.has(i)) continue;
      list[i] = g_.whole_at(residual, i);
      break;
    }
    return list;
  }

  void add_partial(const Node& node, const AddOp& op) {
    const std::vector<TensorId> a = g_.at(op.a).at, b = g_.at(op.b).at;
    Spread sum{Spread::Kind::partial, std::vector<TensorId>(g_.n_devices(), kNoTensor), {}, {}};
    g_.for_each_device([&](size_t i) {
      if (a[i] == kNoTensor) return;
      AddOp part = op;
      part.a = a[i];
      part.b = b[i];
      if (op.gate != kNoTensor) part.gate = g_.whole_at(op.gate, i);
      sum.at[i] = g_.emit(i, node, part, g_.graph().tensor(node.output).n_cols);
    });
    g_.set(node.output, std::move(sum));
  }

  // Whether the node adds to a sum before the sum goes over the devices.
  bool takes_partial(const Node& node, TensorId id) const {
    if (node.device || !g_.has(placement_.runs_on(g_.graph(), node))) return false;
    if (const auto* op = std::get_if<MoeFfnOp>(&node.op)) return id == op->residual;
    if (const auto* op = std::get_if<LinearOp>(&node.op)) {
      if (id != op->residual) return false;
      const Spread* x = g_.find(op->x);
      const bool is_divided = x && x->kind == Spread::Kind::divided;
      return is_divided ? are_whole_blocks(*g_.graph().tensor(op->weight).weight, x->cuts)
                        : cuts_.of_input(node.output) != nullptr;
    }
    const auto* op = std::get_if<AddOp>(&node.op);
    if (!op || id == op->gate || !g_.is(op->a, Spread::Kind::partial) || !g_.is(op->b, Spread::Kind::partial))
      return false;
    const std::vector<TensorId>&a = g_.at(op->a).at, &b = g_.at(op->b).at;
    for (size_t i = 0; i < a.size(); ++i) {
      if ((a[i] == kNoTensor) != (b[i] == kNoTensor)) return false;
    }
    return op->gate == kNoTensor || g_.is(op->gate, Spread::Kind::everywhere);
  }

  // Each device has its rows of the node's matrices and biases, and all of x.
  enum class Result : uint8_t { divided, gathered };
  void multiply_rows(const Node& node, const Cuts& cuts, Result result) {
    Spread y = g_.divided(cuts);
    const auto* linear = std::get_if<LinearOp>(&node.op);
    g_.for_each_with(cuts, [&](size_t i) {
      Node part = node;
      for_each_input(part.op, [&](TensorId& id) {
        const bool is_residual = linear && id == linear->residual;
        id = g_.graph().tensor(id).weight ? g_.rows(id, i, cuts)
             : is_residual                ? g_.part_of(id, i, cuts)
                                          : g_.whole_at(id, i);
      });
      y.at[i] = g_.emit(i, node, part.op, g_.columns_of(node.output, i, cuts));
    });
    g_.set(node.output, std::move(y));
    if (result == Result::gathered) g_.gather(node.output);
  }

  void bring_logits() {
    for (TensorId id : {g_.graph().logits, g_.graph().hidden}) {
      if (id != kNoTensor && g_.is(id, Spread::Kind::partial)) g_.all_reduce(id);
    }
    const Spread* logits = g_.find(g_.graph().logits);
    if (logits && logits->kind == Spread::Kind::divided) g_.gather(g_.graph().logits, SpreadGraph::To::first);
  }

  // What the next stage gets: the first device has all of it.
  void bring_sent() {
    for (const TensorId id : g_.graph().sent) {
      if (g_.is(id, Spread::Kind::partial)) g_.all_reduce(id);
      if (g_.is(id, Spread::Kind::divided)) g_.gather(id, SpreadGraph::To::first);
    }
  }

  std::optional<DeviceId> lone_device(const Node& node) const {
    for (TensorId id : inputs_of(node.op)) {
      const Spread* spread = g_.find(id);
      if (spread && spread->kind == Spread::Kind::alone) return spread->maker;
    }
    return std::nullopt;
  }

  const DividedKv* divided_cache(const Node& node) const {
    return std::get_if<DividedKv>(&placement_.layers[static_cast<size_t>(node.layer)].kv);
  }

  const Placement& placement_;
  const TensorCuts cuts_;
  SpreadGraph g_;
};

}  // namespace

Graph divide_over_devices(Graph graph, const Placement& placement) {
  return LayerDivider(std::move(graph), placement).run();
}

}  // namespace tandem
