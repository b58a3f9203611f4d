#include "plan/footprint.h"

#include <algorithm>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "base/overloaded.h"
#include "exec/expert_room.h"
#include "exec/kv_stream.h"
#include "exec/placed_graph.h"
#include "exec/weight_stream.h"

namespace tandem {
namespace {

// The cache as a device will see it, without addresses.
std::vector<std::vector<KvLayer>> kv_without_memory(const KvConfig& kv, const Placement& placement,
                                                    size_t n_devices) {
  std::vector<std::vector<KvLayer>> layers(n_devices, std::vector<KvLayer>(kv.layers.size()));
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    const KvHome& home = placement.layers[i].kv;
    const HeadPools divided = divided_pools(home, kv.layers[i]);
    for (const HeadPools::Pool& pool : divided.pools)
      layers[pool.device.index()][i] = pool_shape(kv_layer_shape(kv, i), pool);
    if (!divided.pools.empty()) continue;
    layers[holder(home).index()][i] = kv_layer_shape(kv, i, holder(home));
    std::visit(
        Overloaded{[](const ResidentKv&) {}, [](const DividedKv&) {}, [](const DividedState&) {},
                   [](const SpilledKv&) {},
                   [&](const PrefetchedKv& p) { layers[p.to.index()][i] = kv_layer_shape(kv, i); },
                   [&](const SplitKv& s) { layers[s.hot.index()][i] = kv_layer_shape(kv, i, s.n_blocks); }},
        home);
  }
  return layers;
}

// Streamed weights that a step brings to the devices.
size_t streamed_bytes(const Graph& graph, const Partition& partition, const DeviceModels& devices) {
  size_t n_bytes = 0;
  for (const StreamGroup& group : partition.groups) {
    if (!group.fetched_every_step) continue;
    for (TensorId id : group.weights) {
      n_bytes += devices[group.device.index()]->weight_bytes(*graph.tensor(id).weight);
    }
  }
  return n_bytes;
}

// Bytes that a step reads from disk.
size_t disk_bytes(const Graph& graph, const Partition& partition) {
  size_t n_bytes = 0;
  for (const StreamGroup& group : partition.groups) {
    if (group.read_every_step) n_bytes += disk_layout(graph, group).n_bytes;
  }
  return n_bytes;
}

void add_collective(const Graph& graph, const PlacedSegment& segment, BusBytes& bus) {
  bool reduces = false;
  for (const int32_t i : segment.nodes) {
    const Node& node = graph.nodes[static_cast<size_t>(i)];
    const auto& op = std::get<CollectiveOp>(node.op);
    const size_t d = node.device.value().index();
    reduces = op.kind == CollectiveKind::all_reduce;
    bus.collectives.resize(std::max(bus.collectives.size(), d + 1));
    if (node.device->is_host()) continue;
    for (const TensorId id : {op.x, node.output}) {
      if (id != kNoTensor) bus.collectives[d] += row_bytes(DType::F32, graph.tensor(id).n_cols);
    }
  }
  ++(reduces ? bus.n_all_reduce : bus.n_all_gather);
}

BusBytes bus_bytes(const Graph& graph, const Partition& partition) {
  BusBytes bus;
  bus.links.resize(partition.inputs.size());
  const auto cross = [&](DeviceId device, size_t n_bytes) {
    if (!device.is_host()) bus.links[device.index()] += n_bytes;
  };
  for (const PlacedSegment& segment : partition.segments) {
    if (segment.collective) add_collective(graph, segment, bus);
    for (const Transfer& t : segment.transfers) {
      // Between two GPUs: through the host.
      const size_t crossings = t.from.is_host() || t.to.is_host() ? 1 : 2;
      const size_t n_bytes = row_bytes(graph.tensor(t.tensor).dtype, graph.tensor(t.tensor).n_cols);
      bus.activations += crossings * n_bytes;
      cross(t.from, n_bytes);
      cross(t.to, n_bytes);
      ++bus.n_transfers;
    }
  }
  for (const Transfer& t : partition.sent) {
    if (t.from.is_host()) continue;
    const size_t n_bytes = row_bytes(graph.tensor(t.tensor).dtype, graph.tensor(t.tensor).n_cols);
    bus.activations += n_bytes;
    cross(t.from, n_bytes);
    ++bus.n_transfers;
  }
  if (!partition.logits_device.is_host()) {
    const Tensor& logits = graph.tensor(partition.has_top ? graph.top : graph.logits);
    bus.logits = row_bytes(logits.dtype, logits.n_cols);
    cross(partition.logits_device, bus.logits);
  }
  if (graph.hidden != kNoTensor && !partition.hidden_device.is_host())
    bus.logits += row_bytes(DType::F32, graph.tensor(graph.hidden).n_cols);
  for (size_t d = 1; d < bus.collectives.size(); ++d) bus.links[d] += bus.collectives[d];
  for (size_t d = 1; d < partition.inputs.size(); ++d) {
    for (TensorId id : partition.inputs[d]) {
      const Input which = graph.tensor(id).input;
      if (which == Input::hidden) {
        bus.inputs += row_bytes(DType::F32, graph.tensor(id).n_cols);
        continue;
      }
      (which == Input::block_table  ? bus.inputs_per_block
       : which == Input::hot_blocks ? bus.inputs_per_hot_block
                                    : bus.inputs) += (which == Input::states ? 2 : 1) * sizeof(int32_t);
    }
  }
  return bus;
}

// All that an executor compiles of the graphs.
std::vector<PlacedGraph> placed_graphs(const std::vector<const Graph*>& graphs, const Placement& placement) {
  std::vector<PlacedGraph> placed;
  for (const Graph* graph : graphs) placed.emplace_back(*graph, placement);
  for (size_t g = 0; g < graphs.size(); ++g) {
    std::optional<PartedGraph> parted = parted_graph(*placed[g], placement);
    if (parted) placed.emplace_back(std::move(*parted));
  }
  if (!placement.splits_caches()) return placed;
  for (const Graph* graph : graphs) placed.emplace_back(*graph, placement, CacheReach::hot_cache);
  return placed;
}

bool keeps_experts(const Placement& placement, DeviceId device) {
  return std::ranges::any_of(placement.layers, [&](const LayerPlacement& layer) {
    const CachedExperts* cached = cached_experts(layer.experts, StepKind::decode);
    return cached && cached->on == device;
  });
}

}  // namespace

