#include "plan/fit.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <set>

#include "base/at_once.h"
#include "base/error.h"
#include "base/setting.h"
#include "exec/placed_graph.h"
#include "exec/tensor_cuts.h"
#include "kv/hot_cache.h"
#include "plan/choices.h"
#include "plan/fit_search.h"
#include "plan/kv_formats.h"
#include "plan/kv_memory.h"
#include "plan/overlap.h"
#include "plan/share.h"

namespace tandem {
namespace {

// Moves what its device cannot run to the host: nodes of weights by their weights, attention with the layer's
// cache.
std::vector<std::string> fall_back(const FitRequest& r, Placement& placement) {
  std::map<std::string, int> reasons;
  for (const Graph* graph : r.graphs) {
    const PlacedGraph rewritten(*graph, placement);
    const Graph& placed = *rewritten;
    for (const Node& node : placed.nodes) {
      const DeviceModel& device = *r.devices[placement.runs_on(placed, node).index()];
      const std::string why = device.why_unsupported(placed, node);
      if (why.empty()) continue;
      ++reasons[std::string(op_name(node.op)) + " on " + device.info().name + ": " + why];
      if (uses_cache(node.op) || std::holds_alternative<MergeOp>(node.op)) {
        placement.layers[node.layer].kv = ResidentKv{DeviceId::host()};
        continue;
      }
      for (TensorId id : inputs_of(node.op)) {
        const Weight* weight = placed.tensor(id).weight;
        if (weight && placement.parallel) weight = placement.slices->whole(weight);
        if (weight) placement.overrides.insert_or_assign(weight, DeviceId::host());
      }
    }
  }
  std::vector<std::string> list;
  for (const auto& [reason, n] : reasons) list.push_back(std::to_string(n) + " x " + reason);
  return list;
}

Prediction predict(const FitRequest& r, const Placement& placement) {
  Prediction p;
  p.decode_tokens_per_s = static_cast<double>(decode_load(r).n_tokens) /
                          step_seconds(r, placement, *r.graphs.front(), decode_load(r));
  p.prefill_tokens_per_s = static_cast<double>(prefill_load(r).n_tokens) /
                           step_seconds(r, placement, *r.graphs.back(), prefill_load(r));
  return p;
}

bool fits_gpus(const FitRequest& r, const Fit& fit) {
  return first_too_small(r, fit, 1) == r.devices.size();
}
// Layers on GPUs by gpu_weights_percent or cpu_offload_gib: as many as leave the host its part.
int64_t layers_by_share(const FitRequest& r) {
  size_t total = 0;
  for (const Weight& w : r.weights) total += w.n_bytes();
  return std::max<int64_t>(
      0, most_layers(max_gpu_layers(r), [&](int64_t n) {
        const Placement placement = place(r.architecture, r.weights, r.devices, r.options, n);
        const Partition partition = partition_graph(*r.graphs[0], placement, r.devices.size(), Arenas::none);
        size_t resident = 0, host = 0;
        for (size_t d = 1; d < r.devices.size(); ++d) {
          for (TensorId id : partition.weights[d]) resident += r.graphs[0]->tensor(id).weight->n_bytes();
        }
        for (const StreamGroup& group : partition.groups) {
          for (TensorId id : group.weights) host += r.graphs[0]->tensor(id).weight->n_bytes();
        }
        if (r.options.gpu_weights_percent) {
          return static_cast<double>(resident) <=
                 *r.options.gpu_weights_percent / 100 * static_cast<double>(total);
        }
        return static_cast<double>(host) >= *r.options.cpu_offload_gib * (1 << 30);
      }));
}

// Layers on disk that leave the host `n_bytes` less to hold, if all are as large as each other.
int64_t guess_disk_layers(const FitRequest& r, const Placement& placement, size_t n_bytes) {
  size_t sum = 0;
  std::set<int> layers;
  for (const Weight& w : r.weights) {
    if (!w.in_file || w.layer < 0 || w.n_rows * w.n_mats < 2 || placement.on_disk(w)) continue;
    const LayerPlacement& layer = placement.layers[w.layer];
    if (!holder(is_of_experts(w) ? layer.experts : layer.weights).is_host()) continue;
    sum += w.n_bytes();
    layers.insert(w.layer);
  }
  if (sum == 0) return 1;
  const size_t each = sum / layers.size();
  return static_cast<int64_t>((n_bytes + each - 1) / each + placement.n_disk_slots);
}

// What the host has left goes to the chosen experts.
Fit with_more_experts(const FitRequest& r, Fit fit, size_t limit) {
  const size_t needed = device_needs(fit, 0);
  if (!fit.choice.chosen_experts || needed >= limit) return fit;
  OffloadChoice choice = fit.choice;
  choice.n_expert_bytes = fit.bytes.expert_slots + limit - needed;
  return fit_with(r, choice);
}

// Of the experts that a step finds on the host, the share that reaches the GPU over the bus while the CPU computes with the
// others; none if the CPU alone is as fast, because the bus takes the memory's bandwidth from it.
double fetched_share(const FitRequest& r) {
  if (r.rates.empty()) return 0;
  double bus = INFINITY;
  for (size_t d = 1; d < r.rates.size(); ++d) bus = std::min(bus, r.rates[d].bus_bytes_per_s);
  const double memory = r.rates[0].memory(), alone = r.rates[0].read_bytes_per_s;
  bus = std::min(bus, memory);
  const double beside = std::min(alone, memory - bus);
  return bus + beside > alone * 1.02 ? bus / (bus + beside) : 0;
}

// Experts of a layer that half of a step's time brings to the GPU, 1 at most.
double experts_kept_beside(const FitRequest& r, const Placement& placement,
                           std::span<const size_t> expert_bytes) {
  const double seconds = step_seconds(r, placement, *r.graphs.front(), decode_load(r));
  double kept = 1;
  for (size_t d = 1; d < expert_bytes.size(); ++d) {
    if (expert_bytes[d] == 0) continue;
    const double bus_s =
        static_cast<double>(expert_bytes[d]) / std::min(r.rates[d].bus_bytes_per_s, r.rates[0].memory());
    kept = std::min(kept, seconds / 2 / bus_s);
  }
  return kept;
}

// The same placement with experts on the GPUs that also hold the other weights of their layers, the host's in memory or on
// disk: as many as the options say, or fewer if no more fit. None if there are no such layers, no room, or they are not wanted.
std::optional<Fit> with_cached_experts(const FitRequest& r, const Fit& fit) {
  const std::optional<size_t> asked = r.options.expert_cache;
  if (fit.placement.parallel) return std::nullopt;
  if (asked == 0u || (!asked && r.rates.empty()) || r.devices.size() < 2) return std::nullopt;
  const std::vector<size_t> expert_bytes = cached_expert_bytes(fit.placement, r.weights, r.devices);
  int64_t n = r.architecture.hparams().n_expert - 1;
  bool any = false;
  for (size_t d = 1; d < r.devices.size(); ++d) {
    if (expert_bytes[d] == 0) continue;
    any = true;
    const size_t needed = device_needs(fit, d), limit = device_budget(r, d);
    const size_t room = std::min(asked.value_or(SIZE_MAX), limit > needed ? limit - needed : 0);
    n = std::min(n, static_cast<int64_t>(room / expert_bytes[d]));
    if (asked && *asked < expert_bytes[d]) {
      throw_error(ErrorCode::usage, "{}: one expert of each layer takes {} on {}",
                  setting_text(Setting::expert_cache, *asked), size_text(expert_bytes[d]),
                  r.devices[d]->info().name);
    }
  }
  if (!any) return std::nullopt;
  OffloadChoice choice = fit.choice;
  choice.fetched_experts = fetched_share(r);
  choice.n_expert_bytes = 0;                          // what the host has left then
  for (; n > 0; n -= std::max<int64_t>(1, n / 16)) {  // the scratch may grow a little
    choice.n_cached_experts = n;
    Fit cached = with_more_experts(r, fit_with(r, choice), ram_before_disk(r));
    if (!fits(r, cached)) continue;
    if (r.rates.empty()) return cached;
    cached.choice.kept_experts = experts_kept_beside(r, cached.placement, expert_bytes);
    return fit_with(r, cached.choice);
  }
  return std::nullopt;
}

// One way to fill in the options, with as many layers on GPUs as fit; nothing when none does.
void add_fit(const FitRequest& r, OffloadChoice choice, std::vector<Fit>& list) {
  const bool share = r.options.gpu_weights_percent || r.options.cpu_offload_gib;
  if (r.options.n_gpu_layers || share) {
    choice.n_gpu_layers =
        share ? layers_by_share(r) : std::clamp<int64_t>(*r.options.n_gpu_layers, 0, max_gpu_layers(r));
  } else {
    choice.n_gpu_layers = most_layers(max_gpu_layers(r), [&](int64_t n) {
      choice.n_gpu_layers = n;
      return fits_gpus(r, fit_with(r, choice));  // the host's part only shrinks
    });
  }
  if (choice.n_gpu_layers < 0) return;
  Fit candidate = with_disk(r, choice);
  if (!r.options.n_gpu_layers && !share && !fits_gpus(r, candidate)) {
    // Layers on disk are streamed whole: their slots are larger than those of divided rows.
    const int64_t n = most_layers(choice.n_gpu_layers, [&](int64_t layers) {
      choice.n_gpu_layers = layers;
      return fits_gpus(r, with_disk(r, choice));
    });
    if (n < 0) return;
    choice.n_gpu_layers = n;
    candidate = with_disk(r, choice);
  }
  if (!fits(r, candidate) || !is_worth_trying(r, candidate)) return;
  std::optional<Fit> cached = with_cached_experts(r, candidate);
  if (!cached || !r.options.expert_cache) list.push_back(std::move(candidate));
  if (cached) list.push_back(std::move(*cached));
}

// The same with the CPU computing rows of what is streamed, where that is open and faster.
void add_divided(const FitRequest& r, const Fit& streamed, std::vector<Fit>& list) {
  const OffloadOptions& f = r.options;
  if (r.rates.empty() || r.devices.size() < 2 || f.gpu_rows || streams(f)) return;
  if (streamed.choice.streaming == Streaming::none || streamed.placement.parallel) return;
  OffloadChoice choice = streamed.choice;
  const RowShares shares = best_shares(r, choice);
  choice.rows_prefill = shares.prefill;
  choice.rows_decode = shares.decode;
  choice.n_disk_layers = 0;  // as many as then must be
  choice.chosen_experts = false;
  choice.n_expert_bytes = 0;
  if (choice.divides_rows()) add_fit(r, choice, list);
}

// Whether a fit of an earlier choice leaves nothing for this one: with all layers and the whole cache on GPUs, or a larger part
// of it than the choice would have there; or with all layers divided over GPUs, as the choice divides them.
bool leaves_nothing(const FitRequest& r, const Fit& f, const OffloadChoice& choice) {
  const bool splits = !r.options.kv_split && std::holds_alternative<SplitCache>(choice.cache);
  if (splits && f.choice.split == choice.split && f.choice.streaming == choice.streaming &&
      f.choice.n_cpu_moe == choice.n_cpu_moe && keeps_on_gpus(f.choice.cache) &&
      f.choice.n_gpu_layers == max_gpu_layers(r))
    return true;
  return r.options.split_mode == SplitMode::automatic && choice.split == SplitMode::tensor &&
         f.placement.parallel && f.choice.is_all_on_gpus(r.architecture.hparams().n_layer);
}

// The fits of all choices. Several are tried at once; the result is that of one after the other.
std::vector<Fit> fits_of_choices(const FitRequest& r, std::span<const OffloadChoice> choices) {
  const auto is_needless = [&](const std::vector<Fit>& earlier, size_t i) {
    return std::ranges::any_of(earlier, [&](const Fit& f) { return leaves_nothing(r, f, choices[i]); });
  };
  struct Tried {
    std::vector<Fit> fits;
    std::exception_ptr error;
    std::atomic<bool> done = false;
  };
  std::vector<Tried> tried(choices.size());
  for_each_at_once(choices.size(), [&](size_t i) {
    for (size_t j = 0; j < i; ++j) {  // what is left out because of a choice that is left out itself, is needless too
      if (tried[j].done.load(std::memory_order_acquire) && is_needless(tried[j].fits, i)) return;
    }
    try {
      add_fit(r, choices[i], tried[i].fits);
    } catch (...) {
      tried[i].error = std::current_exception();
    }
    tried[i].done.store(true, std::memory_order_release);
  });
  std::vector<Fit> list;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (is_needless(list, i)) continue;
    if (tried[i].error) std::rethrow_exception(tried[i].error);
    std::ranges::move(tried[i].fits, std::back_inserter(list));
  }
  return list;
}

}  // namespace

