#include "plan/overlap.h"

#include <algorithm>

#include "base/error.h"
#include "exec/placed_graph.h"

namespace tandem {
namespace {

constexpr double kSurelyFaster = 0.98;  // of the time of whole steps: less is not sure to be a gain
constexpr double kMoreParts = 0.99;     // of the time with fewer parts
constexpr int64_t kCounts[] = {2, 3, 4, 6, kMaxParts};
constexpr int64_t kSteps = 16;  // a micro-batch is tried in so many

// A graph under a placement and what executes it.
struct Timed {
  PlacedGraph graph;
  Schedule schedule;

  Timed(const FitRequest& r, const Placement& placement, PlacedGraph placed)
      : graph(std::move(placed)),
        schedule(make_schedule(*graph, placement, r.devices.size(), Arenas::none, graph.parts())) {}

  double seconds(const FitRequest& r, int64_t n_tokens) const {
    StepLoad load = prefill_load(r);
    load.n_tokens = n_tokens;
    return step_cost(*graph, schedule, r.devices, r.rates, r.kv, load).seconds;
  }
};

// Two parts are tried with any number of tokens: what is faster then by as much as it must be, is so with idle rows too.
bool is_too_small(const FitRequest& r, const Placement& placement, int64_t count) {
  if (count <= 2) return false;
  const int64_t n_each = tokens_of_part(r.graphs.back()->shape.max_tokens, count);
  return std::ranges::any_of(placement.parallel->devices,
                             [&](DeviceId d) { return n_each < r.devices[d.index()]->full_product_rows(); });
}

bool fits_devices(const FitRequest& r, const Fit& fit) {
  for (size_t d = 0; d < r.devices.size(); ++d) {
    if (device_needs(fit, d) > device_budget(r, d)) return false;
  }
  return true;
}

}  // namespace

PrefillParts best_parts(const FitRequest& r, const Placement& placement) {
  if (!placement.parallel || r.rates.empty()) return {};
  const Graph& built = *r.graphs.back();
  const int64_t n_full = prefill_load(r).n_tokens;
  const PlacedGraph placed(built, placement);
  const auto in_parts = [&](int64_t count) -> std::optional<PartedGraph> {
    Placement tried = placement;
    tried.parallel->parts = {count, 1};
    if (!goes_in_parts(tried, built.shape.max_tokens, n_full)) return std::nullopt;
    return parted_graph(*placed, tried);
  };
  if (!in_parts(kCounts[0])) return {};
  const Timed whole(r, placement, placed);
  std::optional<Timed> best;
  PrefillParts parts;
  int n_vain = 0;  // counts in a row that are no gain
  double limit_s = kSurelyFaster * whole.seconds(r, n_full);
  for (const int64_t count : kCounts) {
    std::optional<PartedGraph> parted = in_parts(count);
    if (!parted || is_too_small(r, placement, count)) break;
    Timed timed(r, placement, PlacedGraph(std::move(*parted)));
    const double s = timed.seconds(r, n_full);
    if (s >= limit_s) {
      if (!best || ++n_vain > 1) break;  // with four the host adds later (StepParts::sums_ahead)
      continue;
    }
    n_vain = 0;
    limit_s = kMoreParts * s;
    parts.count = count;
    best = std::move(timed);
  }
  if (!best) return {};
  const auto pays = [&](int64_t n_tokens) {
    return best->seconds(r, n_tokens) < kSurelyFaster * whole.seconds(r, n_tokens);
  };
  int64_t low = best->graph.parts().n_each, high = n_full;  // low does not pay: it is one part
  const int64_t unit = std::max<int64_t>(1, high / kSteps);
  while (high - low > unit) {
    const int64_t middle = low + (high - low) / 2;
    (pays(middle) ? high : low) = middle;
  }
  parts.from = high;
  return parts;
}

void choose_parts(const FitRequest& r, Fit& fit) {
  const PrefillParts parts = best_parts(r, fit.placement);
  if (parts.count == 0) return;
  Fit parted = fit;
  parted.placement.parallel->parts = parts;
  parted.bytes = footprint(r.graphs, r.devices, parted.placement, r.kv);
  if (fits_devices(r, parted)) fit = std::move(parted);
}

std::string parts_text(const FitRequest& r, const Fit& fit) {
  if (!fit.placement.parallel || fit.placement.parallel->parts.count == 0) return "";
  const PlacedGraph placed(*r.graphs.back(), fit.placement);
  const std::optional<PartedGraph> parted = parted_graph(*placed, fit.placement);
  if (!parted) return "";
  return format(
      "prompts: steps of {} tokens or more in {} parts: the sums of some over links while devices compute "
      "another\n",
      fit.placement.parallel->parts.from, parted->parts.count);
}

}  // namespace tandem
