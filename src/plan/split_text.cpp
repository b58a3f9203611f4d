// The ways to divide layers over several GPUs, side by side: what crosses links, and the times predicted.
#include <algorithm>

#include "base/error.h"
#include "plan/choices.h"
#include "plan/overlap.h"

namespace tandem {
namespace {

// "GPU0 16384 bytes a token, GPU1 8192", of those that carry any.
std::string links_text(const FitRequest& r, const BusBytes& bus) {
  std::string text;
  for (size_t d = 1; d < bus.links.size(); ++d) {
    if (bus.links[d] == 0) continue;
    text += format("{}{} {}{}", text.empty() ? "" : ", ", r.devices[d]->info().name, bus.links[d],
                   text.empty() ? " bytes a token" : "");
  }
  return text;
}

std::string way_text(const FitRequest& r, const Fit& fit) {
  for (size_t d = 1; d < r.devices.size(); ++d) {
    if (device_needs(fit, d) > device_budget(r, d)) return "does not fit";
  }
  const double decode_s = step_seconds(r, fit.placement, *r.graphs.front(), decode_load(r));
  const double prefill_s = step_seconds(r, fit.placement, *r.graphs.back(), prefill_load(r));
  return format("{:.1f} t/s decoding, {:.1f} t/s for prompts (links: {})",
                static_cast<double>(decode_load(r).n_tokens) / decode_s,
                static_cast<double>(prefill_load(r).n_tokens) / prefill_s,
                links_text(r, fit.bytes.per_token));
}

// The same placement, but for the way and what does not go together with it; none if the options forbid it.
std::optional<Fit> in_way(const FitRequest& r, const Fit& fit, SplitMode way) {
  if (way == fit.choice.split) return fit;
  OffloadChoice choice = fit.choice;
  choice.split = way;
  if (way == SplitMode::tensor) {
    if (!may_divide_layers(r)) return std::nullopt;
    const bool on_host = std::holds_alternative<CacheOnHost>(choice.cache);
    choice = {choice.n_gpu_layers, CacheBesideLayers{}, choice.n_cpu_moe, choice.streaming};
    choice.split = way;
    if (on_host) choice.cache = CacheOnHost{};
  }
  Fit other = fit_with(r, choice);
  choose_parts(r, other);
  return other;
}

}  // namespace

std::string split_text(const FitRequest& r, const Fit& fit) {
  if (r.devices.size() < 3 || r.rates.empty() || fit.choice.n_gpu_layers <= 0) return "";
  std::vector<SplitMode> ways{SplitMode::layer, SplitMode::tensor, SplitMode::none};
  std::stable_partition(ways.begin(), ways.end(), [&](SplitMode way) { return way == fit.choice.split; });
  std::string text;
  for (const SplitMode way : ways) {
    const std::optional<Fit> other = in_way(r, fit, way);
    text += format("{}{}: {}", text.empty() ? "" : "; ", split_name(way),
                   other ? way_text(r, *other) : "not with the other options");
  }
  return text;
}

}  // namespace tandem
