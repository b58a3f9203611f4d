#include "plan/cost.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include "base/checked.h"
#include "exec/disk_stream.h"
#include "exec/fetch_queue.h"
#include "exec/kv_stream.h"
#include "plan/expert_hits.h"
#include "plan/memory_traffic.h"

namespace tandem {
namespace {

// Carries out a schedule in time only: when the host and the devices have done everything issued so far.
class StepClock final : GroupSlots {
 public:
  StepClock(const Graph& graph, const Schedule& schedule, const DeviceModels& devices,
            std::span<const DeviceRates> rates, const KvConfig& kv, const StepLoad& load)
      : graph_(graph),
        schedule_(schedule),
        rates_(rates),
        load_(load),
        queue_(*this, devices.size()),
        memory_(rates[0].memory()),
        at_(devices.size()),
        links_(devices.size()),
        bus_(devices.size()),
        moves_s_(devices.size()),
        events_(schedule.n_events),
        slots_(devices.size()),
        cache_slots_(devices.size()) {
    for (size_t i = 0; i < kStepRows; ++i) loads_[i] = load_for(static_cast<StepRows>(i));
    add_chosen_experts();
    for (const CachedLayer& layer : schedule.cached) add_cached_experts(layer);
    for (const PlacedSegment& segment : partition().segments) add_segment(segment, kv);
    for (const StreamGroup& group : partition().groups) {
      add_group(group, *devices[group.device.index()]);
    }
    fill_slots();
    for (const PrefetchedLayer& cache : partition().caches) add_cache(cache, kv);
    for (const SplitLayer& cache : schedule.split_layers) add_moves(cache, kv);
  }

  void step() {
    move_oldest_blocks();
    queue_.begin(partition().groups);
    for (const Command& command : schedule_.commands) execute(command);
  }

  double host_s() const { return at_[0]; }
  double bus_s() const {
    std::vector<double> busy(at_.size(), 0.0);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const StreamGroup& group = partition().groups[g];
      const size_t d = group.device.index();
      if (group.fetched_every_step) busy[d] += groups_[g].n_bytes / bus_rate(d, is_pinned(group));
    }
    return *std::max_element(busy.begin(), busy.end());
  }

 private:
  static constexpr size_t kNothing = SIZE_MAX;
  struct Slot {
    double complete = 0;      // when what it was given last is there
    double released = 0;      // when nobody needs what it had before
    size_t holds = kNothing;  // a group; of a host slot for caches, a cache
  };
  using Slots = std::vector<std::vector<Slot>>;  // [device][slot]
  struct HostNode {
    NodeWork work;
    double read_s = 0;  // to read missing experts
  };
  // The part of a layer's experts that a device computes.
  struct ExpertPart {
    double n_experts = 0, pairs = 0;  // for each that a token uses; pairs: share of them
    double fetched_bytes = 0;         // for each that a token uses: brought there for the step
  };
  struct SegmentTime {
    double seconds = 0;           // with its device's memory for itself
    double fetched_bytes = 0;     // of experts, that it waits for
    std::vector<HostNode> nodes;  // of the host, which has not
  };
  struct GroupTime {
    double n_bytes = 0;  // on its device
    double read_s = 0;   // from disk
  };
  struct CacheTime {
    double in_bytes = 0, out_s = 0;
  };

  const Partition& partition() const { return schedule_.partition; }

  // ---- What there is ----

  // Of several sequences, a part has its share; one goes on in the later parts.
  StepLoad load_for(StepRows rows) const {
    const StepParts& parts = schedule_.partition.parts;
    StepLoad load = load_;
    if (!parts.on()) return load;
    const int64_t n = parts.n_tokens(rows, load.n_tokens);
    if (load.n_sequences == 1) load.n_past += parts.n_before(rows);
    load.n_sequences = std::max<int64_t>(1, load.n_sequences * n / std::max<int64_t>(1, load.n_tokens));
    load.n_tokens = n;
    return load;
  }
  const StepLoad& load_of(StepRows rows) const { return loads_[static_cast<size_t>(rows)]; }
  double bytes_of(TensorId id) const {
    return tensor_bytes(graph_.tensor(id), load_of(partition().parts.rows_of(id)));
  }

