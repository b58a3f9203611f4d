#include "exec/partition.h"

#include <algorithm>

#include "base/error.h"
#include "graph/memory_plan.h"

namespace tandem {
namespace {

constexpr size_t kArenaAlignment = 256;

class Partitioner {
 public:
  Partitioner(const Graph& graph, const Placement& placement, size_t n_devices, const StepParts& parts)
      : graph_(graph), placement_(placement), n_devices_(n_devices) {
    result_.parts = parts;
    result_.pins_fetched = placement.pins_fetched;
    made_on_.resize(graph.tensors.size());
    made_in_.assign(graph.tensors.size(), 0);
    host_uses_.assign(graph.tensors.size(), false);
    valid_.assign(n_devices_, std::vector<bool>(graph.tensors.size(), false));
    lifetimes_.assign(n_devices_,
                      std::vector<BufferLifetime>(graph.tensors.size(), BufferLifetime{0, -1, -1}));
  }

  Partition run(Arenas arenas) {
    result_.weights.resize(n_devices_);
    result_.inputs.resize(n_devices_);
    result_.caches = prefetched_layers(placement_, step_kind(graph_.shape));
    find_host_uses();
    for (const TensorId id : graph_.received) receive(id);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) place_node(static_cast<int32_t>(i));
    assign_slots();
    const auto end = static_cast<int32_t>(graph_.nodes.size());
    result_.joined_last = sums_;
    join_sums(end);
    for (const TensorId id : graph_.sent) bring_to_host(id, end);
    if (graph_.logits != kNoTensor) {
      result_.logits_device = made_on_[graph_.logits].value();
      touch(result_.logits_device, graph_.logits, end);
    }
    if (result_.has_top) touch(result_.logits_device, graph_.top, end);
    if (graph_.hidden != kNoTensor) {
      result_.hidden_device = made_on_[graph_.hidden].value();
      touch(result_.hidden_device, graph_.hidden, end);
    }
    if (arenas == Arenas::laid_out) lay_out();
    return std::move(result_);
  }

 private:
  void place_node(int32_t index) {
    const Node& node = graph_.nodes[index];
    const DeviceId device =
        makes_top(node) ? made_on_[graph_.logits].value() : placement_.runs_on(graph_, node);
    if (makes_top(node)) {
      if (device.is_host()) return;
      result_.has_top = true;
    }
    TANDEM_CHECK(device.index() < n_devices_);
    const std::optional<size_t> group = group_of(node, device);
    const std::optional<size_t> cache = cache_of(node);
    const auto* collective = std::get_if<CollectiveOp>(&node.op);
    const std::optional<int32_t> number = collective ? std::optional(collective->number) : std::nullopt;
    const StepRows rows = parts().rows_of(node);
    if (begins_segment(node, device, group, cache, number, rows)) {
      result_.segments.push_back(PlacedSegment{device, group, cache, {}, {}, {}, number, rows});
      segment_begin_ = index;
      host_waits_ = false;
      if (collective) {
        const bool goes_on = collective->kind == CollectiveKind::all_reduce && rows != StepRows::all;
        if (goes_on) begin_sum();
        if (!goes_on) join_sums(index);
      }
    }
    join_sums(segment_begin_, &node);
    if (group) result_.segments.back().group = group;
    result_.segments.back().nodes.push_back(index);
    for (TensorId id : inputs_of(node.op)) {
      if (!streams(node, id)) use(device, id, index);
    }
    if (node.output == kNoTensor) return;
    for (const TensorId id : {node.output, parts().view_of(node.output).whole}) {
      if (id == kNoTensor) continue;  // the last part completes what is there whole
      made_on_[id] = device;
      made_in_[id] = result_.segments.size() - 1;
      host_waits_ |= !device.is_host() && host_uses_[id];
      valid_[device.index()][id] = true;
    }
    touch(device, node.output, index);
  }

  // ---- Sums that go on ----

  const StepParts& parts() const { return result_.parts; }

  void begin_sum() {
    result_.segments.back().begins_sum = true;
    sums_.push_back(result_.segments.size() - 1);
  }
  // Before the newest segment, or at the end: all sums, or those that the node uses. What they read and write stays in use
  // until then.
  void join_sums(int32_t index, const Node* user = nullptr) {
    const size_t newest = result_.segments.size() - 1;
    std::erase_if(sums_, [&](size_t sum) {
      if (user && (sum == newest || !uses_sum(*user, sum))) return false;
      if (index < static_cast<int32_t>(graph_.nodes.size())) result_.segments.back().joins.push_back(sum);
      for_each_of_sum(sum, [&](DeviceId device, TensorId id) { touch(device, id, index); });
      return true;
    });
  }
  bool uses_sum(const Node& node, size_t sum) const {
    bool uses = false;
    const InputList inputs = inputs_of(node.op);
    for_each_of_sum(sum, [&](DeviceId, TensorId id) {
      const TensorId mine = graph_.tensor(id).storage;  // other parts may be beside it in the same memory
      uses |= std::ranges::any_of(inputs, [&](TensorId input) {
        const TensorId storage = graph_.tensor(input).storage;
        return storage == mine || storage == memory_of(id);
      });
    });
    return uses;
  }
  void for_each_of_sum(size_t sum, const auto& f) const {
    for (const int32_t i : result_.segments[sum].nodes) {
      const Node& node = graph_.nodes[static_cast<size_t>(i)];
      for (const TensorId id : {std::get<CollectiveOp>(node.op).x, node.output}) {
        if (id != kNoTensor) f(node.device.value(), id);
      }
    }
  }
  // The tensor whose memory it lies in.
  TensorId memory_of(TensorId id) const {
    const TensorId storage = graph_.tensor(id).storage;
    const TensorId whole = parts().view_of(storage).whole;
    return whole == kNoTensor ? storage : graph_.tensor(whole).storage;
  }

