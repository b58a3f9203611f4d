#include "plan/offload.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/overloaded.h"
#include "base/regex.h"
#include "base/setting.h"
#include "kv/hot_cache.h"

namespace tandem {
namespace {

// Which of the GPUs has the i-th of n layers: consecutive runs in proportion to the shares.
std::vector<GpuId> divide_layers(int64_t n, const std::vector<double>& shares) {
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<GpuId> gpus;
  double upto = 0;
  size_t gpu = 0;
  for (int64_t i = 0; i < n; ++i) {
    // The middle of the layer decides, so that small shares are rounded and not always cut off.
    const double at = (static_cast<double>(i) + 0.5) / static_cast<double>(n);
    while (gpu + 1 < shares.size() && at >= (upto + shares[gpu]) / total) upto += shares[gpu++];
    gpus.emplace_back(gpu);
  }
  return gpus;
}

std::vector<double> shares_of(const DeviceModels& devices, const OffloadOptions& options, SplitMode split) {
  const size_t n_gpus = devices.size() - 1;
  if (split == SplitMode::none) {
    if (options.main_gpu < 0 || static_cast<size_t>(options.main_gpu) >= n_gpus) {
      throw_error(ErrorCode::usage, "{}: there are {} GPUs, numbered from 0",
                  setting_text(Setting::main_gpu, options.main_gpu), n_gpus);
    }
    std::vector<double> shares(n_gpus, 0.0);
    shares[options.main_gpu] = 1.0;
    return shares;
  }
  if (options.tensor_split.empty()) {
    std::vector<double> shares;
    for (size_t d = 1; d < devices.size(); ++d)
      shares.push_back(static_cast<double>(devices.memory(d).free_bytes));
    return shares;
  }
  std::vector<double> shares = options.tensor_split;
  if (shares.size() > n_gpus) {
    throw_error(ErrorCode::usage, "{} gives {} shares, but there are {} GPUs",
                setting_text(Setting::tensor_split), shares.size(), n_gpus);
  }
  shares.resize(n_gpus, 0.0);
  if (!(std::accumulate(shares.begin(), shares.end(), 0.0) > 0.0)) {
    throw_error(ErrorCode::usage, "{}: the shares must add up to more than 0",
                setting_text(Setting::tensor_split));
  }
  return shares;
}

DeviceId find_device(const DeviceModels& devices, const std::string& name) {
  std::string known;
  for (size_t d = 0; d < devices.size(); ++d) {
    if (devices[d]->info().name == name) return DeviceId::at(d);
    known += (d ? ", " : "") + devices[d]->info().name;
  }
  throw_error(ErrorCode::usage, "{}: there is no device {}; there is: {}",
              setting_text(Setting::tensor_overrides), printable(name), known);
}

// Every layer on a GPU is on all of them that have a share.
void divide_layers_over(Placement& placement, const std::vector<double>& shares) {
  TensorParallel parallel;
  for (size_t gpu = 0; gpu < shares.size(); ++gpu) {
    if (!(shares[gpu] > 0)) continue;
    parallel.devices.push_back(GpuId(gpu));
    parallel.shares.push_back(shares[gpu]);
  }
  if (parallel.devices.size() > 1) placement.parallel = std::move(parallel);
}

void apply_overrides(Placement& placement, const std::deque<Weight>& weights, const DeviceModels& devices,
                     const OffloadOptions& options) {
  for (const auto& [pattern, device_name] : options.tensor_overrides) {
    const DeviceId device = find_device(devices, device_name);
    if (options.split_mode == SplitMode::tensor && !device.is_host()) {
      throw_error(ErrorCode::usage, "{}: with {} each GPU has its part of every tensor; only {} can be named",
                  setting_text(Setting::tensor_overrides, pattern + "=" + device_name),
                  setting_text(Setting::split_mode, "tensor"), devices[0]->info().name);
    }
    const Regex regex(pattern, setting_text(Setting::tensor_overrides));
    bool matched = false;
    for (const Weight& w : weights) {
      if (!regex.found_in(w.name)) continue;
      matched = true;
      placement.overrides.try_emplace(&w, device);
    }
    if (!matched) {
      throw_error(ErrorCode::usage, "{}: '{}' matches no tensor of this model",
                  setting_text(Setting::tensor_overrides), printable(pattern));
    }
  }
}

// Whether layer i is one of n that are spread evenly over all of them, the last layer always among them.
bool is_spread(int64_t i, int64_t n, int64_t n_layer) {
  return (i + 1) * n / n_layer > i * n / n_layer;
}

// Streaming in every step: all layers run on GPUs.
void place_streamed(Placement& placement, const std::vector<GpuId>& gpus, const OffloadChoice& choice) {
  const auto n_layer = static_cast<int64_t>(placement.layers.size());
  const int64_t n_resident = std::clamp<int64_t>(choice.n_gpu_layers - 1, 0, n_layer);
  for (int64_t i = 0; i < n_layer; ++i) {
    LayerPlacement& layer = placement.layers[i];
    const GpuId gpu = gpus[i];
    const InMemory streamed{use_on(gpu, choice.rows_prefill), use_on(gpu, choice.rows_decode)};
    layer.weights = streamed;
    if (is_spread(i, n_resident, n_layer)) layer.weights = Resident{gpu};
    layer.experts = i < choice.n_cpu_moe ? streamed : layer.weights;
    layer.kv = ResidentKv{gpu};
  }
  if (choice.n_gpu_layers > 0) placement.output = gpus.back();
}

void place_last(Placement& placement, const std::vector<GpuId>& gpus, const OffloadChoice& choice) {
  const auto n_layer = static_cast<int64_t>(placement.layers.size());
  const auto n = static_cast<int64_t>(gpus.size());
  const int64_t first = std::max<int64_t>(0, n_layer - n);
  for (int64_t i = first; i < n_layer; ++i) {
    LayerPlacement& layer = placement.layers[i];
    const GpuId gpu = gpus[i - first];
    layer.weights = Resident{gpu};
    if (i >= choice.n_cpu_moe) layer.experts = layer.weights;
    layer.kv = ResidentKv{gpu};
  }
  if (n > n_layer) placement.output = gpus.back();
}

// Several tokens at a time are worth bringing the weights for that the host holds.
void stream_prefill(Placement& placement, const std::vector<GpuId>& gpus, double share) {
  for (size_t i = 0; i < placement.layers.size(); ++i) {
    LayerPlacement& layer = placement.layers[i];
    const GpuId gpu = holder(layer.weights).gpu().value_or(gpus[i]);
    for (WeightHome* home : {&layer.weights, &layer.experts}) {
      if (auto* held = std::get_if<InMemory>(home)) held->prefill = use_on(gpu, share);
    }
  }
}

// Caches of layers that compute on a GPU while decoding are brought there.
// Those of recurrent layers, which are small, stay there, as do those that later layers read, too; some layers have
// none.
void prefetch_caches(Placement& placement, const Architecture& architecture) {
  for (size_t i = 0; i < placement.layers.size(); ++i) {
    LayerPlacement& layer = placement.layers[i];
    const std::optional<GpuId> gpu = computes_on(layer.weights, StepKind::decode).gpu();
    const KvShape shape = architecture.kv_shape(static_cast<int>(i));
    if (!shape.has_rows() || shape.is_shared) {
      layer.kv = ResidentKv{gpu ? DeviceId(*gpu) : DeviceId::host()};
      continue;
    }
    layer.kv = gpu ? KvHome(PrefetchedKv{*gpu}) : ResidentKv{DeviceId::host()};
  }
}

// What the host has of the cache, for the steps of prompts alone. Caches that later layers read, too, stay on the host.
void prefetch_for_prompts(Placement& placement, const Architecture& architecture) {
  for (size_t i = 0; i < placement.layers.size(); ++i) {
    LayerPlacement& layer = placement.layers[i];
    const std::optional<GpuId> gpu = computes_on(layer.weights, StepKind::prefill).gpu();
    const KvShape shape = architecture.kv_shape(static_cast<int>(i));
    if (holder(layer.kv).is_host() && gpu && shape.has_rows() && !shape.is_shared) layer.kv = PrefetchedKv{*gpu, true};
  }
}

void place_on_disk(Placement& placement, int64_t n_disk_layers) {
  std::vector<LayerPlacement*> held;  // by the host
  for (LayerPlacement& layer : placement.layers) {
    if (!layer.is_resident()) held.push_back(&layer);
  }
  const auto n_held = static_cast<int64_t>(held.size());
  const int64_t n = std::clamp<int64_t>(n_disk_layers, 0, n_held);
  for (int64_t i = 0; i < n_held; ++i) {
    if (!is_spread(i, n, n_held)) continue;
    LayerPlacement& layer = *held[i];
    for (WeightHome* home : {&layer.weights, &layer.experts}) {
      if (const auto* memory = std::get_if<InMemory>(home)) *home = moved_to_disk(*memory);
    }
  }
}

// Whether a layer has experts, and all of them in the file.
std::vector<bool> layers_with_experts_in_file(const std::deque<Weight>& weights, size_t n_layer) {
  std::vector<bool> has(n_layer, false), lacks(n_layer, false);
  for (const Weight& w : weights) {
    const bool is_matrix = w.layer >= 0 && static_cast<size_t>(w.layer) < n_layer && w.n_mats > 1;
    if (!is_matrix || !is_of_experts(w)) continue;
    has[static_cast<size_t>(w.layer)] = true;
    if (!w.in_file) lacks[static_cast<size_t>(w.layer)] = true;
  }
  for (size_t i = 0; i < n_layer; ++i) has[i] = has[i] && !lacks[i];
  return has;
}

// The weights of a layer's experts, if a GPU can have some of them.
struct CachableLayer {
  std::optional<GpuId> gpu;            // that has the layer's other weights
  std::vector<const Weight*> weights;  // matrices and biases
  int64_t n_expert = 0;
  size_t expert_bytes = 0;  // on the GPU
};

// Whether a GPU lays out a weight's experts one behind the other, so that one can be replaced.
bool is_made_of_slots(const DeviceModel& device, const Weight& w, int64_t n_expert) {
  Weight one = w;
  (w.n_mats > 1 ? one.n_mats : one.n_rows) = 1;
  return device.weight_bytes(one) * static_cast<size_t>(n_expert) == device.weight_bytes(w);
}

std::vector<CachableLayer> cachable_layers(const Placement& placement, const std::deque<Weight>& weights,
                                           const DeviceModels& devices) {
  std::vector<CachableLayer> layers(placement.layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerPlacement& p = placement.layers[i];
    if (can_be_cached(p.experts)) layers[i].gpu = holder(p.weights).gpu();
  }
  for (const Weight& w : weights) {
    if (w.layer < 0 || static_cast<size_t>(w.layer) >= layers.size() || !is_of_experts(w)) continue;
    CachableLayer& layer = layers[static_cast<size_t>(w.layer)];
    if (w.n_mats == 1 && !w.name.ends_with(".bias")) continue;  // of the router: Gemma's scales
    layer.weights.push_back(&w);
    if (w.n_mats > 1) layer.n_expert = w.n_mats;
  }
  for (CachableLayer& layer : layers) {
    for (const Weight* w : layer.weights) {
      if (!layer.gpu) break;
      const DeviceModel& device = *devices[DeviceId(*layer.gpu).index()];
      const bool of_all = (w->n_mats > 1 ? w->n_mats : w->n_rows) == layer.n_expert;
      if (!of_all || !is_made_of_slots(device, *w, layer.n_expert)) {
        layer.gpu.reset();
      } else {
        layer.expert_bytes += device.weight_bytes(*w) / static_cast<size_t>(layer.n_expert);
      }
    }
    if (layer.n_expert < 2) layer.gpu.reset();
  }
  return layers;
}

void cache_experts(Placement& placement, const std::deque<Weight>& weights, const DeviceModels& devices,
                   const OffloadChoice& choice) {
  if (choice.n_cached_experts <= 0) return;
  const std::vector<CachableLayer> layers = cachable_layers(placement, weights, devices);
  for (size_t i = 0; i < layers.size(); ++i) {
    const CachableLayer& layer = layers[i];
    if (!layer.gpu) continue;
    ExpertHome& home = placement.layers[i].experts;
    home = with_cached_experts(home, {*layer.gpu, std::min(choice.n_cached_experts, layer.n_expert - 1),
                                      choice.fetched_experts, choice.kept_experts});
  }
}

// The experts that the host computes with while decoding.
void leave_experts_on_disk(Placement& placement, const std::deque<Weight>& weights) {
  const std::vector<bool> can = layers_with_experts_in_file(weights, placement.layers.size());
  for (size_t i = 0; i < placement.layers.size(); ++i) {
    ExpertHome& experts = placement.layers[i].experts;
    const auto* memory = std::get_if<InMemory>(&experts);
    if (memory && can[i] && std::holds_alternative<HostComputes>(memory->decode))
      experts = chosen_from_disk(*memory);
  }
}

}  // namespace

void check_devices(const OffloadOptions& options, const DeviceModels& devices) {
  for (const auto& [pattern, device] : options.tensor_overrides) find_device(devices, device);
  if (devices.size() > 1) shares_of(devices, options, options.split_mode);
}

std::string_view streaming_name(Streaming streaming) {
  switch (streaming) {
    case Streaming::none: return "none";
    case Streaming::prefill: return "prefill";
    case Streaming::always: return "always";
  }
  return "";
}

std::string_view split_name(SplitMode split) {
  switch (split) {
    case SplitMode::automatic: return "auto";
    case SplitMode::none: return "none";
    case SplitMode::layer: return "layer";
    case SplitMode::tensor: return "tensor";
  }
  return "";
}

// What layers that are divided over GPUs cannot be combined with.
static void check_tensor_split(const OffloadOptions& f) {
  if (f.split_mode != SplitMode::tensor) return;
  const SettingValue tensor{Setting::split_mode, "tensor"};
  if (f.kv_split) {
    throw_contradiction(tensor, {Setting::kv_split},
                        "heads of the cache are divided over GPUs, and its tokens are not");
  }
  if (f.kv_prefetched) {
    throw_contradiction(tensor, {Setting::kv_prefetched}, "a cache that is divided over GPUs stays there");
  }
  if (f.gpu_rows.value_or(1) < 1) {
    throw_contradiction(tensor, {Setting::gpu_rows}, "rows are divided over GPUs, and not with the CPU");
  }
  if (f.expert_cache.value_or(0) > 0) {
    throw_contradiction(tensor, {Setting::expert_cache},
                        "GPUs keep whole experts of one device's layers only");
  }
  if (f.disk == Toggle::on) {
    throw_contradiction(tensor, {Setting::disk, "on"}, "columns of matrices are not read from disk");
  }
}

void check_offload(const OffloadOptions& f) {
  check_tensor_split(f);
  const bool percent = f.gpu_weights_percent.has_value(), gib = f.cpu_offload_gib.has_value();
  const SettingValue held{percent ? Setting::gpu_weights_percent : Setting::cpu_offload_gib};
  const SettingValue no_stream{Setting::stream, "off"};
  const bool on_host = f.kv_on_host == Toggle::on;
  if (percent && gib)
    throw_contradiction(held, {Setting::cpu_offload_gib}, "both say how much the host holds");
  if ((percent || gib) && f.n_gpu_layers) {
    throw_contradiction(held, {Setting::n_gpu_layers}, "both say how much stays on the GPU");
  }
  if ((percent || gib) && f.stream == Toggle::off) {
    throw_contradiction(held, no_stream, "what the host holds of it is streamed");
  }
  if (f.gpu_rows.value_or(1) < 1 && f.stream == Toggle::off) {
    throw_contradiction({Setting::gpu_rows}, no_stream, "the GPU's rows are streamed to it");
  }
  if (f.expert_cache.value_or(0) > 0 && streams(f)) {
    const SettingValue streamed = percent || gib           ? held
                                  : f.stream == Toggle::on ? SettingValue{Setting::stream, "on"}
                                                           : SettingValue{Setting::gpu_rows};
    throw_contradiction({Setting::expert_cache}, streamed,
                        "of streamed layers every step brings all experts");
  }
  if (f.budgets.max_vram && f.budgets.vram_utilization) {
    throw_contradiction({Setting::max_vram}, {Setting::vram_utilization},
                        "both say how much of the GPU may be used");
  }
  if (f.kv_prefetched && on_host) {
    throw_contradiction({Setting::kv_prefetched}, {Setting::kv_on_host},
                        "one attends on the GPU, the other on the CPU");
  }
  if (f.kv_prefetched && f.n_kv_layers_gpu) {
    throw_contradiction({Setting::kv_prefetched}, {Setting::n_kv_layers_gpu},
                        "one keeps the cache off the GPU, the other on it");
  }
  if (f.kv_split && on_host) {
    throw_contradiction({Setting::kv_split}, {Setting::kv_on_host},
                        "one keeps a part of the cache on the GPU, the other none");
  }
  if (f.kv_split && f.kv_prefetched) {
    throw_contradiction({Setting::kv_split}, {Setting::kv_prefetched},
                        "both say how a cache in host memory is used");
  }
  if (f.kv_split && f.n_kv_layers_gpu) {
    throw_contradiction({Setting::kv_split}, {Setting::n_kv_layers_gpu},
                        "one divides the cache by tokens, the other by layers");
  }
  if (on_host && f.n_kv_layers_gpu.value_or(0) > 0) {
    throw_contradiction({Setting::kv_on_host}, {Setting::n_kv_layers_gpu},
                        "one keeps the cache off the GPU, the other on it");
  }
}

bool keeps_on_gpus(const CacheChoice& cache) {
  return std::holds_alternative<CacheBesideLayers>(cache) || std::holds_alternative<SplitCache>(cache);
}

bool is_brought_for_prompts(const CacheChoice& cache) {
  return std::visit(Overloaded{[](const CacheBesideLayers& beside) { return beside.for_prompts_on_gpus; },
                               [](const CacheOnHost& on_host) { return on_host.for_prompts_on_gpus; },
                               [](const auto&) { return false; }},
                    cache);
}

bool streams(const OffloadOptions& options) {
  return options.stream == Toggle::on || options.gpu_weights_percent || options.cpu_offload_gib ||
         options.gpu_rows.value_or(1) < 1;
}

OffloadChoice from_options(const OffloadOptions& options, int64_t n_gpu_layers) {
  OffloadChoice choice;
  choice.n_gpu_layers = n_gpu_layers;
  if (options.split_mode != SplitMode::automatic) choice.split = options.split_mode;
  if (options.kv_on_host == Toggle::on) choice.cache = CacheOnHost{};
  if (options.kv_prefetched) choice.cache = PrefetchedCache{};
  if (options.kv_split) choice.cache = SplitCache{*options.kv_split};
  choice.n_cpu_moe = options.n_cpu_moe.value_or(0);
  choice.streaming = streams(options) ? Streaming::always : Streaming::none;
  choice.rows_prefill = choice.rows_decode = options.gpu_rows.value_or(1);
  return choice;
}

Placement place(const Architecture& architecture, const std::deque<Weight>& weights,
                const DeviceModels& devices, const OffloadOptions& options, int64_t n_gpu_layers) {
  return place(architecture, weights, devices, options, from_options(options, n_gpu_layers));
}

Placement place(const Architecture& architecture, const std::deque<Weight>& weights,
                const DeviceModels& devices, const OffloadOptions& options, const OffloadChoice& choice) {
  const int64_t n_layer = architecture.hparams().n_layer;
  Placement placement = Placement::host_only(static_cast<size_t>(n_layer));
  const int64_t n = std::clamp<int64_t>(choice.n_gpu_layers, 0, n_layer + 1);
  if (n > 0 || choice.streaming != Streaming::none) {
    TANDEM_CHECK(devices.size() > 1);
    const std::vector<double> shares = shares_of(devices, options, choice.split);
    if (choice.streaming == Streaming::always) {
      place_streamed(placement, divide_layers(n_layer, shares), choice);
    } else if (n > 0) {
      place_last(placement, divide_layers(n, shares), choice);
    }
    if (choice.streaming == Streaming::prefill) {
      stream_prefill(placement, divide_layers(n_layer, shares), choice.rows_prefill);
    }
    const int64_t n_kv = keeps_on_gpus(choice.cache)
                             ? std::clamp<int64_t>(options.n_kv_layers_gpu.value_or(n_layer), 0, n_layer)
                             : 0;
    for (int64_t i = 0; i < n_layer - n_kv; ++i) placement.layers[i].kv = ResidentKv{};
    if (choice.split == SplitMode::tensor) divide_layers_over(placement, shares);
  }
  if (std::holds_alternative<PrefetchedCache>(choice.cache)) prefetch_caches(placement, architecture);
  if (is_brought_for_prompts(choice.cache)) prefetch_for_prompts(placement, architecture);
  if (choice.chosen_experts) leave_experts_on_disk(placement, weights);
  placement.n_expert_bytes = choice.n_expert_bytes;
  place_on_disk(placement, choice.n_disk_layers);
  cache_experts(placement, weights, devices, choice);
  apply_overrides(placement, weights, devices, options);
  return placement;
}

std::vector<size_t> cached_expert_bytes(const Placement& placement, const std::deque<Weight>& weights,
                                        const DeviceModels& devices) {
  std::vector<size_t> bytes(devices.size(), 0);
  for (const CachableLayer& layer : cachable_layers(placement, weights, devices)) {
    if (layer.gpu) bytes[DeviceId(*layer.gpu).index()] += layer.expert_bytes;
  }
  return bytes;
}

void split_caches(Placement& placement, int64_t n_keep, const KvConfig& kv, int64_t n_ubatch) {
  const int64_t n_blocks = hot_block_count(kv, n_keep, n_ubatch);
  if (n_blocks * kv.block_size >= kv.n_ctx) return;
  for (LayerPlacement& layer : placement.layers) {
    const auto i = static_cast<size_t>(&layer - placement.layers.data());
    if (!kv.layers[i].has_rows()) continue;  // states are read and written in every step
    const auto* resident = std::get_if<ResidentKv>(&layer.kv);
    const std::optional<GpuId> gpu = resident ? resident->device.gpu() : std::nullopt;
    if (gpu) layer.kv = SplitKv{*gpu, n_keep, n_blocks};
  }
}

}  // namespace tandem