  double disk_bytes_per_s() const {
    return rates_[0].disk_bytes_per_s > 0 ? rates_[0].disk_bytes_per_s : kUsualDiskBytesPerS;
  }

  void add_chosen_experts() {
    const ExpertRoom& room = schedule_.experts;
    const ExpertHits hits = expected_hits(room, load_.expert_use, load_.n_tokens);
    for (size_t i = 0; i < room.layers.size(); ++i) {
      const auto n_used = static_cast<double>(room.layers[i].n_used);
      const ExpertHits::OfLayer& of_layer = hits.layers[i];
      chosen_read_s_[room.layers[i].down] = of_layer.missing_bytes / disk_bytes_per_s() / n_used;
      in_memory_[room.layers[i].down] = of_layer.share();
    }
  }
  double chosen_read_s(const Node& node) const {
    const auto* op = std::get_if<MoeFfnOp>(&node.op);
    if (!op) return 0;
    const auto found = chosen_read_s_.find(graph_.tensor(op->down).weight);
    return found == chosen_read_s_.end() ? 0 : found->second * static_cast<double>(op->n_used);
  }

  // Of the experts that the step uses, those that the GPU has or is given in time, and the others. In time it can be given
  // what the host has in memory. What is brought for later steps is not counted: it takes half of the bus's time at most, and
  // less as the slots settle.
  void add_cached_experts(const CachedLayer& layer) {
    const CacheHits hits = expected_cache_hits(layer, load_.expert_use, load_.n_tokens);
    const double missing = hits.n_asked - hits.n_found;
    const auto in_memory = in_memory_.find(layer.down);
    const double share = layer.fetched * (in_memory == in_memory_.end() ? 1 : in_memory->second);
    const double fetched = share * missing;
    const double pairs = hits.pairs_found + share * (1 - hits.pairs_found);
    double n_bytes = 0;
    const Weight* slots = nullptr;
    for (const CachedLayer::Slots& w : layer.weights) {
      n_bytes += static_cast<double>(w.slots->n_bytes()) / static_cast<double>(layer.n_slots);
      if (w.whole == layer.down) slots = w.slots;
    }
    const auto n_used = static_cast<double>(layer.n_used);
    expert_parts_[slots] = {(hits.n_found + fetched) / n_used, pairs, fetched * n_bytes / n_used};
    expert_parts_[layer.down] = {(missing - fetched) / n_used, 1 - pairs, 0};
  }
  const ExpertPart* expert_part(const Node& node) const {
    const auto* op = std::get_if<MoeFfnOp>(&node.op);
    const auto found = op ? expert_parts_.find(graph_.tensor(op->down).weight) : expert_parts_.end();
    return found == expert_parts_.end() ? nullptr : &found->second;
  }

  void add_segment(const PlacedSegment& segment, const KvConfig& kv) {
    const DeviceRates& rates = rates_[segment.device.index()];
    SegmentTime time{rates.stage_s, 0, {}};
    if (segment.collective || load_of(segment.rows).n_tokens == 0) {
      segments_.push_back(time);
      return;
    }
    for (int32_t i : segment.nodes) {
      NodeWork work = node_work(graph_, graph_.nodes[i], load_of(segment.rows), kv, segment.device);
      if (const ExpertPart* part = expert_part(graph_.nodes[i])) {
        const auto& op = std::get<MoeFfnOp>(graph_.nodes[i].op);
        const auto n_used = static_cast<double>(op.n_used);
        work = part_of_experts(graph_, op, work, n_used * part->n_experts, part->pairs);
        time.fetched_bytes += n_used * part->fetched_bytes;
      }
      time.seconds += node_seconds(work, rates);
      if (segment.device.is_host()) time.nodes.push_back({work, chosen_read_s(graph_.nodes[i])});
    }
    segments_.push_back(std::move(time));
  }

