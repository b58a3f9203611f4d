#include "plan/overlap.h"

#include <algorithm>

#include "base/error.h"
#include "exec/placed_graph.h"

namespace tandem {
namespace {

constexpr double kSurelyFaster = 0.98;  // of the time without: less is not sure to be a gain
constexpr int64_t kSteps = 16;        // a micro-batch is tried in so many

bool fits_devices(const FitRequest& r, const Fit& fit) {
  for (size_t d = 0; d < r.devices.size(); ++d) {
    if (device_needs(fit, d) > device_budget(r, d)) return false;
  }
  return true;
}

}  // namespace

int64_t halves_from(const FitRequest& r, const Placement& placement) {
  if (!placement.parallel || r.rates.empty()) return 0;
  const Graph& built = *r.graphs.back();
  Placement tried = placement;
  tried.parallel->halves_from = 1;
  const PlacedGraph whole(built, placement);
  std::optional<HalvedGraph> divided = halved_graph(*whole, tried);
  if (!divided) return 0;
  const PlacedGraph halved(std::move(*divided));
  const auto schedule_of = [&](const PlacedGraph& graph) {
    return make_schedule(*graph, placement, r.devices.size(), Arenas::none, graph.halves());
  };
  const Schedule of_whole = schedule_of(whole), of_halves = schedule_of(halved);
  const auto pays = [&](int64_t n_tokens) {
    StepLoad load = prefill_load(r);
    load.n_tokens = n_tokens;
    const double s = step_cost(*whole, of_whole, r.devices, r.rates, r.kv, load).seconds;
    return step_cost(*halved, of_halves, r.devices, r.rates, r.kv, load).seconds < kSurelyFaster * s;
  };
  int64_t low = halved.halves().n_first,
          high = prefill_load(r).n_tokens;  // low does not pay: nothing is left to halve
  if (high <= low || !pays(high)) return 0;
  const int64_t unit = std::max<int64_t>(1, high / kSteps);
  while (high - low > unit) {
    const int64_t middle = low + (high - low) / 2;
    (pays(middle) ? high : low) = middle;
  }
  return high;
}

void choose_halves(const FitRequest& r, Fit& fit) {
  const int64_t from = halves_from(r, fit.placement);
  if (from == 0) return;
  Fit halved = fit;
  halved.placement.parallel->halves_from = from;
  halved.bytes = footprint(r.graphs, r.devices, halved.placement, r.kv);
  if (fits_devices(r, halved)) fit = std::move(halved);
}

std::string halves_text(const FitRequest& r, const Fit& fit) {
  if (!fit.placement.parallel || fit.placement.parallel->halves_from == 0) return "";
  const PlacedGraph placed(*r.graphs.back(), fit.placement);
  if (!halved_graph(*placed, fit.placement)) return "";
  return format(
      "prompts: steps of {} tokens or more in two halves: the sums of one over links while devices compute "
      "the other\n",
      fit.placement.parallel->halves_from);
}

}  // namespace tandem
