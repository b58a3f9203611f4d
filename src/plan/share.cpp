#include "plan/share.h"

#include <cmath>
#include <map>

#include "exec/divide_rows.h"

namespace tandem {
namespace {

constexpr int kParts = 64;            // a share is so many of these
constexpr double kWorthwhile = 0.95;  // of the time without: less is not sure to be a gain

// Seconds of a step with all that can be divided on one side.
struct Sides {
  double bus = 0;     // bringing it to the devices
  double whole = 0;   // bringing what is streamed but cannot be divided
  double stream = 0;  // bringing all, when nothing is divided
  double host = 0;    // the CPU computing it, beside a busy bus
  double alone = 0;   // the CPU computing it with the memory for itself
  double rest = 0;    // what else is computed, on either side

  // share * bus + whole = (1 - share) * host + rest
  double even_share() const { return (host + rest - whole) / (bus + host); }
  double seconds(double share) const { return std::max(share * bus + whole, (1 - share) * host + rest); }
  double undivided_seconds() const { return std::min(stream, std::max(whole, alone + rest)); }
};

Sides sides_of(const FitRequest& r, const Placement& placement, const Graph& graph, const StepLoad& load) {
  Sides s;
  const double memory = r.rates[0].memory();
  for (const Node& node : graph.nodes) {
    const DeviceId device = placement.runs_on(graph, node);
    if (device.is_host()) continue;
    const size_t d = device.index();
    const NodeWork work = node_work(graph, node, load, r.kv);
    double streamed = 0;
    for (TensorId id : inputs_of(node.op)) {
      const Weight* w = graph.tensor(id).weight;
      if (w && placement.streams(graph, node, *w))
        streamed += static_cast<double>(r.devices[d]->weight_bytes(*w));
    }
    const bool on_disk =
        streamed > 0 && std::holds_alternative<OnDisk>(*placement.matrices_home(node));  // not divided
    const double bus = std::min(r.rates[d].fetch_bytes_per_s(placement.pins_fetched && !on_disk), memory);
    s.stream += streamed / bus;
    const auto* experts = std::get_if<MoeFfnOp>(&node.op);
    const bool on_host = experts && streamed > 0 && !on_disk && host_computes_experts(graph, *experts);
    const bool divisible =
        std::holds_alternative<LinearOp>(node.op) || std::holds_alternative<GluOp>(node.op);
    if (!divisible || on_disk || streamed == 0) {
      if (!on_host) s.whole += streamed / bus;
      s.rest += node_seconds(work, r.rates[on_host ? 0 : d]);
      continue;
    }
    s.bus += streamed / bus;
    DeviceRates beside = r.rates[0];
    s.alone += node_seconds(work, beside);
    beside.read_bytes_per_s = std::min(beside.read_bytes_per_s, std::max(memory - bus, 0.05 * memory));
    s.host += node_seconds(work, beside);
  }
  return s;
}

// The best share of one graph, as found from the share at which both are done at once by trying those around
// it; 1 when none is worth it.
double best_share(const FitRequest& r, const OffloadChoice& choice, const Graph& graph,
                  const StepLoad& load) {
  OffloadChoice whole = choice;
  whole.rows_prefill = whole.rows_decode = 1;
  const Placement undivided = fit_with(r, whole).placement;
  const Sides s = sides_of(r, undivided, graph, load);
  if (s.bus == 0) return 1;
  const int even = std::clamp(static_cast<int>(std::lround(s.even_share() * kParts)), 1, kParts - 1);
  if (s.seconds(static_cast<double>(even) / kParts) > kWorthwhile * s.undivided_seconds()) return 1;
  std::map<int, double> tried;
  const auto seconds = [&](int parts) {
    const auto [it, added] = tried.try_emplace(parts, INFINITY);
    if (!added) return it->second;
    OffloadChoice divided = choice;
    divided.rows_prefill = divided.rows_decode = static_cast<double>(parts) / kParts;
    Placement placement = placement_of(r, divided);
    placement.pins_fetched = undivided.pins_fetched;
    return it->second = step_seconds(r, placement, graph, load);
  };
  int best = even;
  for (const int stride : {4, 1}) {
    for (bool moved = true; moved;) {
      moved = false;
      for (const int next : {best - stride, best + stride}) {
        if (next < 1 || next >= kParts || !(seconds(next) < seconds(best))) continue;
        best = next;
        moved = true;
        break;
      }
    }
  }
  return seconds(best) < kWorthwhile * seconds(kParts) ? static_cast<double>(best) / kParts : 1;
}

}  // namespace

RowShares best_shares(const FitRequest& r, const OffloadChoice& choice) {
  RowShares shares;
  shares.prefill = best_share(r, choice, *r.graphs.back(), prefill_load(r));
  if (choice.streaming == Streaming::always) {
    shares.decode = best_share(r, choice, *r.graphs.front(), decode_load(r));
  }
  return shares;
}

}  // namespace tandem