  void add_group(const StreamGroup& group, const DeviceModel& device) {
    GroupTime time;
    for (TensorId id : group.weights) {
      time.n_bytes += static_cast<double>(device.weight_bytes(*graph_.tensor(id).weight));
    }
    if (group.on_disk)
      time.read_s = static_cast<double>(disk_layout(graph_, group).n_bytes) / disk_bytes_per_s();
    groups_.push_back(time);
    make_slot(slots_, group.device, group.turn.slot);
    make_slot(slots_, DeviceId::host(), group.disk_turn.slot);
  }

  static void make_slot(Slots& slots, DeviceId device, size_t index) {
    std::vector<Slot>& list = slots[device.index()];
    list.resize(std::max(list.size(), index + 1));
  }

  // As steps before have left them.
  void fill_slots() {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const StreamGroup& group = partition().groups[g];
      if (!group.device.is_host()) fill_slot(device_slot(g), g);
      if (group.passes_through_host()) fill_slot(host_slot(g), g);
    }
  }
  static void fill_slot(Slot& slot, size_t g) {
    if (slot.holds == kNothing) slot.holds = g;
  }

  void add_cache(const PrefetchedLayer& cache, const KvConfig& kv) {
    const int64_t n_new = ceil_div(load_.n_tokens, load_.n_sequences);  // of each sequence
    const auto n_blocks =
        static_cast<double>(load_.n_sequences * ceil_div(load_.n_past + n_new, kv.block_size));
    if (cache.device.is_host()) return add_spilled(cache, n_blocks, kv);
    const auto n_written = static_cast<double>(load_.n_sequences * ceil_div(n_new, kv.block_size));
    const double block = block_bytes(cache.layer, kv);
    caches_.push_back({n_blocks * block, n_written * block / bus_bytes_per_s(cache.device)});
    make_slot(cache_slots_, cache.device, cache.turn.slot);
  }

  // What of a text is on disk is read, unless no window reaches so far back.
  void add_spilled(const PrefetchedLayer& cache, double n_blocks, const KvConfig& kv) {
    const bool has_window = kv.layers[static_cast<size_t>(cache.layer)].window > 0;
    const double n_spilled =
        has_window ? 0 : std::max(0.0, n_blocks - static_cast<double>(kv.n_memory_blocks));
    caches_.push_back({n_spilled * block_bytes(cache.layer, kv), 0});
    make_slot(cache_slots_, cache.device, cache.turn.slot);
  }

  // The blocks of the hot cache that move to the host, on the average of many steps.
  void add_moves(const SplitLayer& cache, const KvConfig& kv) {
    if (load_.hot_from == 0) return;
    const size_t d = cache.device.index();
    const double n_blocks = static_cast<double>(load_.n_tokens) / static_cast<double>(kv.block_size);
    moves_s_[d] +=
        n_blocks * (2 * rates_[d].stage_s + block_bytes(cache.layer, kv) / bus_bytes_per_s(cache.device));
  }

  static double block_bytes(int layer, const KvConfig& kv) {
    return static_cast<double>(kv_block_bytes(kv_layer_shape(kv, static_cast<size_t>(layer))));
  }
  double bus_bytes_per_s(DeviceId device) const { return rates_[device.index()].bus_bytes_per_s; }

  // ---- Commands ----

