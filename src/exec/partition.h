// Cuts a graph into segments, one after the other, each on one device, with the copies that the cuts make
// necessary, and lays out each device's activations. Layers whose weights are streamed are segments of their
// own, so that each can wait for its weights, and the slot they lie in is free again, as late and as soon as
// may be. A node that says itself where it runs begins a segment when the host waits for what was made
// before.
#pragma once

#include <vector>

#include "exec/placement.h"
#include "graph/graph.h"

namespace tandem {

// A tensor that crosses from the device where it was made to the one that needs it next. What crosses to the
// host is on its way as soon as the stage that made it was issued, and only waited for where it is needed, so
// that what was issued since does not hold it up.
struct Transfer {
  TensorId tensor = kNoTensor;
  DeviceId from, to;
};

// The weights of one layer that are streamed to a device; to the host: those that it reads from disk for itself.
struct StreamGroup {
  DeviceId device;
  int layer = 0;
  std::vector<TensorId> weights;
  bool on_disk = false;  // some of them are
};

struct Stage {
  DeviceId device;
  int group = -1;                   // index of the streamed weights that the nodes read; -1: none
  int kv_layer = -1;                // layer whose cache was brought here for the nodes; -1: none
  std::vector<int32_t> nodes;       // indices into the graph, ascending
  std::vector<Transfer> transfers;  // to be done before the nodes run; all go to this device
  std::vector<TensorId> sends;      // made here, to be on their way to the host once the nodes were issued
};

struct Partition {
  std::vector<Stage> stages;  // in order of execution
  std::vector<std::vector<size_t>>
      arena_offsets;                           // [device][TensorId], kNowhere where it is not in that arena
  std::vector<size_t> arena_bytes;             // [device]
  std::vector<std::vector<TensorId>> weights;  // [device] weight tensors used there, but for streamed ones
  std::vector<StreamGroup> groups;             // in order of use
  std::vector<std::vector<TensorId>> inputs;   // [device] input tensors used there
  DeviceId logits_device = DeviceId::host();

  static constexpr size_t kNowhere = SIZE_MAX;
};

// Without arenas for those who only ask what runs where, and when.
enum class Arenas : uint8_t { laid_out, none };
Partition partition_graph(const Graph& graph, const Placement& placement, size_t n_devices,
                          Arenas arenas = Arenas::laid_out);

}  // namespace tandem
