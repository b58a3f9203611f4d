// From what a user sets of placement to the Placement that follows from it.
// Throws Error(usage) for what contradicts itself or names a device or tensor that is not there.
#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "exec/placement.h"
#include "kv/cache.h"
#include "model/architecture.h"
#include "plan/options.h"

namespace tandem {

// Which steps bring the weights that the host holds to a GPU instead of computing beside them.
enum class Streaming { none, prefill, always };
std::string_view streaming_name(Streaming streaming);

// "layer", "tensor", "none"; of one that is automatic, "auto".
std::string_view split_name(SplitMode split);

// Where the caches of layers on GPUs are.
struct CacheBesideLayers {
  bool for_prompts_on_gpus = false;  // of the host's layers that GPUs compute for prompts: brought there, where they then attend
  auto operator<=>(const CacheBesideLayers&) const = default;
};
struct CacheOnHost {
  bool for_prompts_on_gpus = false;  // brought to the GPUs that compute prompts, which then attend
  auto operator<=>(const CacheOnHost&) const = default;
};
// In host memory, but used on the GPUs.
struct PrefetchedCache {
  auto operator<=>(const PrefetchedCache&) const = default;
};
// Of the newest n_keep tokens on the GPUs, of older ones in host memory.
struct SplitCache {
  int64_t n_keep;
  auto operator<=>(const SplitCache&) const = default;
};
using CacheChoice = std::variant<CacheBesideLayers, CacheOnHost, PrefetchedCache, SplitCache>;
// Whether some of it stays on the GPUs.
bool keeps_on_gpus(const CacheChoice& cache);
// Whether what the host has of it is brought to GPUs for the steps of prompts, and for no others.
bool is_brought_for_prompts(const CacheChoice& cache);

// One way to fill in what the options leave open.
struct OffloadChoice {
  int64_t n_gpu_layers = 0;
  CacheChoice cache = CacheBesideLayers{};
  int64_t n_cpu_moe = 0;
  Streaming streaming = Streaming::none;
  int64_t n_disk_layers = 0;  // of those with weights on the host, so many are read from disk
  // Of what is streamed, the share of the rows that the GPU computes, the CPU computing the others; 1: all.
  double rows_prefill = 1, rows_decode = 1;
  // Of mixtures that the host computes while decoding, all experts are on disk, and only the chosen ones are read. Host
  // memory for them; what n_disk_layers counts then are the other weights of layers.
  bool chosen_experts = false;
  size_t n_expert_bytes = 0;

  // Of layers with weights on a GPU and experts that the host computes, in memory or on disk, so many experts are on the GPU
  // too; and the share of others that a step chooses, and the host has in memory, which is brought there for the step.
  // Then experts that a step brings there for later ones, less than 1 where it has no time for more.
  int64_t n_cached_experts = 0;
  double fetched_experts = 0;
  double kept_experts = 0.25;
  SplitMode split = SplitMode::layer;  // over several GPUs; not automatic

  auto operator<=>(const OffloadChoice&) const = default;
  bool reads_disk() const { return n_disk_layers > 0 || chosen_experts; }
  bool divides_rows() const {
    return streaming != Streaming::none &&
           (rows_prefill < 1 || (streaming == Streaming::always && rows_decode < 1));
  }
  // Everything that a GPU can have is on one.
  bool is_all_on_gpus(int64_t n_layer) const {
    return n_gpu_layers > n_layer && std::holds_alternative<CacheBesideLayers>(cache) && n_cpu_moe == 0;
  }
};

// Whether the options want weights streamed in every step.
bool streams(const OffloadOptions& options);
// The choice with n_gpu_layers that does nothing but what the options set.
OffloadChoice from_options(const OffloadOptions& options, int64_t n_gpu_layers);

// Throws Error(usage) for options that contradict each other, naming both.
void check_offload(const OffloadOptions& options);
// Likewise for options that name devices which are not there, or more of them.
void check_devices(const OffloadOptions& options, const DeviceModels& devices);

// Without streaming in decoding, the last n_gpu_layers of the model are on GPUs. With it, as many, the output
// first, but spread over the model, so that there is always something to compute while weights are on their
// way. So are the layers that are read from disk. A cache that the choice splits is whole on its GPU until
// split_caches().
Placement place(const Architecture& architecture, const std::deque<Weight>& weights,
                const DeviceModels& devices, const OffloadOptions& options, const OffloadChoice& choice);
Placement place(const Architecture& architecture, const std::deque<Weight>& weights,
                const DeviceModels& devices, const OffloadOptions& options, int64_t n_gpu_layers);
// Bytes on each device of one expert of every layer whose experts place() would leave to the host with its other weights
// on that device, so that n_cached_experts of them can be there.
std::vector<size_t> cached_expert_bytes(const Placement& placement, const std::deque<Weight>& weights,
                                        const DeviceModels& devices);
// Splits the caches that are on GPUs, so that the newest n_keep positions stay there beside those of any step
// of n_ubatch tokens. Where the GPU's part would hold the whole cache, that stays in one piece.
void split_caches(Placement& placement, int64_t n_keep, const KvConfig& kv, int64_t n_ubatch);

}  // namespace tandem
