#include "plan/cost.h"

#include <algorithm>
#include <deque>

#include "base/checked.h"
#include "exec/kv_stream.h"
#include "plan/memory_traffic.h"

namespace tandem {
namespace {

// When the host and the devices are done with what they were given.
class Timeline {
 public:
  Timeline(const Graph& graph, const Partition& partition, const Placement& placement,
           const DeviceModels& devices, std::span<const DeviceRates> rates, const KvConfig& kv,
           const StepLoad& load)
      : graph_(graph),
        partition_(partition),
        rates_(rates),
        load_(load),
        kv_(kv),
        memory_(rates[0].memory()),
        at_(devices.size()),
        bus_(devices.size()),
        moves_s_(devices.size()),
        sent_(graph.tensors.size(), 0.0),
        waiting_(devices.size()) {
    for (size_t d = 0; d < devices.size(); ++d) {
      needs_.push_back(slot_needs(graph, partition, placement, *devices[d], DeviceId::at(d)));
      slots_.emplace_back(needs_[d].n_slots);
    }
    schedule_ = schedule_stream(partition, needs_);
    read_every_step_ = read_every_step(partition, schedule_);
    const double disk = rates[0].disk_bytes_per_s > 0 ? rates[0].disk_bytes_per_s : kUsualDiskBytesPerS;
    for (const StreamGroup& group : partition.groups) {
      const size_t d = group.device.index();
      double n_bytes = 0;
      for (TensorId id : group.weights) {
        n_bytes += static_cast<double>(devices[d]->weight_bytes(*graph.tensor(id).weight));
      }
      read_s_.push_back(static_cast<double>(disk_layout(graph, group).n_bytes) / disk);
      group_bytes_.push_back(n_bytes);
    }
    for (const Stage& stage : partition.stages) stage_s_.push_back(stage_seconds(stage));
    const int64_t n_new = ceil_div(load.n_tokens, load.n_sequences);  // of each sequence
    const auto n_blocks =
        static_cast<double>(load.n_sequences * ceil_div(load.n_past + n_new, kv.block_size));
    const auto n_written = static_cast<double>(load.n_sequences * ceil_div(n_new, kv.block_size));
    for (size_t i = 0; i < kv.layers.size(); ++i) {
      Cache& cache = caches_.emplace_back();
      const auto* prefetched = std::get_if<PrefetchedKv>(&placement.layers[i].kv);
      if (!prefetched) continue;
      const size_t d = cache.device = prefetched->to.index();
      const auto block = static_cast<double>(kv_block_bytes(kv_layer_shape(kv, i)));
      cache.in_bytes = n_blocks * block;
      cache.out_s = n_written * block / rates[d].bus_bytes_per_s;
      prefetched_.push_back(i);
    }
    for (size_t i = 0; load.recent_from > 0 && i < kv.layers.size(); ++i) plan_moves(placement, kv, i);
  }

  void step() {
    for (size_t d = 1; d < moves_s_.size(); ++d) {
      if (moves_s_[d] > 0) at_[d] = std::max(at_[d], at_[0]) + moves_s_[d];
    }
    for (size_t d = 1; d < moves_s_.size(); ++d) {  // issued together, and waited for
      if (moves_s_[d] > 0) at_[0] = std::max(at_[0], at_[d]);
    }
    for (size_t i = 0; i < std::min<size_t>(2, prefetched_.size()); ++i) fetch_cache(prefetched_[i]);
    for (size_t i = 0; i < partition_.stages.size(); ++i) run(i);
    for (size_t i : prefetched_) at_[0] = std::max(at_[0], at_[caches_[i].device]);
    const Tensor& logits = graph_.tensor(graph_.logits);
    if (!partition_.logits_device.is_host()) copy_out(partition_.logits_device.index(), logits);
  }

  double host_s() const { return at_[0]; }
  double bus_s() const {
    std::vector<double> busy(at_.size(), 0.0);
    for (size_t g = 0; g < group_bytes_.size(); ++g) {
      const size_t d = partition_.groups[g].device.index();
      if (d != 0 && schedule_.turns[g].next != g) busy[d] += group_bytes_[g] / bus_rate(d);
    }
    return *std::max_element(busy.begin(), busy.end());
  }