HeadPools divided_pools(const KvHome& home, const KvShape& shape) {
  HeadPools heads;
  if (const auto* kv = std::get_if<DividedKv>(&home)) {
    heads.are_copies = kv->is_copied;
    for (size_t i = 0; i < kv->devices.size(); ++i) {
      if (kv->n(i) > 0)
        heads.pools.push_back({kv->devices[i], kv->is_copied ? shape.n_head_kv : kv->n(i), {}, {}});
    }
  }
  if (const auto* state = std::get_if<DividedState>(&home)) {
    for (size_t i = 0; i < state->devices.size(); ++i) {
      const DividedState::Part& part = state->parts[i];
      if (state->n(i) > 0) heads.pools.push_back({state->devices[i], 1, part.conv, part.recurrence});
    }
  }
  return heads;
}

std::string size_text(size_t bytes) {
  const auto n = static_cast<double>(bytes);
  if (bytes >= size_t{1} << 30) return format("{:.2f} GiB", n / (1 << 30));
  if (bytes >= size_t{1} << 20) return format("{:.1f} MiB", n / (1 << 20));
  return format("{:.1f} KiB", n / (1 << 10));
}

Footprint footprint(const std::vector<const Graph*>& graphs, const DeviceModels& devices,
                    const Placement& placement, const KvConfig& kv) {
  Footprint result;
  result.devices.resize(devices.size());
  const auto kv_layers = kv_without_memory(kv, placement, devices.size());
  std::vector<std::set<const Weight*>> weights(devices.size());  // on the host whole ones, for it maps them
  std::set<const Weight*> on_disk;
  std::vector<SlotNeeds> slots(devices.size());
  const std::vector<PlacedGraph> placed = placed_graphs(graphs, placement);
  for (size_t g = 0; g < placed.size(); ++g) {
    const Graph& graph = *placed[g];
    const Partition partition =
        partition_graph(graph, placement, devices.size(), Arenas::laid_out, placed[g].parts());
    if (g == 0) result.per_token = bus_bytes(graph, partition);
    for (size_t d = 0; d < devices.size(); ++d) {
      DeviceBytes& bytes = result.devices[d];
      bytes.activations = std::max(bytes.activations, partition.arena_bytes[d]);
      for (TensorId id : partition.weights[d]) {
        const Weight* w = graph.tensor(id).weight;
        if (d == 0 && placement.on_disk(*w)) {  // chosen experts
          on_disk.insert(w);
          continue;
        }
        weights[d].insert(devices[d]->info().host_memory ? placement.slices->whole(w) : w);
      }
      slots[d] = slots[d].united(slot_needs(graph, partition, *devices[d], DeviceId::at(d)));
    }
    if (g == 0) {
      result.per_token.weights = streamed_bytes(graph, partition, devices);
      result.per_token.disk = disk_bytes(graph, partition);
      result.expert_slots = expert_room(graph, placement).n_bytes();
    }
    for (const StreamGroup& group : partition.groups) {
      for (TensorId id : group.weights) {
        const Weight* weight = placement.slices->whole(graph.tensor(id).weight);
        (placement.on_disk(*weight) ? on_disk : weights[0]).insert(weight);  // the host reads it, to send it
      }
    }
    for (const PlacedSegment& placed_segment : partition.segments) {
      if (placed_segment.collective) continue;
      const size_t d = placed_segment.device.index();
      const Segment segment{&graph, placed_segment.nodes, {}, kv_layers[d]};
      result.devices[d].scratch = std::max(result.devices[d].scratch, devices[d]->scratch_bytes(segment));
    }
  }
  result.devices[0].staging = result.expert_slots;
  const std::vector<PrefetchedLayer> caches = prefetched_layers(placement);
  for (size_t d = 0; d < devices.size(); ++d) {
    const size_t n_slot_bytes =
        slots[d].n_bytes() + kv_slot_needs(caches, kv_layers[0], DeviceId::at(d)).n_bytes();
    const PinnedBytes pinned = devices[d]->pinned_bytes();
    result.devices[d].staging += n_slot_bytes;
    if (d > 0 && std::ranges::any_of(placed, [](const PlacedGraph& g) { return g.parts().on(); }))
      result.devices[0].staging += pinned.side_copies;
    const bool fetches = n_slot_bytes > 0 || keeps_experts(placement, DeviceId::at(d));
    result.devices[0].staging += pinned.copies + (fetches ? pinned.fetches : 0);
    for (const Weight* w : weights[d]) {
      result.devices[d].weights += devices[d]->weight_bytes(*w);
      if (devices[d]->info().host_memory) result.mapped_weights += w->n_bytes();
    }
  }
  for (const Weight* w : on_disk) result.disk_weights += w->n_bytes();
  std::vector<size_t> tables(devices.size());
  const auto hold = [&](DeviceId device, const KvLayer& layer) {
    result.devices[device.index()].kv += kv_layer_bytes(layer);
    if (!device.is_host())
      tables[device.index()] = std::max(tables[device.index()], open_table_bytes({&layer, 1}));
  };
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    const KvHome& home = placement.layers[i].kv;
    if (!divided_pools(home, kv.layers[i]).pools.empty()) {
      for (size_t d = 0; d < devices.size(); ++d) hold(DeviceId::at(d), kv_layers[d][i]);
      continue;
    }
    hold(holder(home), kv_layers[holder(home).index()][i]);
    std::visit(Overloaded{[](const ResidentKv&) {}, [](const DividedKv&) {}, [](const DividedState&) {},
                          [&](const PrefetchedKv& p) {
                            if (p.for_prefill_alone) return;
                            result.per_token.kv_in_per_block += kv_block_bytes(kv_layers[0][i]);
                            result.per_token.kv_out += kv_written_bytes(kv_layers[0][i]);
                          },
                          [&](const SpilledKv&) {
                            const auto n_blocks = static_cast<size_t>(kv_layers[0][i].n_spilled - 1);
                            const size_t n_bytes = n_blocks * kv_block_bytes(kv_layers[0][i]);
                            result.disk_kv += n_bytes;
                            if (kv.layers[i].window == 0) result.per_token.kv_disk += n_bytes;
                          },
                          [&](const SplitKv& split) {
                            const KvLayer& hot = kv_layers[split.hot.index()][i];
                            hold(split.hot, hot);
                            result.per_token.kv_moved_per_block += kv_block_bytes(hot);
                          }},
               home);
  }
  for (size_t d = 0; d < devices.size(); ++d) result.devices[d].kv += tables[d];
  return result;
}

}  // namespace tandem
