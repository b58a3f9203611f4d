#include "exec/recurrent_cuts.h"

#include "base/error.h"

namespace tandem {
namespace {

// What is divided into groups, and what of it is one head of the user's count.
struct Groups {
  int64_t n_groups = 0, n_heads = 0;
};

Groups groups_of(const RecurrentLayer& l) {
  if (l.rule) return {l.copies_keys() ? l.rule->n_head_v : l.rule->n_head_k, l.rule->n_head_v};
  if (l.scan) return {l.copies_keys() ? l.scan->n_head : l.scan->n_group, l.scan->n_head};
  return {};
}

}  // namespace

bool RecurrentLayer::copies_keys() const {
  return rule ? rule->n_head_k == 1 : scan && scan->n_group == 1;
}

RecurrentCuts RecurrentLayer::cuts(const std::vector<int64_t>& first) const {
  const Cuts plain{first.back(), first};
  const bool copies = copies_keys();
  if (scan) {
    const int64_t n_bc = scan->n_group * scan->n_state;
    return {plain.with({{scan->n_inner(), false}, {n_bc, copies}, {n_bc, copies}}), plain};
  }
  if (!rule) return {plain, plain};
  const int64_t n_k = rule->n_head_k * rule->head_dim_k, n_v = rule->n_head_v * rule->head_dim_v;
  // Heads of values in the order of the heads of keys, or round after round of these.
  const int64_t n_rounds = rule->order == HeadOrder::tiled && !copies ? rule->n_head_v / rule->n_head_k : 1;
  std::vector<Cuts::Range> channels{{n_k, copies}, {n_k, copies}}, heads;
  for (int64_t i = 0; i < n_rounds; ++i) {
    channels.push_back({n_v / n_rounds, false});
    heads.push_back({1, false});
  }
  return {plain.with(channels), plain.with(heads)};
}

RecurrentLayer recurrent_layer(const Graph& graph, int layer) {
  RecurrentLayer found;
  for (const Node& node : graph.nodes) {
    if (node.layer != layer) continue;
    const auto* conv = std::get_if<CausalConvOp>(&node.op);
    const auto* rule = std::get_if<DeltaRuleOp>(&node.op);
    const auto* scan = std::get_if<SsmScanOp>(&node.op);
    if (conv) found.conv = conv;
    if (rule) found.rule = rule;
    if (scan) found.scan = scan;
    if (conv || rule || scan) found.output = node.output;
  }
  return found;
}

DividedState divide_state(const Graph& graph, int layer, const TensorParallel& parallel) {
  const RecurrentLayer l = recurrent_layer(graph, layer);
  TANDEM_CHECK(l.conv != nullptr);
  const Weight& conv = *graph.tensor(l.conv->weight).weight;
  const int64_t n_channels = conv.n_rows, n_before = conv.n_cols - 1;  // tokens
  Groups groups = groups_of(l);
  int64_t unit = 1;
  const Weight* out = multiplied_by(graph, l.output);
  const int64_t block = out ? dtype_info(out->dtype).block_elements : 1;
  if (groups.n_groups == 0) {
    groups = {n_channels % block == 0 ? n_channels / block : n_channels, n_channels};
  } else if (out && !(l.scan && l.copies_keys())) {  // there, a norm needs all heads anyway
    unit = whole_block_groups(*out, l.cuts({0, groups.n_groups}).heads);
  }
  const auto n_devices = static_cast<int64_t>(parallel.devices.size());
  const bool fits = groups.n_groups % unit == 0 && groups.n_groups / unit >= n_devices;
  DividedState home{parallel.devices, cut_by_shares(parallel, groups.n_groups, fits ? unit : 1).first};
  home.n_heads = groups.n_heads;
  home.are_channels = !l.rule && !l.scan;
  const RecurrentCuts cuts = l.cuts(home.first);
  const int64_t n_recurrence = l.rule   ? l.rule->n_head_v * l.rule->head_dim_k * l.rule->head_dim_v
                               : l.scan ? l.scan->n_inner() * l.scan->n_state
                                        : 0;
  for (size_t i = 0; i < parallel.devices.size(); ++i) {
    DividedState::Part part;
    for (int64_t token = 0; token < n_before; ++token) {
      for (const ColumnRun& run : cuts.channels.runs_of(i, n_channels))
        add_run(part.conv, {token * n_channels + run.first, run.n});
    }
    if (n_recurrence > 0) part.recurrence = cuts.heads.runs_of(i, n_recurrence);
    home.parts.push_back(std::move(part));
  }
  return home;
}

}  // namespace tandem
