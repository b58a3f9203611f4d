#include "exec/schedule.h"

#include <algorithm>

#include "base/error.h"

namespace tandem {
namespace {

class Scheduler {
 public:
  Scheduler(const Graph& graph, Partition partition, size_t n_devices)
      : graph_(graph),
        reads_inputs_(n_devices, false),
        reads_host_(n_devices, false),
        sent_(graph.tensors.size(), 0) {
    schedule_.partition = std::move(partition);
    schedule_.n_events = n_devices;  // the first ones belong to reads_host_
  }

  Schedule run() {
    find_last_uses();
    begin_step();
    for (size_t i = 0; i < partition().segments.size(); ++i) add_segment(i);
    end_step();
    return std::move(schedule_);
  }

 private:
  const Partition& partition() const { return schedule_.partition; }
  const StreamGroup& group(size_t g) const { return partition().groups[g]; }
  const PrefetchedLayer& cache(size_t c) const { return partition().caches[c]; }
  void add(const Command& command) { schedule_.commands.push_back(command); }

  void find_last_uses() {
    last_use_.resize(partition().groups.size());
    for (size_t i = 0; i < partition().segments.size(); ++i) {
      if (partition().segments[i].group) last_use_[*partition().segments[i].group] = i;
    }
    for (const StreamGroup& g : partition().groups) fetches_from_disk_ |= g.on_disk && !g.device.is_host();
  }

  void begin_step() {
    for (size_t d = 0; d < reads_host_.size(); ++d) {
      if (partition().inputs[d].empty()) continue;
      const DeviceId device = DeviceId::at(d);
      add({.kind = CommandKind::feed, .device = device});
      reads_inputs_[d] = !device.is_host();
    }
    for (size_t c = 0; c < partition().caches.size(); ++c) {
      if (cache(c).turn.first) fetch_cache(c);
    }
    for (size_t g = 0; g < partition().groups.size(); ++g) {
      if (group(g).on_disk && group(g).disk_turn.first) read(g);
    }
    for (size_t d = 1; d < reads_host_.size(); ++d) {
      for (size_t g = 0; g < partition().groups.size(); ++g) {
        if (group(g).device == DeviceId::at(d) && group(g).turn.first) fetch(g);
      }
    }
    for (const TensorId id : graph_.received) add({.kind = CommandKind::receive, .tensor = id});
  }

  void add_segment(size_t index) {
    const PlacedSegment& s = partition().segments[index];
    for (const size_t sum : s.joins) join_sum(sum);
    if (s.collective) return add_collective(index);
    bring_activations(s);
    if (fetches_from_disk_) add({.kind = CommandKind::start_fetches});
    if (s.group) join_weights(*s.group);
    if (s.cache) add({.kind = CommandKind::join_cache, .device = s.device, .cache = *s.cache});
    add({.kind = CommandKind::run, .device = s.device, .segment = index});
    for (const Transfer& t : s.sends) send(t.from, t.tensor);
    if (s.cache) pass_on_cache_slot(*s.cache);
    if (s.group && last_use_[*s.group] == index) pass_on_slots(*s.group);
  }

  void add_collective(size_t index) {
    const PlacedSegment& s = partition().segments[index];
    if (s.begins_sum) return start_sum(index);
    const auto op_of = [&](int32_t i) {
      return std::get<CollectiveOp>(graph_.nodes[static_cast<size_t>(i)].op);
    };
    const bool reduces = op_of(s.nodes.front()).kind == CollectiveKind::all_reduce;
    add_collective(reduces ? CommandKind::all_reduce : CommandKind::all_gather, index);
    send_results(s);
  }
  // The host, if it takes part, overwrites memory of its own at once.
  void add_collective(CommandKind kind, size_t index, size_t event = 0) {
    const PlacedSegment& s = partition().segments[index];
    const auto is_on_host = [&](int32_t i) { return graph_.nodes[static_cast<size_t>(i)].device->is_host(); };
    if (std::ranges::any_of(s.nodes, is_on_host)) wait_for_host_reads();
    add({.kind = kind, .device = s.device, .event = event, .segment = index});
  }
  void send_results(const PlacedSegment& s) {
    for (const Transfer& t : s.sends) send(t.from, t.tensor);
  }