 private:
  struct Slot {
    double complete = 0;  // when its layer is
    double released = 0;  // when nobody needs what it had before
  };
  struct Cache {
    size_t device = 0;
    double in_bytes = 0, out_s = 0, ready = 0;
  };

  // What of a layer's recent part goes to the host for a step, on the average.
  void plan_moves(const Placement& placement, const KvConfig& kv, size_t i) {
    const auto* split = std::get_if<SplitKv>(&placement.layers[i].kv);
    if (!split) return;
    const size_t d = split->hot.index();
    const double n_blocks = static_cast<double>(load_.n_tokens) / static_cast<double>(kv.block_size);
    const auto block = static_cast<double>(kv_block_bytes(kv_layer_shape(kv, i)));
    moves_s_[d] += n_blocks * (2 * rates_[d].stage_s + block / rates_[d].bus_bytes_per_s);
  }

  NodeWork work_of(int32_t node) const {
    return node_work(graph_, graph_.nodes[static_cast<size_t>(node)], load_, kv_);
  }

  double stage_seconds(const Stage& stage) const {
    const DeviceRates& rates = rates_[stage.device.index()];
    double seconds = rates.stage_s;
    for (int32_t i : stage.nodes) seconds += node_seconds(work_of(i), rates);
    return seconds;
  }

  // The host's own segment, beside what the buses take.
  void run_on_host(const Stage& stage) {
    const DeviceRates& rates = rates_[0];
    double t = at_[0] + rates.stage_s;
    memory_.forget_until(t);
    for (int32_t i : stage.nodes) {
      const NodeWork work = work_of(i);
      t += rates.node_s;
      t += work.seconds(rates, memory_.finish(t, work.n_bytes, rates.read_bytes_per_s) - t);
    }
    at_[0] = t;
  }

  // The bus cannot carry more than the memory gives.
  double bus_rate(size_t d) const { return std::min(rates_[d].bus_bytes_per_s, rates_[0].memory()); }
  // Brings bytes to a device, not before `after`; returns when they are there.
  double bring(size_t d, double after, double n_bytes) {
    const double begin = std::max({bus_[d], after, at_[0]});
    memory_.forget_until(at_[0]);
    bus_[d] = memory_.finish(begin, n_bytes, bus_rate(d));
    memory_.add(begin, bus_[d], n_bytes);
    return bus_[d];
  }

  void run(size_t i) {
    const Stage& stage = partition_.stages[i];
    const size_t d = stage.device.index();
    for (const Transfer& t : stage.transfers) {
      const Tensor& tensor = graph_.tensor(t.tensor);
      if (t.to.is_host()) {
        at_[0] = std::max(at_[0], sent_[static_cast<size_t>(t.tensor)]);
        continue;
      }
      if (!t.from.is_host()) copy_out(t.from.index(), tensor);
      copy_in(d, tensor);
    }
    start_ready();
    if (stage.group >= 0) join_weights(static_cast<size_t>(stage.group));
    if (stage.kv_layer >= 0) at_[d] = std::max(at_[d], caches_[static_cast<size_t>(stage.kv_layer)].ready);
    if (stage.device.is_host()) {
      run_on_host(stage);
    } else {
      at_[d] = std::max(at_[d], at_[0]) + stage_s_[i];
    }
    for (TensorId id : stage.sends) {
      at_[d] += over_bus(d, graph_.tensor(id));
      sent_[static_cast<size_t>(id)] = at_[d];
    }
    if (stage.kv_layer >= 0) pass_cache_on(static_cast<size_t>(stage.kv_layer));
    if (stage.group >= 0 && schedule_.turns[static_cast<size_t>(stage.group)].last_stage == i)
      pass_slots_on(static_cast<size_t>(stage.group));
  }

  Slot& device_slot(size_t g) { return slots_[partition_.groups[g].device.index()][schedule_.turns[g].slot]; }
  Slot& disk_slot(size_t g) { return slots_[0][schedule_.disk_turns[g].slot]; }

