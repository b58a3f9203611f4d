// Partition: a graph cut into segments in order, each on one device, with the copies between them and the
// layout of each device's activations. Layers with streamed weights have segments of their own, so that
// each waits for its weights as late as possible and frees its slot as early as possible. A node with a
// device of its own starts a new segment if the host waits for a result of the current one. The node of Graph::top runs where
// the logits are made, and not at all on the host, which has them. What a stage receives is on the host from the start.
#pragma once

#include <optional>
#include <vector>

#include "exec/parts.h"
#include "exec/placement.h"
#include "exec/slots.h"
#include "graph/graph.h"

namespace tandem {

// A tensor to copy from the device that made it to the one that needs it next. A copy to the host is issued
// right after the segment that made the tensor, and awaited only where the tensor is needed, so work issued
// since does not delay it.
struct Transfer {
  TensorId tensor = kNoTensor;
  DeviceId from, to;
};

// The weights of one layer that are streamed to a device. On the host: the weights that it reads from disk
// for itself.
struct StreamGroup {
  DeviceId device;
  int layer = 0;
  std::vector<TensorId> weights;
  bool on_disk = false;             // whether some of them are on disk
  SlotTurn turn;                    // in the stream slots of its device
  SlotTurn disk_turn;               // in the host slots, for its weights on disk
  bool fetched_every_step = false;  // false if it has a device slot to itself
  bool read_every_step = false;     // from disk; false if it stays in a device slot or a host slot

  // Returns whether every step needs its weights on disk in a host slot.
  bool passes_through_host() const { return on_disk && (device.is_host() || fetched_every_step); }
};

// Or a collective: its nodes, one for each device that takes part; `device` is then any of these. The sum of a step's part
// (parts.h) only begins there, and goes on beside the segments behind it, up to its first use or to a collective that is no such
// sum.
struct PlacedSegment {
  DeviceId device;
  std::optional<size_t> group;             // the streamed weights that the nodes read
  std::optional<size_t> cache;             // the prefetched cache that the nodes use
  std::vector<int32_t> nodes;              // indices into the graph, ascending
  std::vector<Transfer> transfers;         // to issue before the nodes run; all to this device
  std::vector<Transfer> sends;             // made here, copied to the host once the nodes are issued
  std::optional<int32_t> collective = {};  // its number
  StepRows rows = StepRows::all;           // of the step's tokens, those that the nodes compute
  bool begins_sum = false;                 // a collective that goes on
  std::vector<size_t> joins = {};          // segments of sums that are complete before this
};

struct Partition {
  std::vector<PlacedSegment> segments;         // in order of execution
  std::vector<StreamGroup> groups;             // in order of use
  std::vector<PrefetchedLayer> caches;         // by layer
  std::vector<std::vector<TensorId>> weights;  // [device] weight tensors used there, except streamed ones
  std::vector<std::vector<TensorId>> inputs;   // [device] input tensors used there
  // [device][TensorId]; kNowhere if the tensor is not in that arena
  std::vector<std::vector<size_t>> arena_offsets;
  std::vector<size_t> arena_bytes;  // [device]
  std::vector<Transfer> sent;       // Graph::sent and who makes it; on the host at the end
  std::vector<size_t> joined_last;  // segments of sums that are complete at the end
  DeviceId logits_device = DeviceId::host(), hidden_device = DeviceId::host();
  bool has_top = false;  // whether the logits' device picks out the largest, which saves a bus the others
  bool pins_fetched = false;  // Placement::pins_fetched
  StepParts parts;            // of the graph

  static constexpr size_t kNowhere = SIZE_MAX;
};

// Arenas::none skips the layout of activations, for callers that only ask what runs where and when.
enum class Arenas : uint8_t { laid_out, none };
Partition partition_graph(const Graph& graph, const Placement& placement, size_t n_devices,
                          Arenas arenas = Arenas::laid_out, const StepParts& parts = {});

}  // namespace tandem
