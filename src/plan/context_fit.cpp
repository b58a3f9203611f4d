#include "plan/context_fit.h"

#include <algorithm>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "base/setting.h"
#include "plan/kv_formats.h"

namespace tandem {
namespace {

constexpr int64_t kLeastContext = 4096;  // that weights are moved for
constexpr int64_t kFloorContext = 512;   // that keeps weights where they are; and of each sequence:
constexpr int64_t kFloorOfSequence = 256;
constexpr int64_t kSmallestContext = 256;    // that is worth running with
constexpr int64_t kAutomaticMultiple = 256;  // whole blocks of the cache, and a number that is easy to read

// The largest multiple of `step` in [step, most], or `most` itself, that satisfies a predicate which no number
// above one that fails satisfies; 0 if there is none.
template <class Ok>
int64_t largest(int64_t most, int64_t step, const Ok& ok) {
  if (most < 1) return 0;
  if (ok(most)) return most;
  int64_t low = 0, high = ceil_div(most, step);
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (ok(middle * step) ? low : high) = middle;
  }
  return low * step;
}

ContextOptions with_context(ContextOptions shape, int64_t n_ctx) {
  shape.n_ctx = n_ctx;
  shape.n_ctx_given = true;
  return shape;
}

// Whether a host is held to its free memory, mapped weights included, or only to all the memory it has, because
// the system can drop mapped weights and read them again.
enum class HostLimit { free_memory, all_memory };

bool fits_host(const FitRequest& r, const Fit& fit, HostLimit limit) {
  const DeviceBytes& bytes = fit.bytes.devices[0];
  if (bytes.total() > host_memory(r.devices, r.options.budgets)) return false;
  if (limit == HostLimit::all_memory) return device_needs(fit, 0) <= device_budget(r, 0);
  // Weights that were read or locked are not part of the free memory any more.
  const bool in_memory = !r.may_leave_on_disk && !r.options.budgets.max_ram;
  return (in_memory ? bytes.total() : device_needs(fit, 0)) <= ram_before_disk(r);
}

// Whether what is set for the cache in host memory is enough.
bool cache_has_room(const PlanRequest& r, const ContextOptions& shape) {
  try {
    (void)session_graphs(r.architecture, shape);
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::out_of_memory) throw;
    return false;
  }
}

// The first device whose memory does not hold the session; none: the number of devices.
size_t first_too_small(const PlanRequest& r, const ContextOptions& shape, const OffloadChoice& choice,
                       HostLimit limit) {
  if (!cache_has_room(r, shape)) return 0;
  const SessionGraphs graphs = session_graphs(r.architecture, shape);
  const std::vector<const Graph*> both = graphs.both();
  const FitRequest request = fit_request(r, graphs, both);
  const Fit fit = fit_with(request, choice);
  if (!fits_host(request, fit, limit)) return 0;
  for (size_t d = 1; d < r.devices.size(); ++d) {
    if (device_needs(fit, d) > device_budget(request, d)) return d;
  }
  return r.devices.size();
}

bool holds(const PlanRequest& r, const ContextOptions& shape, const OffloadChoice& choice,
           HostLimit limit = HostLimit::free_memory) {
  return first_too_small(r, shape, choice, limit) == r.devices.size();
}

// "7.50 GiB of free memory", "24.00 GiB on GPU0".
std::string memory_text(const PlanRequest& r, size_t d) {
  const Budgets& b = r.options.budgets;
  const MemoryInfo memory = r.devices.memory(d);
  if (d == 0) {
    return b.max_ram ? size_text(*b.max_ram) + " of memory"
                     : size_text(memory.free_bytes) + " of free memory";
  }
  size_t n_bytes = b.max_vram.value_or(memory.free_bytes);
  if (b.vram_utilization)
    n_bytes = static_cast<size_t>(*b.vram_utilization * static_cast<double>(memory.total_bytes));
  return size_text(n_bytes) + " on " + r.devices[d]->info().name;
}

// The smallest micro-batch that the planner may choose.
int64_t least_ubatch(const PlanRequest& r) {
  const std::vector<ContextOptions> shapes = open_shapes(r);
  const auto less = [](const ContextOptions& a, const ContextOptions& b) { return a.n_ubatch < b.n_ubatch; };
  return std::min_element(shapes.begin(), shapes.end(), less)->n_ubatch;
}

