// What a user says about placement (-ngl and its kin), and the Placement that follows from it.
// Throws Error(usage) for what contradicts itself or names a device or tensor that is not there.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/setting.h"
#include "base/toggle.h"
#include "exec/placement.h"
#include "kv/cache.h"
#include "model/architecture.h"

namespace tandem {

enum class SplitMode { none, layer };  // all on the main GPU, or whole layers on each

// What a placement may take. Nothing set: what is free, less a reserve.
struct Budgets {
  std::optional<size_t> max_vram;          // bytes of each GPU, what its driver takes included
  std::optional<size_t> max_ram;           // bytes of host memory, mapped weights included
  std::optional<double> vram_utilization;  // share of each GPU's memory, other programs' use included
  size_t vram_overhead =
      size_t{256} << 20;  // of each GPU: what its driver and libraries take beside what we allocate
};

// What is not set is for the planner to choose.
struct OffloadFlags {
  // Layers on GPUs: the last N of the model; one more than it has layers takes the output head too. Not set:
  // auto.
  std::optional<int64_t> n_gpu_layers;
  Toggle kv_on_host = Toggle::automatic;
  bool kv_prefetched = false;  // --kv-offload prefetch: in host memory, brought to the GPU for every step
  std::optional<int64_t> kv_split;         // the newest N tokens' cache on the GPU, the rest in host memory
  std::optional<int64_t> n_kv_layers_gpu;  // of the layers on GPUs, only the last N keep their cache there
  std::vector<std::pair<std::string, std::string>>
      overrides;                     // tensor name regex, device name; the first match wins
  std::optional<int64_t> n_cpu_moe;  // the experts of the first N layers stay on the host
  SplitMode split_mode = SplitMode::layer;
  std::vector<double> tensor_split;   // share of each GPU; empty: by free memory
  int64_t main_gpu = 0;               // for SplitMode::none: index among the GPUs
  Toggle stream = Toggle::automatic;  // of layers whose weights the host holds
  // How much is to stay on the GPUs, said otherwise than by n_gpu_layers; the rest is streamed.
  std::optional<double> gpu_weights_percent;
  std::optional<double> cpu_offload_gib;  // weights that the host holds
  // Whether layers that host memory does not hold are read from disk for every step. on: an error where that
  // cannot be.
  Toggle disk = Toggle::automatic;
  std::optional<SettingValue> loaded_by;  // the one that keeps all weights in memory, if one does
  // Of the matrices that the host holds, the share of the rows that GPUs compute while the CPU computes the
  // others; 1: never both at once. Not set: auto.
  std::optional<double> gpu_rows;
  Budgets budgets;
};

// Which steps bring the weights that the host holds to a GPU instead of computing beside them.
enum class Streaming { none, prefill, always };
std::string_view streaming_name(Streaming streaming);

// Where the caches of layers on GPUs are.
struct CacheBesideLayers {
  bool operator==(const CacheBesideLayers&) const = default;
};
struct CacheOnHost {
  bool operator==(const CacheOnHost&) const = default;
};
// In host memory, but used on the GPUs.
struct PrefetchedCache {
  bool operator==(const PrefetchedCache&) const = default;
};
// Of the newest n_keep tokens on the GPUs, of older ones in host memory.
struct SplitCache {
  int64_t n_keep;
  bool operator==(const SplitCache&) const = default;
};
using CacheChoice = std::variant<CacheBesideLayers, CacheOnHost, PrefetchedCache, SplitCache>;
// Whether some of it stays on the GPUs.
bool keeps_on_gpus(const CacheChoice& cache);

// One way to fill in what the flags leave open.
struct OffloadChoice {
  int64_t n_gpu_layers = 0;
  CacheChoice cache = CacheBesideLayers{};
  int64_t n_cpu_moe = 0;
  Streaming streaming = Streaming::none;
  int64_t n_disk_layers = 0;  // of those with weights on the host, so many are read from disk
  // Of what is streamed, the share of the rows that the GPU computes, the CPU computing the others; 1: all.
  double rows_prefill = 1, rows_decode = 1;

  bool divides_rows() const {
    return streaming != Streaming::none &&
           (rows_prefill < 1 || (streaming == Streaming::always && rows_decode < 1));
  }
  // Everything that a GPU can have is on one.
  bool is_all_on_gpus(int64_t n_layer) const {
    return n_gpu_layers > n_layer && std::holds_alternative<CacheBesideLayers>(cache) && n_cpu_moe == 0;
  }
};

// Whether the flags want weights streamed in every step.
bool streams(const OffloadFlags& flags);
// The choice with n_gpu_layers that does nothing else than the flags say.
OffloadChoice as_flags_say(const OffloadFlags& flags, int64_t n_gpu_layers);

// Throws Error(usage) for flags that contradict each other, naming both.
void check_flags(const OffloadFlags& flags);

// Without streaming in decoding, the last n_gpu_layers of the model are on GPUs, as -ngl says. With it, as
// many, the output first, but spread over the model, so that there is always something to compute while
// weights are on their way. So are the layers that are read from disk. A cache that the choice splits is whole
// on its GPU until split_caches().
Placement place(const Architecture& architecture, const std::deque<Weight>& weights,
                const DeviceModels& devices, const OffloadFlags& flags, const OffloadChoice& choice);
Placement place(const Architecture& architecture, const std::deque<Weight>& weights,
                const DeviceModels& devices, const OffloadFlags& flags, int64_t n_gpu_layers);
// Splits the caches that are on GPUs, so that the newest n_keep positions stay there beside those of any step
// of n_ubatch tokens. Where the GPU's part would hold the whole cache, that stays in one piece.
void split_caches(Placement& placement, int64_t n_keep, const KvConfig& kv, int64_t n_ubatch);

}  // namespace tandem