  void execute(const Command& c) {
    if (runs_segment(c.kind) && load_of(partition().segments[c.segment].rows).n_tokens == 0) return;
    const size_t d = c.device.index();
    switch (c.kind) {
      case CommandKind::feed: return;  // some integers
      case CommandKind::copy: return copy(c);
      case CommandKind::record: events_[c.event] = at_[d]; return;
      case CommandKind::wait: return reach(0, events_[c.event]);
      case CommandKind::read: return queue_.read(c.group);
      case CommandKind::wait_read: return queue_.wait_read(c.group);
      case CommandKind::fetch: return queue_.fetch(c.group);
      case CommandKind::start_fetches: return queue_.start_ready();
      case CommandKind::join: return join(c.group);
      case CommandKind::release: device_slot(c.group).released = at_[d]; return;
      case CommandKind::fetch_cache:
        return c.device.is_host() ? read_cache(c.cache)
                                  : bring(d, cache_slot(c.cache), caches_[c.cache].in_bytes,
                                          partition().pins_fetched);
      case CommandKind::join_cache: return reach(d, cache_slot(c.cache).complete);
      case CommandKind::write_back: return write_back(c.cache);
      case CommandKind::run:
        return c.device.is_host() ? run_on_host(c.segment) : run_on_device(d, segments_[c.segment]);
      case CommandKind::all_reduce:
      case CommandKind::all_gather: return run_collective(c.segment);
      case CommandKind::start_sum: return start_sum(c.segment);
      case CommandKind::end_sum: return end_sum(c);
      case CommandKind::join_sum: return join_sum(c);
      case CommandKind::collect: return collect(c);
      case CommandKind::receive: return;  // the wait for another rank is none of this one's work
      case CommandKind::send: return pass_on(c);
    }
  }

  // The device does not go on before `t`.
  void reach(size_t d, double t) { at_[d] = std::max(at_[d], t); }
  // The host gives the device something to do.
  void give(size_t d, double seconds) { give(at_, d, seconds); }
  void give(std::vector<double>& order, size_t d, double seconds) {
    order[d] = std::max(order[d], at_[0]) + seconds;
  }

  void run_on_device(size_t d, const SegmentTime& segment) {
    if (segment.fetched_bytes > 0) {
      Slot slot;
      bring(d, slot, segment.fetched_bytes);
      reach(d, slot.complete);
    }
    give(d, segment.seconds);
  }

  // Beside what the buses take.
  void run_on_host(size_t segment) {
    const DeviceRates& rates = rates_[0];
    double t = at_[0] + rates.stage_s;
    memory_.forget_until(t);
    for (const auto& [work, read_s] : segments_[segment].nodes) {
      t += rates.node_s;
      if (read_s > 0) disk_s_ = std::max(disk_s_, t) + read_s;  // while it computes with what there is
      t += work.seconds(rates, memory_.finish(t, work.n_bytes, rates.read_bytes_per_s) - t);
      if (read_s > 0) t = std::max(t, disk_s_);
    }
    at_[0] = t;
  }

  // From GPU to GPU where all are linked and add; else over host memory: all parts go there, and the host adds or joins them.
  // `order` says when each device, or its link, has done what it was given before.
  void run_collective(size_t segment) {
    begin_collective(segment, at_);
    if (is_between_peers(segment)) return;
    reach(0, sum_read_);  // its memory is used again
    end_collective(segment, at_, at_);
    for_each_device(segment, [&](size_t d, TensorId, TensorId out) {
      if (d > 0 && out != kNoTensor) sum_read_ = std::max(sum_read_, at_[d]);
    });
  }
  void begin_collective(size_t segment, std::vector<double>& order) {
    for_each_device(segment, [&](size_t d, TensorId, TensorId) { order[d] = std::max(order[d], at_[d]); });
    if (is_between_peers(segment)) return add_between_peers(segment, order);
    for_each_device(segment, [&](size_t d, TensorId in, TensorId) {
      if (d > 0 && in != kNoTensor) give(order, d, over_bus(d, in));
    });
  }
  // `arrived`: when each part is in host memory.
  void end_collective(size_t segment, const std::vector<double>& arrived, std::vector<double>& order) {
    double n_bytes = 0;
    for_each_device(segment, [&](size_t d, TensorId in, TensorId) {
      if (in == kNoTensor) return;
      reach(0, arrived[d]);
      n_bytes += bytes_of(in);
    });
    at_[0] += n_bytes / rates_[0].read_bytes_per_s;
    for_each_device(segment, [&](size_t d, TensorId, TensorId out) {
      if (d == 0 || out == kNoTensor) return;
      give(order, d, over_bus(d, out));
    });
  }
  void start_sum(size_t segment) {
    begin_collective(segment, links_);
    begun_.push_back(links_);
  }
  void end_sum(const Command& c) {
    std::vector<double> done = std::move(begun_.front());  // between peers it is
    begun_.pop_front();
    if (!is_between_peers(c.segment)) {
      end_collective(c.segment, done, links_);
      done = links_;
    }
    size_t event = c.event;
    for_each_device(c.segment, [&](size_t d, TensorId, TensorId) { events_[event++] = done[d]; });
  }
  void join_sum(const Command& c) {
    size_t event = c.event;
    for_each_device(c.segment, [&](size_t d, TensorId, TensorId) { reach(d, events_[event++]); });
  }
  // f(device, its part, its result), of all that take part.
  void for_each_device(size_t segment, const auto& f) {
    for (const int32_t i : partition().segments[segment].nodes) {
      const Node& node = graph_.nodes[static_cast<size_t>(i)];
      f(node.device->index(), std::get<CollectiveOp>(node.op).x, node.output);
    }
  }

