// Homes: where a layer's weights, experts and cache are, and which device computes with them. Each is a
// variant, so meaningless states cannot be written: nothing is streamed to the host, weights on disk do not
// have divided rows, no cache is both prefetched and split. A new kind of home is a new alternative; the
// compiler then finds each visitor that has to handle it. All other code uses the functions below.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "graph/column_runs.h"
#include "graph/device_id.h"
#include "graph/graph.h"

namespace tandem {

// prefill: several tokens of a sequence in a step; decode: one token of each sequence,
// with speculation a few more. The weights in host memory may be used differently in each.
enum class StepKind : uint8_t { prefill, decode };
StepKind step_kind(const ShapeClass& shape);

// The host computes with the matrices that it holds.
struct HostComputes {
  bool operator==(const HostComputes&) const = default;
};
// The matrices are brought to a GPU for every step, while earlier layers compute.
struct Streamed {
  GpuId to;
  bool operator==(const Streamed&) const = default;
};
// Only a share of the rows, less than 1, is brought to a GPU; the host computes the others at the same time
// (see divide_rows.h).
struct RowsShared {
  GpuId with;
  double share;
  bool operator==(const RowsShared&) const = default;
};
// For experts: the host computes with them, but a GPU has some in slots (expert_cache.h) and computes with those. Of experts
// on disk the host reads those that a step has chosen and the GPU lacks, as with ChosenExperts.
struct CachedExperts {
  GpuId on;
  int64_t n_slots;     // experts; less than all
  double fetched = 0;  // share of the others that a step chooses which it brings and computes there
  double kept = 0.25;  // experts that a step brings there for later, at most 1: what the bus can carry beside
  bool operator==(const CachedExperts&) const = default;
};
// For experts on disk: only those that a step's tokens have chosen are read, one by one, into a cache in host memory
// (expert_store.h), and the host computes with them.
struct ChosenExperts {
  bool operator==(const ChosenExperts&) const = default;
};
using MemoryUse = std::variant<HostComputes, Streamed, RowsShared, CachedExperts>;
using DiskUse = std::variant<HostComputes, Streamed, ChosenExperts, CachedExperts>;
// Returns RowsShared, or Streamed if the share is all of the rows.
MemoryUse use_on(GpuId gpu, double share);

// The GPU has its own copy.
struct Resident {
  GpuId gpu;
  bool operator==(const Resident&) const = default;
};
// In host memory, in the mapped file.
struct InMemory {
  MemoryUse prefill, decode;
  bool operator==(const InMemory&) const = default;
};
// Read from disk into host slots for every step, and used or streamed from there; of experts perhaps the chosen ones.
struct OnDisk {
  DiskUse prefill, decode;
  bool operator==(const OnDisk&) const = default;
};
using WeightHome = std::variant<Resident, InMemory, OnDisk>;
// Experts have the same kinds of home, but one of their own in each layer.
using ExpertHome = WeightHome;

// kv_write and attention run on the device that holds the cache.
struct ResidentKv {
  DeviceId device = DeviceId::host();
  bool operator==(const ResidentKv&) const = default;
};
// In host memory, brought to a GPU for every step and used there; or for prefill steps alone, the same in all layers, and the host
// attends in decode steps.
struct PrefetchedKv {
  GpuId to;
  bool for_prefill_alone = false;
  bool operator==(const PrefetchedKv&) const = default;
};
// The newest positions, at least n_keep, on a GPU, which writes them; the others in host memory. Each side
// attends to its part.
struct SplitKv {
  GpuId hot;
  int64_t n_keep;
  int64_t n_blocks;  // cache blocks that fit on the GPU
  bool operator==(const SplitKv&) const = default;
};
// On the host, which attends. Blocks that memory has no room for are on disk (kv/spill.h) and read into host slots for
// every step.
struct SpilledKv {
  bool operator==(const SpilledKv&) const = default;
};
// Of layers that are divided over devices (tensor_parallel.h): each has some heads, and attends with them.
struct DividedKv {
  std::vector<DeviceId> devices;
  // Device i has the heads from first[i] up to first[i + 1], perhaps none: key-value heads, or if is_copied query heads,
  // which all read the same key-value head; each device then has a copy of that one's cache.
  std::vector<int64_t> first;
  bool is_copied = false;

  int64_t n(size_t i) const { return first[i + 1] - first[i]; }
  bool operator==(const DividedKv&) const = default;
};
// Likewise of recurrent layers: each device has some heads or channels, and what a state slot keeps of them.
struct DividedState {
  std::vector<DeviceId> devices;
  std::vector<int64_t> first;  // as in DividedKv, of groups of heads or channels (recurrent_cuts.h)
  // Of a state slot's floats (kv/cache.h), those that a device has.
  struct Part {
    ColumnRuns conv, recurrence;
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts = {};  // [device]
  int64_t n_heads = 0;           // in all groups
  bool are_channels = false;     // and not heads

  int64_t n(size_t i) const { return first[i + 1] - first[i]; }
  int64_t heads_of(size_t i) const { return n_heads / first.back() * n(i); }
  bool operator==(const DividedState&) const = default;
};
using KvHome = std::variant<ResidentKv, PrefetchedKv, SplitKv, SpilledKv, DividedKv, DividedState>;

// Returns the device that holds the weights; the host for weights on disk.
DeviceId holder(const WeightHome& home);
// Returns the device that runs the layer's ops with these weights; the GPU if rows are divided.
DeviceId computes_on(const WeightHome& home, StepKind kind);
// Returns the GPU that the host's weights are streamed to in such steps; none if they are resident or the
// host computes.
std::optional<GpuId> streamed_to(const WeightHome& home, StepKind kind);
// Returns the share of the rows that the device of computes_on() computes.
double row_share(const WeightHome& home, StepKind kind);
// Returns whether a GPU holds the weights or computes with them.
bool uses_gpu(const WeightHome& home);
// Returns the experts that a GPU keeps for such steps; null if none does.
const CachedExperts* cached_experts(const ExpertHome& home, StepKind kind);
// Returns whether such steps read only chosen experts.
bool reads_chosen(const ExpertHome& home, StepKind kind);
// Returns the home of the same weights on disk, where rows are not divided and no GPU keeps experts.
OnDisk moved_to_disk(const InMemory& home);
// Returns the home of experts of which only the chosen ones are read where the host computes.
OnDisk chosen_from_disk(const InMemory& home);
// Returns whether the host computes with single experts in decode steps, in memory or read from disk: a GPU can keep some.
bool can_be_cached(const ExpertHome& home);
// Returns the home of the same experts of which a GPU keeps some in decode steps, and of those of which none does.
ExpertHome with_cached_experts(ExpertHome home, const CachedExperts& cached);
ExpertHome without_cached_experts(ExpertHome home);

// Returns the device with room for every position of the cache; of a divided one the first that has heads.
DeviceId holder(const KvHome& home);
// Returns the device that attention runs on; the GPU of a split cache, and of a divided one the same as holder().
DeviceId attends_on(const KvHome& home, StepKind kind);
bool uses_gpu(const KvHome& home);

}  // namespace tandem