// The first device from `from` on whose budget a fit is over; none: the number of devices.
size_t first_too_small(const FitRequest& r, const Fit& fit, size_t from) {
  for (size_t d = from; d < r.devices.size(); ++d) {
    const size_t total = fit.bytes.devices[d].total();
    if (total > 0 && device_needs(fit, d) > device_budget(r, d)) return d;
    if (d == 0 && total > host_memory(r.devices, r.options.budgets)) return d;
  }
  return r.devices.size();
}

bool fits(const FitRequest& r, const Fit& fit) {
  return first_too_small(r, fit) == r.devices.size();
}

int64_t max_gpu_layers(const FitRequest& r) {
  if (r.devices.size() < 2) return 0;
  return r.architecture.hparams().n_layer + 1;
}

// With as few layers on disk as the host's memory asks for; where no number is enough, as with the choice. The experts
// go there first, all of them, because steps read few of them.
Fit with_disk(const FitRequest& r, OffloadChoice choice) {
  Fit without = fit_with(r, choice);
  const size_t limit = ram_before_disk(r);
  if (r.options.disk == Toggle::off || !r.may_leave_on_disk || device_needs(without, 0) <= limit ||
      without.placement.parallel)
    return without;
  choice.chosen_experts = true;
  Fit chosen = fit_with(r, choice);
  if (chosen.placement.reads_chosen()) {
    if (device_needs(chosen, 0) <= limit) return with_more_experts(r, std::move(chosen), limit);
    without = std::move(chosen);
  } else {
    choice.chosen_experts = false;
  }
  const size_t needed = device_needs(without, 0);
  const int64_t n_layer = r.architecture.hparams().n_layer;
  const auto with = [&](int64_t n) {
    choice.n_disk_layers = n;
    return fit_with(r, choice);
  };
  // More layers on disk need less memory. From the guess on, in steps that grow, then by halves.
  int64_t low = 0, high = n_layer + 1;  // low is too few, high enough or not known to be
  int64_t next = std::clamp<int64_t>(guess_disk_layers(r, without.placement, needed - limit), 1, n_layer);
  for (int64_t step = 1; high - low > 1; step *= 2) {
    if (low > 0 && high <= n_layer) next = low + (high - low) / 2;
    next = std::clamp(next, low + 1, high - 1);
    const bool enough = device_needs(with(next), 0) <= limit;
    (enough ? high : low) = next;
    next += enough ? -step : step;
  }
  if (high <= n_layer) return with_more_experts(r, with(high), limit);
  Fit all = with(n_layer);
  const bool helps = !r.options.budgets.max_ram && device_needs(all, 0) < needed;
  return helps ? all : without;
}