  // ---- Sums that go on ----

  void start_sum(size_t index) {
    const PlacedSegment& s = partition().segments[index];
    while (n_ended_ + partition().parts.sums_ahead() < sums_.size()) end_oldest();
    add({.kind = CommandKind::start_sum, .device = s.device, .segment = index});
    sums_.push_back({index, schedule_.n_events});
    schedule_.n_events += s.nodes.size();
  }
  void end_oldest() {
    const Sum& sum = sums_[n_ended_++];
    add_collective(CommandKind::end_sum, sum.segment, sum.event);
  }
  void join_sum(size_t segment) {
    const auto sum = std::ranges::find(sums_, segment, &Sum::segment);
    TANDEM_CHECK(sum != sums_.end());
    while (n_ended_ <= static_cast<size_t>(sum - sums_.begin())) end_oldest();
    const PlacedSegment& s = partition().segments[segment];
    add({.kind = CommandKind::join_sum, .device = s.device, .event = sum->event, .segment = segment});
    send_results(s);
  }

  void end_step() {
    for (const size_t sum : partition().joined_last) join_sum(sum);
    send_to_next_stage();
    for (size_t d = 1; d < reads_host_.size(); ++d) {
      const DeviceId device = DeviceId::at(d);
      if (std::ranges::find(partition().caches, device, &PrefetchedLayer::device) == partition().caches.end())
        continue;
      const size_t event = schedule_.n_events++;
      add({.kind = CommandKind::record, .device = device, .event = event});
      add({.kind = CommandKind::wait, .device = device, .event = event});
    }
    for (size_t d = 0; d < reads_inputs_.size(); ++d) {
      if (reads_inputs_[d] && !is_collected(DeviceId::at(d))) record_host_reads(DeviceId::at(d));
    }
    wait_for_host_reads();
    collect(partition().hidden_device, graph_.hidden);
    if (partition().has_top) collect(partition().logits_device, graph_.top);
    collect(partition().logits_device, graph_.logits);
  }

  void send_to_next_stage() {
    for (const Transfer& t : partition().sent) {
      if (!t.from.is_host()) {
        add({.kind = CommandKind::wait, .device = t.from, .event = sent_[t.tensor]});
        reads_inputs_[t.from.index()] = false;
      }
      add({.kind = CommandKind::send, .tensor = t.tensor});
    }
  }

  // Whether the host waits at the end for all that the device does.
  bool is_collected(DeviceId device) const {
    return (graph_.logits != kNoTensor && device == partition().logits_device) ||
           (graph_.hidden != kNoTensor && device == partition().hidden_device);
  }

  void collect(DeviceId device, TensorId tensor) {
    if (tensor == kNoTensor || device.is_host()) return;
    add({.kind = CommandKind::collect, .device = device, .tensor = tensor});
  }

  // ---- Activations ----

  // The host runs a segment at once: all tensors sent to it must have arrived, and no device may still read
  // memory that it overwrites.
  void bring_activations(const PlacedSegment& s) {
    for (const Transfer& t : s.transfers) {
      if (t.to.is_host()) {
        add({.kind = CommandKind::wait, .device = t.from, .event = sent_[t.tensor]});
        reads_inputs_[t.from.index()] = false;
        continue;
      }
      if (!t.from.is_host()) wait_for_host_reads();  // which read the staging memory of the copy
      add({.kind = CommandKind::copy, .device = t.to, .from = t.from, .tensor = t.tensor});
      if (!t.from.is_host()) record_host_reads(t.to);
    }
    if (s.device.is_host()) {
      wait_for_host_reads();
    } else if (std::ranges::any_of(s.transfers, [](const Transfer& t) { return t.from.is_host(); })) {
      record_host_reads(s.device);
    }
  }

