// Cuts a graph into segments, one after the other, each on one device, with the copies that the cuts make
// necessary, and lays out each device's activations. Layers whose weights are streamed are segments of their
// own, so that each can wait for its weights, and the slot they lie in is free again, as late and as soon as
// may be. A node that says itself where it runs begins a segment when the host waits for what was made
// before.
#pragma once

#include <optional>
#include <vector>

#include "exec/placement.h"
#include "exec/slots.h"
#include "graph/graph.h"

namespace tandem {

// A tensor that crosses from the device where it was made to the one that needs it next. What crosses to the
// host is on its way as soon as the segment that made it was issued, and only waited for where it is needed,
// so that what was issued since does not hold it up.
struct Transfer {
  TensorId tensor = kNoTensor;
  DeviceId from, to;
};

// The weights of one layer that are streamed to a device; to the host: those that it reads from disk for
// itself.
struct StreamGroup {
  DeviceId device;
  int layer = 0;
  std::vector<TensorId> weights;
  bool on_disk = false;             // some of them are
  SlotTurn turn;                    // in the slots of its device
  SlotTurn disk_turn;               // of what is on disk: in the slots of the host
  bool fetched_every_step = false;  // not when it has a slot of its device to itself
  bool read_every_step = false;     // from disk; not when it stays in a slot, there or of the host

  // Whether what is on disk is in its slot of the host again and again.
  bool passes_through_host() const { return on_disk && (device.is_host() || fetched_every_step); }
};

struct PlacedSegment {
  DeviceId device;
  std::optional<size_t> group;      // of streamed weights that the nodes read
  std::optional<size_t> cache;      // that was brought here for the nodes
  std::vector<int32_t> nodes;       // indices into the graph, ascending
  std::vector<Transfer> transfers;  // to be done before the nodes run; all go to this device
  std::vector<TensorId> sends;      // made here, to be on their way to the host once the nodes were issued
};

struct Partition {
  std::vector<PlacedSegment> segments;         // in order of execution
  std::vector<StreamGroup> groups;             // in order of use
  std::vector<PrefetchedLayer> caches;         // by layer
  std::vector<std::vector<TensorId>> weights;  // [device] weight tensors used there, but for streamed ones
  std::vector<std::vector<TensorId>> inputs;   // [device] input tensors used there
  // [device][TensorId], kNowhere where it is not in that arena
  std::vector<std::vector<size_t>> arena_offsets;
  std::vector<size_t> arena_bytes;  // [device]
  DeviceId logits_device = DeviceId::host();

  static constexpr size_t kNowhere = SIZE_MAX;
};

// Without arenas for those who only ask what runs where, and when.
enum class Arenas : uint8_t { laid_out, none };
Partition partition_graph(const Graph& graph, const Placement& placement, size_t n_devices,
                          Arenas arenas = Arenas::laid_out);

}  // namespace tandem