size_t device_needs(const Fit& fit, size_t d) {
  return fit.bytes.devices[d].total() + (d == 0 ? fit.bytes.mapped_weights : 0);
}

size_t device_budget(const FitRequest& r, size_t d) {
  const Budgets& b = r.options.budgets;
  if (d == 0) return b.max_ram.value_or(SIZE_MAX);
  if (r.devices[d]->info().host_memory) return SIZE_MAX;
  const auto less = [](size_t a, size_t n) { return a > n ? a - n : 0; };
  const MemoryInfo memory = r.devices.memory(d);
  if (b.max_vram) return std::min(memory.free_bytes, less(*b.max_vram, b.vram_overhead));
  if (b.vram_utilization) {
    const auto allowed = static_cast<size_t>(*b.vram_utilization * static_cast<double>(memory.total_bytes));
    return less(allowed, memory.total_bytes - memory.free_bytes);
  }
  return r.options.n_gpu_layers ? memory.free_bytes : less(memory.free_bytes, b.vram_overhead);
}

size_t host_memory(const DeviceModels& devices, const Budgets& budgets) {
  return budgets.max_ram.value_or(devices.memory(0).total_bytes);
}

size_t ram_before_disk(const FitRequest& r) {
  const size_t n_free = r.devices.memory(0).free_bytes;
  return r.options.budgets.max_ram.value_or(n_free - n_free / 16);
}

