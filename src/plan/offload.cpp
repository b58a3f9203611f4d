#include "plan/offload.h"

#include <algorithm>
#include <numeric>
#include <regex>

#include "base/error.h"

namespace tandem {
namespace {

// Which of the GPUs has the i-th of n layers: consecutive runs in proportion to the shares.
std::vector<int> divide_layers(int64_t n, const std::vector<double>& shares) {
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<int> device;
  double upto = 0;
  size_t gpu = 0;
  for (int64_t i = 0; i < n; ++i) {
    // The middle of the layer decides, so that small shares are rounded and not always cut off.
    const double at = (static_cast<double>(i) + 0.5) / static_cast<double>(n);
    while (gpu + 1 < shares.size() && at >= (upto + shares[gpu]) / total) upto += shares[gpu++];
    device.push_back(static_cast<int>(gpu));
  }
  return device;
}

std::vector<double> shares_of(const std::vector<Device*>& devices, const OffloadFlags& flags) {
  const size_t n_gpus = devices.size() - 1;
  if (flags.split_mode == SplitMode::none) {
    if (flags.main_gpu < 0 || static_cast<size_t>(flags.main_gpu) >= n_gpus) {
      throw_error(ErrorCode::usage, "-mg %lld: there are %zu GPUs, numbered from 0",
                  static_cast<long long>(flags.main_gpu), n_gpus);
    }
    std::vector<double> shares(n_gpus, 0.0);
    shares[static_cast<size_t>(flags.main_gpu)] = 1.0;
    return shares;
  }
  if (flags.tensor_split.empty()) {
    std::vector<double> shares;
    for (size_t d = 1; d < devices.size(); ++d)
      shares.push_back(static_cast<double>(devices[d]->memory_info().free_bytes));
    return shares;
  }
  std::vector<double> shares = flags.tensor_split;
  if (shares.size() > n_gpus) {
    throw_error(ErrorCode::usage, "-ts gives %zu shares, but there are %zu GPUs", shares.size(), n_gpus);
  }
  shares.resize(n_gpus, 0.0);
  if (!(std::accumulate(shares.begin(), shares.end(), 0.0) > 0.0)) {
    throw_error(ErrorCode::usage, "-ts: the shares must add up to more than 0");
  }
  return shares;
}

int find_device(const std::vector<Device*>& devices, const std::string& name) {
  std::string known;
  for (size_t d = 0; d < devices.size(); ++d) {
    if (devices[d]->info().name == name) return static_cast<int>(d);
    known += (d ? ", " : "") + devices[d]->info().name;
  }
  throw_error(ErrorCode::usage, "-ot: there is no device %s; there is: %s", printable(name).c_str(),
              known.c_str());
}

void apply_overrides(Placement& placement, const std::deque<Weight>& weights,
                     const std::vector<Device*>& devices, const OffloadFlags& flags) {
  for (const auto& [pattern, device_name] : flags.overrides) {
    const int device = find_device(devices, device_name);
    std::regex regex;
    try {
      regex = std::regex(pattern, std::regex::optimize);
    } catch (const std::regex_error&) {
      throw_error(ErrorCode::usage, "-ot: '%s' is not a regular expression", printable(pattern).c_str());
    }
    bool matched = false;
    for (const Weight& w : weights) {
      if (!std::regex_search(w.name, regex)) continue;
      matched = true;
      placement.overrides.try_emplace(&w, device);
    }
    if (!matched)
      throw_error(ErrorCode::usage, "-ot: '%s' matches no tensor of this model", printable(pattern).c_str());
  }
}

}  // namespace

Placement place(const Architecture& architecture, const std::deque<Weight>& weights,
                const std::vector<Device*>& devices, const OffloadFlags& flags, int64_t n_gpu_layers) {
  const int64_t n_layer = architecture.hparams().n_layer;
  Placement placement = Placement::host_only(static_cast<int>(n_layer));
  const int64_t n = std::clamp<int64_t>(n_gpu_layers, 0, n_layer + 1);
  if (n > 0) {
    TANDEM_CHECK(devices.size() > 1);
    const std::vector<int> gpu = divide_layers(n, shares_of(devices, flags));
    const int64_t first = std::max<int64_t>(0, n_layer - n);
    const int64_t n_kv =
        flags.kv_on_host ? 0 : std::clamp<int64_t>(flags.n_kv_layers_gpu.value_or(n_layer), 0, n_layer);
    for (int64_t i = first; i < n_layer; ++i) {
      LayerPlacement& layer = placement.layers[static_cast<size_t>(i)];
      layer.weights = 1 + gpu[static_cast<size_t>(i - first)];
      layer.experts = i < flags.n_cpu_moe ? 0 : layer.weights;
      layer.kv = i >= n_layer - n_kv ? layer.weights : 0;
    }
    if (n > n_layer) placement.output = 1 + gpu.back();
  }
  apply_overrides(placement, weights, devices, flags);
  return placement;
}

}  // namespace tandem
