// What a user says about placement (-ngl and its kin), and the Placement that follows from it.
// Throws Error(usage) for what contradicts itself or names a device or tensor that is not there.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/placement.h"
#include "model/architecture.h"

namespace tandem {

enum class SplitMode { none, layer };  // all on the main GPU, or whole layers on each

struct OffloadFlags {
  // Layers on GPUs: the last N of the model; one more than it has layers takes the output head too. Not set:
  // auto.
  std::optional<int64_t> n_gpu_layers;
  bool kv_on_host = false;                 // -nkvo
  std::optional<int64_t> n_kv_layers_gpu;  // of the layers on GPUs, only the last N keep their cache there
  std::vector<std::pair<std::string, std::string>>
      overrides;          // tensor name regex, device name; the first match wins
  int64_t n_cpu_moe = 0;  // the experts of the first N layers stay on the host
  SplitMode split_mode = SplitMode::layer;
  std::vector<double> tensor_split;  // share of each GPU; empty: by free memory
  int64_t main_gpu = 0;              // for SplitMode::none: index among the GPUs
};

// Placement with exactly n_gpu_layers of flags (set, or chosen by the caller) on devices[1..].
Placement place(const Architecture& architecture, const std::deque<Weight>& weights,
                const std::vector<Device*>& devices, const OffloadFlags& flags, int64_t n_gpu_layers);

}  // namespace tandem
