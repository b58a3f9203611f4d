// What is said when nothing fits.
#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/setting.h"
#include "plan/fit_search.h"

namespace tandem {
namespace {

// The largest context below that of `kv`, and at most `most`, for which a predicate holds; 0: none worth running
// with.
template <class Ok>
int64_t largest_context_with(KvConfig kv, int64_t most, const Ok& ok) {
  constexpr int64_t kStep = 256;  // tokens
  int64_t low = 0, high = ceil_div(std::min(kv.n_ctx, most + 1), kStep);
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    kv.n_ctx = middle * kStep;
    (ok(kv) ? low : high) = middle;
  }
  return low * kStep;
}

std::pair<DType, DType> types_of(const KvFormat& format) {
  return {format.k, format.v};
}

// "n_gpu_layers=17, n_ctx=8192 or k_dtype=q8_0 v_dtype=q8_0 would fit": each alone.
std::string advice(const FitRequest& r, const OffloadChoice& choice) {
  std::vector<std::string> ways;
  OffloadChoice fewer = choice;
  const int64_t n = most_layers(choice.n_gpu_layers, [&](int64_t layers) {
    fewer.n_gpu_layers = layers;
    return fits(r, fit_with(r, fewer));
  });
  if (n >= 0) ways.push_back(setting_text(Setting::n_gpu_layers, n));
  const auto fits_with_kv = [&](const KvConfig& kv) {
    const FitRequest other{r.architecture, r.weights, r.devices, r.options, kv, r.graphs};
    return fits(other, fit_with(other, choice));
  };
  KvConfig kv = r.kv;
  const int64_t n_trained = r.architecture.hparams().n_ctx_usable() * r.graphs.front()->shape.max_sequences;
  if (const int64_t context = largest_context_with(r.kv, n_trained, fits_with_kv))
    ways.push_back(setting_text(Setting::n_ctx, context));
  // The advice is for all layers, so not where the user chose for some.
  bool cacheable =
      std::ranges::adjacent_find(kv.formats, std::ranges::not_equal_to{}, types_of) == kv.formats.end();
  kv.formats.assign(kv.layers.size(), {DType::Q8_0, DType::Q8_0, {}});
  for (const KvShape& s : kv.layers) cacheable &= s.head_dim_k % 32 == 0 && s.head_dim_v % 32 == 0;
  if (cacheable && fits_with_kv(kv)) {
    ways.push_back(setting_text(Setting::k_dtype, "q8_0") + " " + setting_text(Setting::v_dtype, "q8_0"));
  }
  if (ways.empty()) return "nothing smaller would fit either";
  std::string text;
  for (size_t i = 0; i < ways.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ways.size() ? " or " : ", ") + ways[i];
  return text + " would fit";
}

// The least that the host needs, with layers on disk if they may be.
size_t least_host_needs(const FitRequest& r, const Fit& f) {
  if (r.options.disk == Toggle::off || !r.may_leave_on_disk || f.placement.parallel)
    return device_needs(f, 0);
  OffloadChoice choice = f.choice;
  choice.n_disk_layers = r.architecture.hparams().n_layer;
  choice.chosen_experts = true;
  choice.n_expert_bytes = 0;
  return std::min(device_needs(f, 0), device_needs(fit_with(r, choice), 0));
}

}  // namespace

// When host memory is all that is missing: how much is needed at the least.
void check_host_budget(const FitRequest& r) {
  if (!r.options.budgets.max_ram) return;
  OffloadOptions unlimited = r.options;
  unlimited.budgets.max_ram.reset();
  size_t minimum = SIZE_MAX;
  for (const Fit& f : all_fits({r.architecture,
                                r.weights,
                                r.devices,
                                unlimited,
                                r.kv,
                                r.graphs,
                                r.rates,
                                {},
                                r.may_leave_on_disk})) {
    minimum = std::min(minimum, least_host_needs(r, f));
  }
  if (minimum == SIZE_MAX) return;
  throw_error(ErrorCode::out_of_memory, "{}: {} bytes ({}) are needed at the least, and {} ({}) are allowed",
              setting_text(Setting::max_ram), minimum, size_text(minimum), *r.options.budgets.max_ram,
              size_text(*r.options.budgets.max_ram));
}

[[noreturn]] void throw_too_small(const FitRequest& r, const OffloadChoice& choice) {
  const Fit smallest = with_disk(r, choice);
  const size_t d = first_too_small(r, smallest, 1);
  if (d == r.devices.size() && first_too_small(r, smallest) == 0) {
    const DeviceBytes& host = smallest.bytes.devices[0];
    throw_error(ErrorCode::out_of_memory,
                "{}: a context of {} tokens needs {}, {} of that for the KV cache, and there are {}",
                r.devices[0]->info().name, r.kv.n_ctx, size_text(host.total()), size_text(host.kv),
                size_text(r.devices.memory(0).total_bytes));
  }
  if (d == r.devices.size()) {
    throw_error(ErrorCode::out_of_memory, "no placement with these options fits the memory of host and GPUs");
  }
  const char* name = r.devices[d]->info().name.c_str();
  if (!r.options.n_gpu_layers) {
    throw_error(ErrorCode::out_of_memory,
                "{}: the options need {} bytes there and {} are free or allowed; {}", name,
                device_needs(smallest, d), device_budget(r, d), advice(r, choice));
  }
  const std::string budget = " of " + setting_text(Setting::max_vram);
  throw_error(ErrorCode::out_of_memory, "{}: {} needs {} bytes and {} are free{}; {}", name,
              setting_text(Setting::n_gpu_layers, choice.n_gpu_layers), device_needs(smallest, d),
              device_budget(r, d), r.options.budgets.max_vram ? budget.c_str() : "", advice(r, choice));
}

// A budget that no layer fits into is a mistake; without one, a GPU that is too small is merely not used.
void check_budget_holds_a_layer(const FitRequest& r) {
  const Budgets& b = r.options.budgets;
  if (r.devices.size() < 2 || !(b.max_vram || b.vram_utilization) || r.options.n_gpu_layers.value_or(1) == 0)
    return;
  OffloadChoice one = from_options(r.options, 1);
  one.streaming = Streaming::none;
  one.cache = CacheOnHost{};
  one.n_cpu_moe = 0;
  const Fit smallest = fit_with(r, one);
  const size_t d = first_too_small(r, smallest);
  if (d == 0 || d == r.devices.size()) return;
  const size_t minimum = device_needs(smallest, d) + b.vram_overhead;
  throw_error(ErrorCode::out_of_memory,
              "{}: {} cannot hold one layer: the minimum is {} bytes ({}), of which {} are the "
              "driver's; {} uses no GPU",
              setting_text(b.max_vram ? Setting::max_vram : Setting::vram_utilization),
              r.devices[d]->info().name, minimum, size_text(minimum), b.vram_overhead,
              setting_text(Setting::n_gpu_layers, 0));
}

}  // namespace tandem
