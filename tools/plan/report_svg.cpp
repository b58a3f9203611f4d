// The report of `tandem plan` as a picture: a bar for each memory, its parts in the order of the table.
#include <algorithm>

#include "base/error.h"
#include "tools/plan/report.h"
#include "tools/svg/charts.h"

namespace tandem::tools {
namespace {

constexpr const char* kParts[] = {"weights", "KV cache", "activations", "staging", "scratch", "driver"};

StackedBar bar(const std::string& name, const std::vector<size_t>& sizes, const SizeUnit& unit) {
  StackedBar bar;
  bar.name = name;
  size_t total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    total += sizes[i];
    bar.parts.push_back(static_cast<double>(sizes[i]) / unit.n_bytes);
    bar.tips.push_back(format("{}: {} {} {}", name, kParts[i], unit.text(sizes[i]), unit.name));
  }
  bar.total = unit.text(total);
  return bar;
}

}  // namespace

std::string plan_svg(const PlanReport& r) {
  const SizeUnit unit = size_unit(r);
  const SessionPlan& best = r.plans.front();
  StackedBars chart;
  chart.title = r.path.substr(r.path.rfind('/') + 1);
  chart.notes.push_back(r.model);
  chart.notes.push_back(format("{}, cache {}", context_text(r), cache_types_text(best.shape)));
  chart.notes.push_back(format("predicted: {:.0f} tokens per second for prompts, {:.1f} for answers",
                               best.fit.speed.prefill_tokens_per_s, best.fit.speed.decode_tokens_per_s));
  chart.axis = unit.name;
  bool is_used[std::size(kParts)] = {};
  for (const PlanReport::Tier& t : r.tiers) {
    const DeviceBytes& b = t.bytes;
    const std::vector<size_t> sizes{b.weights, b.kv, b.activations, b.staging, b.scratch, t.overhead};
    for (size_t i = 0; i < sizes.size(); ++i) is_used[i] |= sizes[i] > 0;
    StackedBar row = bar(t.name, sizes, unit);
    row.size = static_cast<double>(t.total_memory) / unit.n_bytes;
    if (t.budget != SIZE_MAX && t.budget < t.total_memory)
      row.limit = static_cast<double>(t.budget) / unit.n_bytes;
    chart.bars.push_back(std::move(row));
  }
  if (best.fit.bytes.disk_weights > 0)
    chart.bars.push_back(bar("disk", {best.fit.bytes.disk_weights, 0, 0, 0, 0, 0}, unit));
  // The legend may end early, but its colours are by position.
  size_t n_parts = 0;
  for (size_t i = 0; i < std::size(kParts); ++i) n_parts = is_used[i] ? i + 1 : n_parts;
  chart.legend.assign(kParts, kParts + n_parts);
  return draw_stacked_bars(chart);
}

}  // namespace tandem::tools