enum class WeightsMay { stay_in_memory, be_on_disk };

// `found`: the choice that fitted last, which is tried first.
bool fits_somehow(PlanRequest r, int64_t n_ctx, WeightsMay weights, size_t& found) {
  r.shape = checked_shape(r.architecture, with_context(r.shape, n_ctx));
  // A plan with a smaller micro-batch that keeps weights in memory may be slower than one that does not.
  if (weights == WeightsMay::be_on_disk) r.shape.n_ubatch = least_ubatch(r);
  if (!cache_has_room(r, r.shape)) return false;
  const SessionGraphs graphs = session_graphs(r.architecture, r.shape);
  const std::vector<const Graph*> both = graphs.both();
  FitRequest request = fit_request(r, graphs, both);
  const std::vector<OffloadChoice> choices = open_choices(request);
  request.rates = {};  // whether, not how fast
  try {
    for (size_t i = 0; i < choices.size(); ++i) {
      const size_t at = (found + i) % choices.size();
      request.choices = std::span(&choices[at], 1);
      const std::vector<Fit> fits = all_fits(request);
      const auto allowed = [&](const Fit& f) {
        return weights == WeightsMay::be_on_disk || !f.choice.reads_disk();
      };
      if (std::none_of(fits.begin(), fits.end(), allowed)) continue;
      found = at;
      return true;
    }
    return false;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::out_of_memory) throw;
    return false;
  }
}

// A smaller context would also make a micro-batch smaller that the user set.
int64_t with_ubatch(const PlanRequest& r, int64_t n_ctx) {
  return r.shape.n_ubatch_given ? std::max(n_ctx, r.shape.n_ubatch) : n_ctx;
}

// The largest context, at most `most`, for which anything fits; 0: none that is worth running with.
int64_t largest_below(const PlanRequest& r, int64_t most, WeightsMay weights) {
  const int64_t smallest = std::min(with_ubatch(r, kSmallestContext), most);
  size_t found = 0;
  if (most < 1 || !fits_somehow(r, smallest, weights, found)) return 0;
  return largest(most, kAutomaticMultiple,
                 [&](int64_t n_ctx) { return fits_somehow(r, n_ctx, weights, found); });
}

// The context to advise instead of one that does not fit. n_ctx 0: none.
struct Advised {
  int64_t n_ctx = 0;
  WeightsMay weights = WeightsMay::stay_in_memory;
};
Advised advised_context(const PlanRequest& r) {
  const int64_t asked = checked_shape(r.architecture, r.shape).n_ctx;
  const int64_t most = std::min(asked, trained_context(r));
  for (const WeightsMay weights : {WeightsMay::stay_in_memory, WeightsMay::be_on_disk}) {
    if (const int64_t n = largest_below(r, most, weights)) return {n, weights};
  }
  return {};
}

// "the largest context that fits is n_ctx=4096".
std::string advice_text(const PlanRequest& r, const Advised& advised) {
  const std::string n_ctx = setting_text(Setting::n_ctx, advised.n_ctx);
  const int64_t n_trained = r.architecture.hparams().n_ctx_train;
  if (advised.n_ctx == n_trained) return n_ctx + ", which the model was trained with, fits";
  const bool in_memory = advised.weights == WeightsMay::stay_in_memory;
  const bool is_long = checked_shape(r.architecture, r.shape).n_ctx > trained_context(r);
  return format("the largest context that fits{} is {}{}", in_memory ? " with all weights in memory" : "",
                n_ctx, is_long ? format(" (the model was trained with {} tokens)", n_trained) : "");
}

// Everything where it is fastest, if the options leave it open: on GPUs, or on a host without them.
std::optional<OffloadChoice> best_choice(const PlanRequest& r) {
  if (r.devices.size() < 2) return OffloadChoice{};
  const OffloadChoice all = from_options(r.options, r.architecture.hparams().n_layer + 1);
  const bool open = !r.options.n_gpu_layers && !r.options.gpu_weights_percent && !r.options.cpu_offload_gib;
  if (open && all.streaming == Streaming::none && all.is_all_on_gpus(r.architecture.hparams().n_layer))
    return all;
  return std::nullopt;
}