StepLoad decode_load(const FitRequest& r) {
  const int64_t n = r.graphs.front()->shape.max_sequences;
  StepLoad load{n, n, r.kv.n_ctx / 2 / n, n};
  load.expert_use = r.options.expert_use.get();
  return load;
}

StepLoad prefill_load(const FitRequest& r) {
  const int64_t n = std::min(r.graphs.back()->shape.max_tokens, r.kv.n_ctx);
  const int64_t n_prompt = std::clamp(kUsualPrompt, n, std::max(n, r.kv.n_ctx));
  StepLoad load{n, 1,
                (n_prompt - n) / 2};  // the step in the middle of the prompt is as all are on the average
  load.expert_use = r.options.expert_use.get();
  return load;
}

double step_seconds(const FitRequest& r, const Placement& placement, const Graph& built, StepLoad load) {
  if (const SplitKv* split = placement.split()) {
    load.hot_from = hot_from_of(r.kv, split->n_blocks, load.n_past + load.n_tokens);
  }
  PlacedGraph placed(built, placement, load.hot_from > 0 ? CacheReach::both_caches : CacheReach::hot_cache);
  if (goes_in_parts(placement, built.shape.max_tokens, load.n_tokens)) {
    std::optional<PartedGraph> parted = parted_graph(*placed, placement);
    if (parted) placed = PlacedGraph(std::move(*parted));
  }
  const Schedule schedule = make_schedule(*placed, placement, r.devices.size(), Arenas::none, placed.parts());
  return step_cost(*placed, schedule, r.devices, r.rates, r.kv, load).seconds;
}

