#include "exec/partition.h"

#include <algorithm>

#include "base/error.h"
#include "graph/memory_plan.h"

namespace tandem {
namespace {

constexpr size_t kArenaAlignment = 256;

class Partitioner {
 public:
  Partitioner(const Graph& graph, const Placement& placement, size_t n_devices)
      : graph_(graph), placement_(placement), n_devices_(n_devices) {
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
    find_host_uses();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) place_node(static_cast<int32_t>(i));
    const auto end = static_cast<int32_t>(graph_.nodes.size());
    result_.logits_device = made_on_[static_cast<size_t>(graph_.logits)].value();
    touch(result_.logits_device, graph_.logits, end);
    if (arenas == Arenas::laid_out) lay_out();
    return std::move(result_);
  }

 private:
  void place_node(int32_t index) {
    const Node& node = graph_.nodes[static_cast<size_t>(index)];
    const DeviceId device = placement_.runs_on(graph_, node);
    TANDEM_CHECK(device.index() < n_devices_);
    const int group = group_of(node, device);
    const int kv_layer = prefetched_layer(node);
    if (begins_stage(node, device, group) || result_.stages.back().kv_layer != kv_layer) {
      result_.stages.push_back(Stage{device, group, kv_layer, {}, {}, {}});
      stage_begin_ = index;
      host_waits_ = false;
    }
    result_.stages.back().nodes.push_back(index);
    for (TensorId id : inputs_of(node.op)) {
      if (!streams(node, id)) use(device, id, index);
    }
    if (node.output == kNoTensor) return;
    made_on_[static_cast<size_t>(node.output)] = device;
    made_in_[static_cast<size_t>(node.output)] = result_.stages.size() - 1;
    host_waits_ |= !device.is_host() && host_uses_[static_cast<size_t>(node.output)];
    valid_[device.index()][static_cast<size_t>(node.output)] = true;
    touch(device, node.output, index);
  }

  void find_host_uses() {
    for (const Node& node : graph_.nodes) {
      if (!placement_.runs_on(graph_, node).is_host()) continue;
      for (TensorId id : inputs_of(node.op)) host_uses_[static_cast<size_t>(id)] = true;
    }
  }

  bool streams(const Node& node, TensorId id) const {
    const Weight* weight = graph_.tensor(id).weight;
    return weight && placement_.streams(graph_, node, *weight);
  }

  // The group of the node's streamed weights, after adding them to it; -1 when it reads none.
  int group_of(const Node& node, DeviceId device) {
    int group = -1;
    for (TensorId id : inputs_of(node.op)) {
      if (!streams(node, id)) continue;
      group = find_group(device, node.layer);
      StreamGroup& found = result_.groups[static_cast<size_t>(group)];
      found.on_disk |= placement_.on_disk(*graph_.tensor(id).weight);
      std::vector<TensorId>& weights = found.weights;
      if (std::find(weights.begin(), weights.end(), id) == weights.end()) weights.push_back(id);
    }
    return group;
  }

  // The layer's group on the device, which may be a new one.
  int find_group(DeviceId device, int layer) {
    auto& groups = result_.groups;
    for (size_t i = groups.size(); i > 0 && groups[i - 1].layer == layer; --i) {
      if (groups[i - 1].device == device) return static_cast<int>(i) - 1;
    }
    groups.push_back(StreamGroup{device, layer, {}});
    return static_cast<int>(groups.size()) - 1;
  }

  // The layer whose cache the node uses where it was brought to; -1: none.
  int prefetched_layer(const Node& node) const {
    const bool uses_cache =
        std::holds_alternative<KvWriteOp>(node.op) || std::holds_alternative<AttentionOp>(node.op);
    if (!uses_cache) return -1;
    const KvHome& home = placement_.layers[static_cast<size_t>(node.layer)].kv;
    return std::holds_alternative<PrefetchedKv>(home) ? node.layer : -1;
  }

  bool begins_stage(const Node& node, DeviceId device, int group) const {
    if (result_.stages.empty() || result_.stages.back().device != device) return true;
    if (node.device && host_waits_) return true;
    const int current = result_.stages.back().group;
    if (group >= 0) return group != current;
    return current >= 0 && result_.groups[static_cast<size_t>(current)].layer != node.layer;
  }

  void use(DeviceId device, TensorId id, int32_t index) {
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
      const DeviceId from = made_on_[static_cast<size_t>(id)].value();
      // A copy to the host is issued behind the stage that made the tensor, others when the stage begins that
      // needs it: source and destination live from there on.
      result_.stages.back().transfers.push_back(Transfer{id, from, device});
      int32_t issued = stage_begin_;
      if (device.is_host()) {
        Stage& maker = result_.stages[made_in_[static_cast<size_t>(id)]];
        maker.sends.push_back(id);
        issued = maker.nodes.back();
      }
      touch(from, id, issued);
      touch(device, id, issued);
      *valid = true;
    }
    touch(device, id, index);
  }

  // The memory of a tensor is in use on a device at node `index`.
  void touch(DeviceId device, TensorId id, int32_t index) {
    const TensorId storage = graph_.tensor(id).storage;
    BufferLifetime& life = lifetimes_[device.index()][static_cast<size_t>(storage)];
    life.n_bytes = std::max(life.n_bytes, graph_.tensor(id).n_bytes());
    life.first = life.first < 0 ? index : std::min(life.first, index);
    life.last = std::max(life.last, index);
  }

  void touch_whole_run(DeviceId device, TensorId id) {
    touch(device, id, 0);
    touch(device, id, static_cast<int32_t>(graph_.nodes.size()));
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
      result_.arena_offsets.push_back(std::move(offsets));
      result_.arena_bytes[device] = plan.n_bytes;
    }
  }

  const Graph& graph_;
  const Placement& placement_;
  size_t n_devices_;
  int32_t stage_begin_ = 0;
  bool host_waits_ = false;                             // for something that the current stage has made
  std::vector<bool> host_uses_;                         // [TensorId]
  std::vector<std::optional<DeviceId>> made_on_;        // [TensorId] device of the producer; inputs: none
  std::vector<size_t> made_in_;                         // [TensorId] its stage
  std::vector<std::vector<bool>> valid_;                // [device][TensorId] the value is there
  std::vector<std::vector<BufferLifetime>> lifetimes_;  // [device][storage TensorId]
  Partition result_;
};

}  // namespace

Partition partition_graph(const Graph& graph, const Placement& placement, size_t n_devices, Arenas arenas) {
  return Partitioner(graph, placement, n_devices).run(arenas);
}

}  // namespace tandem