// Whether a plan leaves the weights where another one has them, or in faster memory.
bool keeps_weights(const OffloadChoice& choice, const OffloadChoice& other) {
  return choice.n_gpu_layers >= other.n_gpu_layers && choice.n_cpu_moe <= other.n_cpu_moe &&
         choice.n_cached_experts >= other.n_cached_experts && choice.n_disk_layers <= other.n_disk_layers &&
         choice.chosen_experts <= other.chosen_experts;
}

// Weights are off the GPUs that the user did not keep off.
bool off_gpu(const PlanRequest& r, const OffloadChoice& choice) {
  const OffloadOptions& o = r.options;
  if (r.devices.size() < 2 || o.n_gpu_layers || o.gpu_weights_percent || o.cpu_offload_gib) return false;
  return choice.n_gpu_layers <= r.architecture.hparams().n_layer ||
         choice.n_cpu_moe > o.n_cpu_moe.value_or(0);
}

// Refuses, before anything is planned, a cache that is larger than all memory together.
void check_cache_fits_machine(const PlanRequest& r) {
  const ContextOptions shape = checked_shape(r.architecture, r.shape);
  KvConfig kv;
  kv.n_ctx = shape.n_ctx;
  for (int i = 0; i < r.architecture.hparams().n_layer; ++i) kv.layers.push_back(r.architecture.kv_shape(i));
  set_kv_formats(kv, shape);
  size_t cache = 0, memory = 0;
  for (size_t i = 0; i < kv.layers.size(); ++i)
    cache += kv_layer_bytes(kv, i);  // without indices, which only the host's have
  for (size_t d = 0; d < r.devices.size(); ++d)
    memory += d == 0 ? host_memory(r.devices, r.options.budgets) : r.devices.memory(d).total_bytes;
  if (cache <= memory || (r.options.may_quantize_kv && !shape.kv_dtype_given)) return;
  const Advised advised = advised_context(r);
  if (advised.n_ctx < 1) return;  // not even the weights fit, which is refused with its own numbers
  throw_error(ErrorCode::out_of_memory, "{}: the KV cache alone would take {}, and all memory is {}; {}",
              setting_text(Setting::n_ctx, shape.n_ctx), size_text(cache), size_text(memory),
              advice_text(r, advised));
}

std::vector<SessionPlan> plan_at(PlanRequest r, int64_t n_ctx) {
  r.shape = with_context(r.shape, n_ctx);
  return plan_fixed_context(r);
}

// The plans of the smallest context for which weights are moved; of a smaller one if memory asks for that.
std::vector<SessionPlan> plan_least(const PlanRequest& r, int64_t least) {
  try {
    return plan_at(r, least);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::out_of_memory) throw;
    const int64_t n = largest_below(r, least - 1, WeightsMay::be_on_disk);
    if (n == 0) throw;
    return plan_at(r, n);
  }
}

// The plans of the largest context below `least` that avoids moving weights which that of `least` would move;
// empty if none does.
std::vector<SessionPlan> plan_without_moves(const PlanRequest& r, int64_t least, const OffloadChoice& moved) {
  const int64_t floor = std::max(kFloorContext, r.shape.n_sequences * kFloorOfSequence);
  const int64_t smallest = std::min(with_ubatch(r, floor), least);
  const auto plans_of = [&](int64_t n_ctx) -> std::vector<SessionPlan> {
    try {
      return plan_at(r, n_ctx);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::out_of_memory) throw;
      return {};
    }
  };
  std::vector<SessionPlan> best = plans_of(smallest);
  if (best.empty()) return {};
  const OffloadChoice kept = best.front().fit.choice;
  const bool avoids_disk = moved.reads_disk() && !kept.reads_disk();
  const bool avoids_host = off_gpu(r, moved) && !off_gpu(r, kept);
  if (!avoids_disk && !avoids_host) return {};
  largest(least, kAutomaticMultiple, [&](int64_t n_ctx) {
    if (n_ctx <= smallest) return true;
    std::vector<SessionPlan> plans = plans_of(n_ctx);
    if (plans.empty()) return false;
    const OffloadChoice& choice = plans.front().fit.choice;
    if ((avoids_disk && choice.reads_disk()) || (avoids_host && off_gpu(r, choice))) return false;
    best = std::move(plans);
    return true;
  });
  return best;
}

}  // namespace