Placement placement_of(const FitRequest& r, const OffloadChoice& choice, std::vector<std::string>* reasons) {
  Placement placement = place(r.architecture, r.weights, r.devices, r.options, choice);
  if (const auto* split = std::get_if<SplitCache>(&choice.cache)) {
    split_caches(placement, split->n_keep, r.kv, r.graphs.back()->shape.max_tokens);
  }
  if (placement.parallel) divide_caches(placement, *r.graphs.front());
  std::vector<std::string> list = fall_back(r, placement);
  spill_caches(placement, r.kv);
  placement.pins_fetched = r.options.pin != Toggle::off;
  if (reasons) *reasons = std::move(list);
  return placement;
}

// A search comes by the same choice several times, in several threads.
class KnownFits {
 public:
  template <class Make>
  Fit find_or(const OffloadChoice& choice, const Make& make) {
    {
      const std::scoped_lock lock(mutex_);
      if (const auto known = fits_.find(choice); known != fits_.end()) return known->second;
    }
    Fit made = make();
    const std::scoped_lock lock(mutex_);
    fits_.emplace(choice, made);
    return made;
  }

 private:
  std::mutex mutex_;
  std::map<OffloadChoice, Fit> fits_;
};

Fit fit_with(const FitRequest& r, const OffloadChoice& choice) {
  if (r.known) {
    FitRequest anew = r;
    anew.known = nullptr;
    return r.known->find_or(choice, [&] { return fit_with(anew, choice); });
  }
  Fit result;
  result.choice = choice;
  if (r.kv.stays_on_host()) result.choice.cache = CacheOnHost{};
  result.placement = placement_of(r, result.choice, &result.fallbacks);
  result.bytes = footprint(r.graphs, r.devices, result.placement, r.kv);
  // Weights that were read or locked are not part of the free memory any more.
  const bool in_memory = !r.may_leave_on_disk && !r.options.budgets.max_ram;
  const size_t needs = in_memory ? result.bytes.devices[0].total() : device_needs(result, 0);
  result.placement.pins_fetched &= r.options.pin == Toggle::on || needs <= ram_before_disk(r);
  return result;
}