  // Other devices may still read the memory that the copy overwrites. This device executes in order.
  void send(DeviceId device, TensorId id) {
    for (size_t d = 0; d < reads_host_.size(); ++d) {
      if (DeviceId::at(d) != device) wait_for_host_reads(d);
    }
    sent_[id] = schedule_.n_events++;
    add({.kind = CommandKind::copy, .from = device, .tensor = id});
    add({.kind = CommandKind::record, .device = device, .event = sent_[id]});
  }

  // A copy to a device reads host memory later. The event with the device's index marks the point where it
  // has read all of it. The step's inputs are no segment's to overwrite: the host waits at the end of the step.
  void record_host_reads(DeviceId device) {
    add({.kind = CommandKind::record, .device = device, .event = device.index()});
    reads_host_[device.index()] = true;
  }
  void wait_for_host_reads(size_t d) {
    if (reads_host_[d]) add({.kind = CommandKind::wait, .device = DeviceId::at(d), .event = d});
    if (reads_host_[d]) reads_inputs_[d] = false;
    reads_host_[d] = false;
  }
  void wait_for_host_reads() {
    for (size_t d = 0; d < reads_host_.size(); ++d) wait_for_host_reads(d);
  }

  // ---- Slots ----

  void read(size_t g) { add({.kind = CommandKind::read, .group = g}); }
  void fetch(size_t g) { add({.kind = CommandKind::fetch, .device = group(g).device, .group = g}); }
  void fetch_cache(size_t c) {
    add({.kind = CommandKind::fetch_cache, .device = cache(c).device, .cache = c});
  }

  void join_weights(size_t g) {
    const CommandKind kind = group(g).device.is_host() ? CommandKind::wait_read : CommandKind::join;
    add({.kind = kind, .device = group(g).device, .group = g});
  }

  // Passes the slots to the next groups, which arrive while the following segments compute.
  void pass_on_slots(size_t g) {
    if (!group(g).device.is_host()) {
      add({.kind = CommandKind::release, .device = group(g).device, .group = g});
      if (group(g).turn.next != g) fetch(group(g).turn.next);
    }
    if (group(g).on_disk && group(g).disk_turn.next != g) read(group(g).disk_turn.next);
  }

  // Caches change in every step, so nothing is fetched ahead for the next one. What is on disk changes seldom, and no step
  // writes it.
  void pass_on_cache_slot(size_t c) {
    const size_t next = cache(c).turn.next;
    if (cache(c).device.is_host()) {
      if (next != c) fetch_cache(next);
      return;
    }
    add({.kind = CommandKind::write_back, .device = cache(c).device, .cache = c});
    if (next > c) fetch_cache(next);
  }

  Schedule schedule_;
  const Graph& graph_;
  std::vector<size_t> last_use_;    // [group] its last segment
  bool fetches_from_disk_ = false;  // of any group
  std::vector<bool> reads_inputs_;  // [device] was fed, and the host has not waited for it since
  std::vector<bool> reads_host_;    // [device] has copies from host memory that the host has not waited for
  std::vector<size_t> sent_;        // [TensorId] the event of its copy to the host
  struct Sum {
    size_t segment;
    size_t event;  // of its first device
  };
  std::vector<Sum> sums_;  // in the order of their starts
  size_t n_ended_ = 0;     // of them
};

std::vector<SplitLayer> split_layers(const Placement& placement) {
  std::vector<SplitLayer> caches;
  for (size_t i = 0; i < placement.layers.size(); ++i) {
    const auto* split = std::get_if<SplitKv>(&placement.layers[i].kv);
    if (split) caches.push_back({static_cast<int>(i), split->hot});
  }
  return caches;
}

}  // namespace

Schedule make_schedule(const Graph& graph, const Placement& placement, size_t n_devices, Arenas arenas,
                       const StepParts& parts) {
  Partition partition = partition_graph(graph, placement, n_devices, arenas, parts);
  Scheduler scheduler(graph, std::move(partition), n_devices);
  Schedule schedule = scheduler.run();
  schedule.split_layers = split_layers(placement);
  schedule.experts = expert_room(graph, placement);
  schedule.cached = cached_layers(graph, placement);
  return schedule;
}

}  // namespace tandem