int64_t largest_context(const PlanRequest& r, const OffloadChoice& choice, int64_t most) {
  const ContextOptions shape = r.shape;
  for (const HostLimit limit : {HostLimit::free_memory, HostLimit::all_memory}) {
    const int64_t n = largest(most, KvConfig{}.block_size, [&](int64_t n_ctx) {
      return holds(r, with_context(shape, n_ctx), choice, limit);
    });
    if (n > 0) return n;
  }
  return 0;
}

int64_t largest_possible_context(const PlanRequest& r) {
  return advised_context(r).n_ctx;
}

std::vector<SessionPlan> plan_automatic_context(const PlanRequest& r) {
  const int64_t most = checked_shape(r.architecture, r.shape).n_ctx;
  const std::optional<OffloadChoice> best = best_choice(r);
  if (best && holds(r, with_context(r.shape, most), *best)) return plan_at(r, most);

  const int64_t least = std::min(r.shape.min_ctx > 0 ? r.shape.min_ctx : kLeastContext, most);
  std::vector<SessionPlan> small = plan_least(r, least);
  const auto moves = [&](const OffloadChoice& c) { return c.reads_disk() || off_gpu(r, c); };
  if (const OffloadChoice& moved = small.front().fit.choice; moves(moved)) {
    std::vector<SessionPlan> smaller = plan_without_moves(r, least, moved);
    if (!smaller.empty()) small = std::move(smaller);
  }
  const OffloadChoice choice = small.front().fit.choice;
  ContextOptions shape = r.shape;  // as planned, but for what follows from the context
  shape.n_ubatch = small.front().shape.n_ubatch;
  shape.k_dtype = small.front().shape.k_dtype;
  shape.v_dtype = small.front().shape.v_dtype;
  const int64_t n = std::max(small.front().shape.n_ctx, largest(most, kAutomaticMultiple, [&](int64_t n_ctx) {
                               return holds(r, with_context(shape, n_ctx), choice);
                             }));
  std::vector<SessionPlan> plans = n == small.front().shape.n_ctx ? std::move(small) : plan_at(r, n);
  const auto kept = std::stable_partition(
      plans.begin(), plans.end(), [&](const SessionPlan& p) { return keeps_weights(p.fit.choice, choice); });
  if (kept != plans.begin()) plans.erase(kept, plans.end());
  if (n == most) return plans;
  const size_t d =
      first_too_small(r, with_context(shape, n + kAutomaticMultiple), choice, HostLimit::free_memory);
  for (SessionPlan& plan : plans) {
    if (!moves(plan.fit.choice)) plan.context_limit = memory_text(r, d < r.devices.size() ? d : 0);
  }
  return plans;
}

static std::vector<SessionPlan> plans_of(const PlanRequest& r) {
  if (r.shape.is_automatic()) return plan_automatic_context(r);
  try {
    check_cache_fits_machine(r);
    return plan_fixed_context(r);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::out_of_memory) throw;
    const std::vector<SettingValue> named = settings_in(e.message());
    const auto is_context = [](const SettingValue& s) { return s.setting == Setting::n_ctx; };
    if (std::any_of(named.begin(), named.end(), is_context)) throw;
    const Advised advised = advised_context(r);
    if (advised.n_ctx == 0) throw;
    throw_error(e.code(), "{}; {}", e.message(), advice_text(r, advised));
  }
}

std::vector<SessionPlan> plan_session(const PlanRequest& request) {
  PlanRequest r = request;
  r.devices = r.devices.frozen();
  std::vector<SessionPlan> plans = plans_of(r);
  if (!r.shape.sparse_kv.on()) return plans;
  // Sparse reads are wanted: where the choice is open, the host reads.
  std::vector<SessionPlan> sparse;
  for (const SessionPlan& plan : plans) {
    const KvConfig kv = session_graphs(r.architecture, plan.shape).kv;
    if (reads_sparsely(kv, plan.fit.placement)) sparse.push_back(plan);
  }
  if (sparse.empty()) {
    const SessionPlan& best = plans.front();
    check_sparse_kv(best.shape, session_graphs(r.architecture, best.shape).kv, best.fit.placement);
  }
  return sparse;
}

}  // namespace tandem