  void fetch(size_t g) {
    Slot& slot = device_slot(g);
    const size_t d = partition_.groups[g].device.index();
    slot.complete = bring(d, slot.released, group_bytes_[g]);
  }
  // What has come from disk goes on over the bus when the host comes by.
  void start_ready() {
    for (std::deque<size_t>& waiting : waiting_) {
      for (; !waiting.empty(); waiting.pop_front()) {
        const size_t g = waiting.front();
        if (partition_.groups[g].on_disk && disk_slot(g).complete > at_[0]) break;
        fetch(g);
      }
    }
  }
  void join_weights(size_t g) {
    const StreamGroup& group = partition_.groups[g];
    const size_t d = group.device.index();
    if (group.device.is_host()) {
      at_[0] = std::max(at_[0], disk_slot(g).complete);
      return;
    }
    while (std::find(waiting_[d].begin(), waiting_[d].end(), g) != waiting_[d].end()) {
      const size_t first = waiting_[d].front();
      waiting_[d].pop_front();
      if (partition_.groups[first].on_disk) at_[0] = std::max(at_[0], disk_slot(first).complete);
      fetch(first);
    }
    at_[d] = std::max(at_[d], device_slot(g).complete);
    if (group.on_disk) disk_slot(g).released = at_[d];
  }
  void pass_slots_on(size_t g) {
    const StreamGroup& group = partition_.groups[g];
    const size_t next = schedule_.turns[g].next;
    if (!group.device.is_host() && next != g) {
      const size_t d = group.device.index();
      device_slot(g).released = at_[d];
      if (partition_.groups[next].on_disk || !waiting_[d].empty()) {
        waiting_[d].push_back(next);
      } else {
        fetch(next);
      }
    }
    if (!group.on_disk || !read_every_step_[schedule_.disk_turns[g].next]) return;
    Slot& slot = disk_slot(g);
    at_[0] = std::max(at_[0], slot.released);
    disk_at_ = std::max(disk_at_, at_[0]) + read_s_[schedule_.disk_turns[g].next];
    slot.complete = disk_at_;
  }

  void fetch_cache(size_t layer) {
    Cache& cache = caches_[layer];
    cache.ready = bring(cache.device, at_[cache.device], cache.in_bytes);
  }
  void pass_cache_on(size_t layer) {
    at_[caches_[layer].device] += caches_[layer].out_s;
    const auto mine = std::find(prefetched_.begin(), prefetched_.end(), layer);
    if (prefetched_.end() - mine > 2) fetch_cache(*(mine + 2));
  }

  double over_bus(size_t d, const Tensor& t) const {
    return rates_[d].stage_s + tensor_bytes(t, load_) / rates_[d].bus_bytes_per_s;
  }
  void copy_in(size_t d, const Tensor& t) { at_[d] = std::max(at_[d], at_[0]) + over_bus(d, t); }
  void copy_out(size_t d, const Tensor& t) {
    at_[d] = std::max(at_[d], at_[0]) + over_bus(d, t);
    at_[0] = at_[d];
  }

  const Graph& graph_;
  const Partition& partition_;
  std::span<const DeviceRates> rates_;
  StepLoad load_;
  const KvConfig& kv_;
  MemoryTraffic memory_;
  std::vector<double> at_;                // [device] when what it was given is done
  std::vector<double> bus_;               // [device] when its last fetch is
  std::vector<double> moves_s_;           // [device] to bring the oldest blocks of recent parts to the host
  std::vector<double> sent_;              // [TensorId] when what goes to the host is there
  std::vector<SlotNeeds> needs_;          // [device]
  std::vector<std::vector<Slot>> slots_;  // [device]; of the host, those that layers are read into from disk
  std::vector<std::deque<size_t>> waiting_;  // [device] groups for the disk, or behind those that do
  double disk_at_ = 0;                       // when its last read is done
  std::vector<double> group_bytes_, read_s_, stage_s_;
  std::vector<bool> read_every_step_;  // [group]
  StreamSchedule schedule_;
  std::vector<Cache> caches_;       // [layer]
  std::vector<size_t> prefetched_;  // layers whose cache is brought to a device
};

}  // namespace

StepCost step_cost(const Graph& graph, const Partition& partition, const Placement& placement,
                   const DeviceModels& devices, std::span<const DeviceRates> rates, const KvConfig& kv,
                   const StepLoad& load) {
  Timeline timeline(graph, partition, placement, devices, rates, kv, load);
  timeline.step();
  timeline.step();
  const double two = timeline.host_s();
  timeline.step();
  return {timeline.host_s() - two, timeline.bus_s()};
}

double Prediction::work_seconds() const {
  return kUsualPrompt / prefill_tokens_per_s + kUsualAnswer / decode_tokens_per_s;
}

}  // namespace tandem
