// Homes: where a layer's weights, experts and cache live and who computes with them. Each is a variant, so that
// a state without meaning cannot be written: nothing is streamed to the host, no row of what is on disk is
// divided, no cache is both prefetched and split. New ways to place something are new alternatives; whoever
// switches over a home then has to say what becomes of them. All others ask the functions below.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "graph/device_id.h"
#include "graph/graph.h"

namespace tandem {

// A step with several tokens of a sequence, or with one token of each. What the host holds may be used in
// different ways.
enum class StepKind : uint8_t { prefill, decode };
StepKind step_kind(const ShapeClass& shape);

// Who computes with matrices that the host holds.
struct HostComputes {
  bool operator==(const HostComputes&) const = default;
};
// They are brought to a GPU for every step, while the layers before compute.
struct Streamed {
  GpuId to;
  bool operator==(const Streamed&) const = default;
};
// So is a share of their rows, less than 1, and the host computes the others meanwhile (see divide_rows.h).
struct RowsShared {
  GpuId with;
  double share;
  bool operator==(const RowsShared&) const = default;
};
using MemoryUse = std::variant<HostComputes, Streamed, RowsShared>;
using DiskUse = std::variant<HostComputes, Streamed>;
// Streamed where the share is all of the rows.
MemoryUse use_on(GpuId gpu, double share);

// The GPU has a copy of its own.
struct Resident {
  GpuId gpu;
  bool operator==(const Resident&) const = default;
};
// In host memory, where the file is mapped.
struct InMemory {
  MemoryUse prefill, decode;
  bool operator==(const InMemory&) const = default;
};
// Read from disk into slots in host memory for every step, and used or streamed from there.
struct OnDisk {
  DiskUse prefill, decode;
  bool operator==(const OnDisk&) const = default;
};
using WeightHome = std::variant<Resident, InMemory, OnDisk>;
// Experts live like other weights, in a home of their own.
using ExpertHome = WeightHome;

// kv_write and attention run beside the cache.
struct ResidentKv {
  DeviceId device = DeviceId::host();
  bool operator==(const ResidentKv&) const = default;
};
// In host memory, brought to a GPU for every step and used there.
struct PrefetchedKv {
  GpuId to;
  bool operator==(const PrefetchedKv&) const = default;
};
// The newest positions, n_keep at the least, on a GPU, where they are written; the others in host memory.
// Each side attends over its part.
struct SplitKv {
  GpuId hot;
  int64_t n_keep;
  int64_t n_blocks;  // cache blocks that the GPU has room for
  bool operator==(const SplitKv&) const = default;
};
using KvHome = std::variant<ResidentKv, PrefetchedKv, SplitKv>;

// The device that holds the weights: the host also for what is on disk.
DeviceId holder(const WeightHome& home);
// The device that the layer's ops with these weights run on; of divided rows, the GPU.
DeviceId computes_on(const WeightHome& home, StepKind kind);
// Where the host's weights are brought to in such steps; none for those of a GPU.
std::optional<GpuId> streamed_to(const WeightHome& home, StepKind kind);
// The share of the rows that the device of computes_on() computes.
double row_share(const WeightHome& home, StepKind kind);
// Whether a GPU has any part in it.
bool uses_gpu(const WeightHome& home);
// The same weights read from disk. Rows are not divided then.
OnDisk moved_to_disk(const InMemory& home);

// The device that has room for every position of the cache.
DeviceId holder(const KvHome& home);
// The device that attention runs on; of a split cache, the GPU's.
DeviceId attends_on(const KvHome& home);
bool uses_gpu(const KvHome& home);

}  // namespace tandem