std::vector<Fit> all_fits(const FitRequest& request) {
  KnownFits known;
  FitRequest r = request;
  r.devices = r.devices.frozen();
  r.known = &known;
  check_offload(r.options);
  if (r.devices.size() > 1) check_host_kv(r.kv, r.options);
  if (r.options.kv_split && r.graphs.front()->shape.max_sequences > 1) {
    throw_error(ErrorCode::usage, "{} divides the cache of one sequence, and there are to be {} ({})",
                setting_text(Setting::kv_split), r.graphs.front()->shape.max_sequences,
                setting_text(Setting::n_sequences));
  }
  std::vector<Fit> list;
  if (r.devices.size() < 2) {
    Fit host = with_disk(r, {});
    if (fits(r, host)) list.push_back(std::move(host));
  } else {
    check_budget_holds_a_layer(r);
    list = fits_of_choices(r, r.choices.empty() ? open_choices(r)
                                                : std::vector(r.choices.begin(), r.choices.end()));
    std::vector<std::vector<Fit>> divided(list.size());
    for_each_at_once(list.size(), [&](size_t i) { add_divided(r, list[i], divided[i]); });
    for (std::vector<Fit>& fits : divided) std::ranges::move(fits, std::back_inserter(list));
  }
  if (r.rates.empty()) return list;
  for_each_at_once(list.size(), [&](size_t i) {
    choose_parts(r, list[i]);
    list[i].speed = predict(r, list[i].placement);
  });
  std::stable_sort(list.begin(), list.end(),
                   [](const Fit& a, const Fit& b) { return compared_seconds(a) < compared_seconds(b); });
  // Choices with the same time and memory are the same placement: if everything fits, nothing is streamed.
  list.erase(std::unique(list.begin(), list.end(),
                         [&](const Fit& a, const Fit& b) {
                           return compared_seconds(a) == compared_seconds(b) &&
                                  device_needs(a, 0) == device_needs(b, 0) &&
                                  device_needs(a, r.devices.size() - 1) ==
                                      device_needs(b, r.devices.size() - 1);
                         }),
             list.end());
  return list;
}

Fit fit(const FitRequest& r) {
  std::vector<Fit> list = all_fits(r);
  if (!list.empty()) return std::move(list.front());
  check_host_budget(r);
  const int64_t n =
      r.options.n_gpu_layers ? std::clamp<int64_t>(*r.options.n_gpu_layers, 0, max_gpu_layers(r)) : 0;
  throw_too_small(r, from_options(r.options, n));
}

}  // namespace tandem