  // What NcclCollectives adds.
  bool is_between_peers(size_t segment) const {
    return std::ranges::all_of(partition().segments[segment].nodes, [&](int32_t i) {
      const Node& node = graph_.nodes[static_cast<size_t>(i)];
      const auto& op = std::get<CollectiveOp>(node.op);
      return op.kind == CollectiveKind::all_reduce && op.x != kNoTensor && node.output != kNoTensor &&
             rates_[node.device->index()].peer_bytes_per_s > 0;
    });
  }
  void add_between_peers(size_t segment, std::vector<double>& order) {
    const auto n = static_cast<double>(partition().segments[segment].nodes.size());
    double begin = at_[0], seconds = 0;
    for_each_device(segment, [&](size_t d, TensorId in, TensorId) {
      begin = std::max(begin, order[d]);
      seconds =
          std::max(seconds, rates_[d].peer_s + 2 * (n - 1) / n * bytes_of(in) / rates_[d].peer_bytes_per_s);
    });
    for_each_device(segment, [&](size_t d, TensorId, TensorId) { order[d] = begin + seconds; });
  }

  void copy(const Command& c) {
    if (load_of(partition().parts.rows_of(c.tensor)).n_tokens == 0) return;
    const size_t from = c.from.index(), to = c.device.index();
    if (!c.from.is_host()) give(from, over_bus(from, c.tensor));
    if (!c.from.is_host() && !c.device.is_host()) reach(0, at_[from]);
    if (!c.device.is_host()) give(to, over_bus(to, c.tensor));
  }
  // All logits are seldom asked for where the largest of them come.
  void collect(const Command& c) {
    if (c.tensor == graph_.logits && partition().has_top) return;
    give(c.device.index(), over_bus(c.device.index(), c.tensor));
    reach(0, at_[c.device.index()]);
  }
  // The host copies it; then it is on its way while the next step is computed.
  void pass_on(const Command& c) {
    at_[0] += rates_[0].stage_s + tensor_bytes(graph_.tensor(c.tensor), load_) / rates_[0].memory();
  }
  double over_bus(size_t d, TensorId id) const {
    return rates_[d].stage_s + bytes_of(id) / rates_[d].bus_bytes_per_s;
  }

  void move_oldest_blocks() {
    for (size_t d = 1; d < moves_s_.size(); ++d) {
      if (moves_s_[d] > 0) give(d, moves_s_[d]);
    }
    for (size_t d = 1; d < moves_s_.size(); ++d) {  // issued together, and waited for
      if (moves_s_[d] > 0) reach(0, at_[d]);
    }
  }

  // ---- Slots ----

  Slot& device_slot(size_t g) {
    const StreamGroup& group = partition().groups[g];
    return slots_[group.device.index()][group.turn.slot];
  }
  Slot& host_slot(size_t g) { return slots_[0][partition().groups[g].disk_turn.slot]; }
  Slot& cache_slot(size_t c) {
    const PrefetchedLayer& cache = partition().caches[c];
    return cache_slots_[cache.device.index()][cache.turn.slot];
  }