  bool makes_top(const Node& node) const { return graph_.top != kNoTensor && node.output == graph_.top; }

  void find_host_uses() {
    for (const Node& node : graph_.nodes) {
      if (makes_top(node) || !placement_.runs_on(graph_, node).is_host()) continue;
      for (TensorId id : inputs_of(node.op)) host_uses_[id] = true;
    }
  }

  bool streams(const Node& node, TensorId id) const {
    const Weight* weight = graph_.tensor(id).weight;
    return weight && placement_.streams(graph_, node, *weight);
  }

  // Adds the node's streamed weights to their group and returns it; none if the node reads none.
  std::optional<size_t> group_of(const Node& node, DeviceId device) {
    std::optional<size_t> group;
    for (TensorId id : inputs_of(node.op)) {
      if (!streams(node, id)) continue;
      group = find_group(device, node.layer);
      StreamGroup& found = result_.groups[*group];
      found.on_disk |= placement_.on_disk(*graph_.tensor(id).weight);
      std::vector<TensorId>& weights = found.weights;
      if (std::find(weights.begin(), weights.end(), id) == weights.end()) weights.push_back(id);
    }
    return group;
  }

  // Returns the layer's group on the device; makes it if there is none.
  size_t find_group(DeviceId device, int layer) {
    auto& groups = result_.groups;
    for (size_t i = groups.size(); i > 0 && groups[i - 1].layer == layer; --i) {
      if (groups[i - 1].device == device) return i - 1;
    }
    groups.push_back(StreamGroup{device, layer, {}});
    return groups.size() - 1;
  }

  // Returns the prefetched cache that the node uses; none if it uses none.
  std::optional<size_t> cache_of(const Node& node) const {
    if (!uses_cache(node.op)) return std::nullopt;
    const auto found = std::ranges::find(result_.caches, node.layer, &PrefetchedLayer::layer);
    if (found == result_.caches.end()) return std::nullopt;
    return static_cast<size_t>(found - result_.caches.begin());
  }

  bool begins_segment(const Node& node, DeviceId device, std::optional<size_t> group,
                      std::optional<size_t> cache, std::optional<int32_t> collective, StepRows rows) const {
    if (result_.segments.empty()) return true;
    const PlacedSegment& last = result_.segments.back();
    if (collective || last.collective) return collective != last.collective;
    if (last.device != device || last.cache != cache || last.rows != rows) return true;
    if (waits_for_gpu(node, device) && follows_deferred(last)) return true;
    if (node.device && host_waits_) return true;
    // A prefetched cache is passed on after the segment that uses it, so that there is one.
    if (group) return group != last.group && (last.group || !cache);
    return last.group && result_.groups[*last.group].layer != node.layer;
  }

  // What GPUs compute for the node may not be there while the host computes deferred experts.
  bool follows_deferred(const PlacedSegment& segment) const {
    const auto* op = std::get_if<MoeFfnOp>(&graph_.nodes[static_cast<size_t>(segment.nodes.back())].op);
    return op && op->joins_later;
  }
  bool waits_for_gpu(const Node& node, DeviceId device) const {
    return device.is_host() && std::ranges::any_of(inputs_of(node.op), [&](TensorId id) {
             return made_on_[id] && !valid_[device.index()][id];
           });
  }

  void use(DeviceId device, TensorId id, int32_t index) {
    if (graph_.tensor(id).role == Role::input) id = memory_of(id);
    auto valid = valid_[device.index()].begin() + id;
    const Tensor& t = graph_.tensor(id);
    if (t.role != Role::activation) {
      if (!*valid) {
        auto& list = t.role == Role::weight ? result_.weights : result_.inputs;
        list[device.index()].push_back(id);
        *valid = true;
      }
      if (t.role == Role::input) touch_whole_run(device, id);
      return;
    }
    if (!*valid) {
      const DeviceId from = made_on_[id].value();
      // A copy to the host is issued right after the segment that made the tensor, any other copy when the
      // segment that needs it begins. Source and destination are live from there on.
      result_.segments.back().transfers.push_back(Transfer{id, from, device});
      int32_t issued = segment_begin_;
      if (device.is_host()) {
        PlacedSegment& maker = result_.segments[made_in_[id]];
        maker.sends.push_back(Transfer{id, from, device});
        issued = maker.nodes.back();
      }
      touch(from, id, issued);
      touch(device, id, issued);
      *valid = true;
    }
    touch(device, id, index);
  }