  // Fetched from page-locked memory, as steps are after some time.
  bool is_pinned(const StreamGroup& group) const { return partition().pins_fetched && !group.on_disk; }
  // The bus cannot carry more than the memory gives.
  double bus_rate(size_t d, bool from_pinned = false) const {
    return std::min(rates_[d].fetch_bytes_per_s(from_pinned), rates_[0].memory());
  }
  void bring(size_t d, Slot& slot, double n_bytes, bool from_pinned = false) {
    const double begin = std::max({bus_[d], slot.released, at_[0]});
    memory_.forget_until(at_[0]);
    slot.complete = bus_[d] = memory_.finish(begin, n_bytes, bus_rate(d, from_pinned));
    memory_.add(begin, bus_[d], n_bytes);
  }

  void read_cache(size_t c) {
    Slot& slot = cache_slot(c);
    if (slot.holds == c) return;
    slot.complete = disk_s_ = std::max(disk_s_, at_[0]) + caches_[c].in_bytes / disk_bytes_per_s();
    slot.holds = c;
  }

  bool holds(size_t g) override { return device_slot(g).holds == g; }
  bool is_read(size_t g) override { return host_slot(g).holds == g && host_slot(g).complete <= at_[0]; }
  void start_read(size_t g) override {
    Slot& slot = host_slot(g);
    if (slot.holds == g) return;
    reach(0, slot.released);
    slot.complete = disk_s_ = std::max(disk_s_, at_[0]) + groups_[g].read_s;
    slot.holds = g;
  }
  void wait_read(size_t g) override { reach(0, host_slot(g).complete); }
  void clear(size_t g) override { device_slot(g).holds = kNothing; }
  void start_fetch(size_t g) override {
    const StreamGroup& group = partition().groups[g];
    bring(group.device.index(), device_slot(g), groups_[g].n_bytes, is_pinned(group));
    device_slot(g).holds = g;
  }

  void join(size_t g) {
    const size_t d = partition().groups[g].device.index();
    queue_.start(g);
    reach(d, device_slot(g).complete);
    if (partition().groups[g].on_disk && host_slot(g).holds == g) host_slot(g).released = at_[d];
  }

  void write_back(size_t c) {
    const size_t d = partition().caches[c].device.index();
    give(d, caches_[c].out_s);
    cache_slot(c).released = at_[d];
  }

  const Graph& graph_;
  const Schedule& schedule_;
  std::span<const DeviceRates> rates_;
  StepLoad load_;
  std::array<StepLoad, kStepRows> loads_;  // of the whole step and its parts
  FetchQueue queue_;
  MemoryTraffic memory_;
  std::vector<double> at_;     // [device] when what it was given is done; [0]: when the host is
  std::vector<double> links_;  // [device] when the last sum is that goes on beside what it computes
  std::deque<std::vector<double>> begun_;  // of sums that go on: links_ when each had begun
  double sum_read_ = 0;                    // when all devices have the sum that went over host memory last
  std::vector<double> bus_;                // [device] when its last fetch is
  std::vector<double> moves_s_;            // [device] to bring the oldest blocks of hot caches to the host
  std::vector<double> events_;             // when they are reached
  double disk_s_ = 0;                      // when the last read is done
  std::map<const Weight*, double> chosen_read_s_;     // by the layer's Wdown
  std::map<const Weight*, double> in_memory_;         // share of those asked for, by the layer's Wdown
  std::map<const Weight*, ExpertPart> expert_parts_;  // by Wdown of all experts and of those in slots
  std::vector<SegmentTime> segments_;
  std::vector<GroupTime> groups_;
  std::vector<CacheTime> caches_;
  Slots slots_, cache_slots_;
};

}  // namespace

StepCost step_cost(const Graph& graph, const Schedule& schedule, const DeviceModels& devices,
                   std::span<const DeviceRates> rates, const KvConfig& kv, const StepLoad& load) {
  StepClock clock(graph, schedule, devices, rates, kv, load);
  clock.step();
  clock.step();
  const double two = clock.host_s();
  clock.step();
  return {clock.host_s() - two, clock.bus_s()};
}

double Prediction::work_seconds() const {
  return kUsualPrompt / prefill_tokens_per_s + kUsualAnswer / decode_tokens_per_s;
}

}  // namespace tandem