  void receive(TensorId id) {
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const auto other = static_cast<TensorId>(i);
      if (other != id && parts().view_of(other).whole != id) continue;
      made_on_[i] = DeviceId::host();
      valid_[0][i] = true;
    }
    touch(DeviceId::host(), id, 0);
  }

  // For a stage that needs it, once all nodes have run.
  void bring_to_host(TensorId id, int32_t end) {
    const DeviceId from = made_on_[id].value();
    result_.sent.push_back(Transfer{id, from, DeviceId::host()});
    if (!valid_[0][id]) {
      PlacedSegment& maker = result_.segments[made_in_[id]];
      maker.sends.push_back(Transfer{id, from, DeviceId::host()});
      touch(from, id, maker.nodes.back());
      touch(DeviceId::host(), id, maker.nodes.back());
      valid_[0][id] = true;
    }
    touch(DeviceId::host(), id, end);
  }

  // Extends the lifetime of the tensor's memory on a device to node `index`.
  void touch(DeviceId device, TensorId id, int32_t index) {
    const TensorId whole = parts().view_of(id).whole;
    BufferLifetime& life = lifetimes_[device.index()][memory_of(id)];
    life.n_bytes = std::max(life.n_bytes, graph_.tensor(whole == kNoTensor ? id : whole).n_bytes());
    life.first = life.first < 0 ? index : std::min(life.first, index);
    life.last = std::max(life.last, index);
  }

  void touch_whole_run(DeviceId device, TensorId id) {
    touch(device, id, 0);
    touch(device, id, static_cast<int32_t>(graph_.nodes.size()));
  }

  // The groups of a device take turns in its slots; those on disk take turns in the host's slots.
  void assign_slots() {
    std::vector<StreamGroup>& groups = result_.groups;
    for (size_t d = 0; d < n_devices_; ++d) {
      const DeviceId device = DeviceId::at(d);
      std::vector<size_t> items;
      for (size_t g = 0; g < groups.size(); ++g) {
        if (device.is_host() ? groups[g].on_disk : groups[g].device == device) items.push_back(g);
      }
      const std::vector<SlotTurn> turns =
          slot_turns(items, device.is_host() ? placement_.n_disk_slots : placement_.n_stream_slots);
      for (size_t i = 0; i < items.size(); ++i) {
        (device.is_host() ? groups[items[i]].disk_turn : groups[items[i]].turn) = turns[i];
      }
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      groups[g].fetched_every_step = !groups[g].device.is_host() && groups[g].turn.next != g;
    }
    std::vector<int> n_passing(groups.size(), 0);  // [host slot]
    for (const StreamGroup& g : groups) n_passing[g.disk_turn.slot] += g.passes_through_host();
    for (StreamGroup& g : groups) {
      g.read_every_step = g.passes_through_host() && n_passing[g.disk_turn.slot] > 1;
    }
  }

  void lay_out() {
    result_.arena_bytes.assign(n_devices_, 0);
    for (size_t device = 0; device < n_devices_; ++device) {
      std::vector<BufferLifetime> buffers;
      std::vector<size_t> ids;
      for (size_t id = 0; id < graph_.tensors.size(); ++id) {
        if (lifetimes_[device][id].first < 0) continue;
        buffers.push_back(lifetimes_[device][id]);
        ids.push_back(id);
      }
      const MemoryPlan plan = plan_memory(buffers, kArenaAlignment);
      std::vector<size_t> offsets(graph_.tensors.size(), Partition::kNowhere);
      for (size_t i = 0; i < ids.size(); ++i) offsets[ids[i]] = plan.offsets[i];
      for (size_t id = 0; id < graph_.tensors.size(); ++id) {
        const StepParts::View view = parts().view_of(static_cast<TensorId>(id));
        const TensorId memory = memory_of(static_cast<TensorId>(id));
        if (view.whole != kNoTensor && offsets[memory] != Partition::kNowhere)
          offsets[id] = offsets[memory] + view.offset;
      }
      result_.arena_offsets.push_back(std::move(offsets));
      result_.arena_bytes[device] = plan.n_bytes;
    }
  }

  const Graph& graph_;
  const Placement& placement_;
  size_t n_devices_;
  int32_t segment_begin_ = 0;
  std::vector<size_t> sums_;                            // segments of those that go on, by age
  bool host_waits_ = false;                             // for a result of the current segment
  std::vector<bool> host_uses_;                         // [TensorId]
  std::vector<std::optional<DeviceId>> made_on_;        // [TensorId] device of the producer; inputs: none
  std::vector<size_t> made_in_;                         // [TensorId] segment of the producer
  std::vector<std::vector<bool>> valid_;                // [device][TensorId] the device has the value
  std::vector<std::vector<BufferLifetime>> lifetimes_;  // [device][storage TensorId]
  Partition result_;
};

}  // namespace

Partition partition_graph(const Graph& graph, const Placement& placement, size_t n_devices, Arenas arenas,
                          const StepParts& parts) {
  return Partitioner(graph, placement, n_devices, parts).run(arenas);
}

}  // namespace tandem
