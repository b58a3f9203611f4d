// The schedule of a step: what its commands are for some placements, and what must hold in the list of any.
#include "exec/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/model.h"
#include "exec/placed_graph.h"
#include "exec/tensor_cuts.h"
#include "plan/imagined_device.h"
#include "plan/session_plan.h"
#include "support/gguf_bytes.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

constexpr int64_t kLayers = 5;

std::string text(const Command& c) {
  switch (c.kind) {
    case CommandKind::feed: return format("feed {}", c.device.index());
    case CommandKind::copy: return format("copy {} to {}", c.from.index(), c.device.index());
    case CommandKind::record: return format("record {}", c.device.index());
    case CommandKind::wait: return format("wait {}", c.device.index());
    case CommandKind::read: return format("read {}", c.group);
    case CommandKind::wait_read: return format("wait_read {}", c.group);
    case CommandKind::fetch: return format("fetch {}", c.group);
    case CommandKind::start_fetches: return "start_fetches";
    case CommandKind::join: return format("join {}", c.group);
    case CommandKind::release: return format("release {}", c.group);
    case CommandKind::fetch_cache: return format("fetch_cache {}", c.cache);
    case CommandKind::join_cache: return format("join_cache {}", c.cache);
    case CommandKind::write_back: return format("write_back {}", c.cache);
    case CommandKind::run: return format("run {} on {}", c.segment, c.device.index());
    case CommandKind::all_reduce: return format("all_reduce {}", c.segment);
    case CommandKind::all_gather: return format("all_gather {}", c.segment);
    case CommandKind::start_sum: return format("start_sum {}", c.segment);
    case CommandKind::end_sum: return format("end_sum {}", c.segment);
    case CommandKind::join_sum: return format("join_sum {}", c.segment);
    case CommandKind::collect: return format("collect {}", c.device.index());
    case CommandKind::receive: return "receive";
    case CommandKind::send: return "send";
  }
  return "?";
}

// Follows the commands of a few steps in a row and checks that none comes too early.
class Checker {
 public:
  Checker(const Graph& graph, const Schedule& schedule) : graph_(graph), schedule_(schedule) {}

  void check() {
    for (step_ = 0; step_ < 3; ++step_) {
      next_segment_ = 0;
      for (at_ = 0; at_ < schedule_.commands.size(); ++at_) {
        const Command& c = schedule_.commands[at_];
        SCOPED_TRACE(format("step {}, command {}: {}", step_, at_, text(c)));
        follow(c);
        ++now_;
      }
      EXPECT_EQ(next_segment_, partition().segments.size());
      EXPECT_TRUE(sent_.empty()) << "something was sent that nobody waited for";
      EXPECT_TRUE(sums_.empty()) << "a sum that nobody waited for";
      EXPECT_TRUE(fed_.empty()) << "a device may still read the step's inputs";
      EXPECT_TRUE(written_back_.empty()) << "the host did not wait for caches that go back";
    }
  }

 private:
  using Slot = std::pair<DeviceId, size_t>;  // device, slot
  struct Content {
    size_t item = SIZE_MAX;
    bool released = true, joined = false;
  };

  const Partition& partition() const { return schedule_.partition; }

  void follow(const Command& c) {
    switch (c.kind) {
      case CommandKind::feed:
        if (!c.device.is_host()) fed_[c.device] = now_;
        break;
      case CommandKind::copy: copy(c); break;
      case CommandKind::record: record(c); break;
      case CommandKind::wait: wait(c); break;
      case CommandKind::read: read(c.group); break;
      case CommandKind::wait_read:
        EXPECT_EQ(host_slot(c.group).item, c.group);
        host_slot(c.group).joined = true;
        break;
      case CommandKind::fetch: fill(device_slot(c.group), c.group); break;
      case CommandKind::start_fetches: break;
      case CommandKind::join: join(c.group); break;
      case CommandKind::release:
        EXPECT_EQ(device_slot(c.group).item, c.group);
        device_slot(c.group).released = true;
        break;
      case CommandKind::fetch_cache:
        EXPECT_TRUE(cache_slot(c.cache).released);
        cache_slot(c.cache) = {c.cache, false, false};
        break;
      case CommandKind::join_cache:
        EXPECT_EQ(cache_slot(c.cache).item, c.cache);
        cache_slot(c.cache).joined = true;
        break;
      case CommandKind::write_back:
        EXPECT_TRUE(cache_slot(c.cache).joined);
        cache_slot(c.cache).released = true;
        written_back_[c.device] = now_;
        break;
      case CommandKind::run: run(c); break;
      case CommandKind::all_reduce:
      case CommandKind::all_gather: run_collective(c); break;
      case CommandKind::start_sum:
        run_collective(c);
        EXPECT_TRUE(partition().segments[c.segment].begins_sum);
        EXPECT_NE(partition().segments[c.segment].rows, StepRows::all);
        sums_.push_back(c.segment);
        begun_.push_back(c.segment);
        break;
      case CommandKind::end_sum: {
        ASSERT_FALSE(begun_.empty());
        EXPECT_EQ(begun_.front(), c.segment) << "sums end in the order of their starts";
        begun_.pop_front();
        const std::vector<int32_t>& nodes = partition().segments[c.segment].nodes;
        for (const int32_t i : nodes) {
          const Node& node = graph_.nodes[static_cast<size_t>(i)];
          EXPECT_TRUE(!node.device->is_host() || unread_.empty()) << "may overwrite what a device reads";
        }
        EXPECT_LE(c.event + nodes.size(), schedule_.n_events);
        ended_[c.segment] = c.event;
        break;
      }
      case CommandKind::join_sum:
        EXPECT_EQ(std::erase(sums_, c.segment), 1u);
        ASSERT_TRUE(ended_.contains(c.segment));
        EXPECT_EQ(ended_.at(c.segment), c.event);
        ended_.erase(c.segment);
        break;
      case CommandKind::collect:
        EXPECT_EQ(c.device, partition().logits_device);
        EXPECT_EQ(at_ + (c.tensor == graph_.top ? 2 : 1), schedule_.commands.size());
        EXPECT_TRUE(c.tensor == graph_.logits || c.tensor == graph_.top);
        fed_.erase(c.device);
        break;
      case CommandKind::receive:
        EXPECT_EQ(next_segment_, 0u);
        EXPECT_TRUE(unread_.empty()) << "may overwrite what a device reads";
        break;
      case CommandKind::send:
        EXPECT_EQ(next_segment_, partition().segments.size());
        EXPECT_TRUE(sent_.empty()) << "is not on the host yet";
        break;
    }
  }

  void copy(const Command& c) {
    EXPECT_NE(c.from, c.device);
    expect_not_summed(c.from, c.tensor);
    expect_not_summed(c.device, c.tensor);
    if (!c.device.is_host()) {
      EXPECT_TRUE(c.from.is_host() || unread_.empty()) << "the memory that it goes through is still read";
      unread_[c.device] = now_;
      return;
    }
    for (const auto& [d, when] : unread_)
      EXPECT_EQ(d, c.from) << "may overwrite what device " << d.index() << " reads";
    const Command& next = schedule_.commands[at_ + 1];
    ASSERT_EQ(next.kind, CommandKind::record);
    EXPECT_EQ(next.device, c.from);
    EXPECT_TRUE(sent_.insert(next.event).second) << "another one is on its way with this event";
  }

  void record(const Command& c) {
    ASSERT_LT(c.event, schedule_.n_events);
    recorded_.insert_or_assign(c.event, std::pair(c.device, now_));
  }

  void wait(const Command& c) {
    ASSERT_TRUE(recorded_.contains(c.event));
    const auto [device, when] = recorded_.at(c.event);
    EXPECT_EQ(device, c.device);
    sent_.erase(c.event);
    for (auto* issued : {&fed_, &unread_, &written_back_}) {
      if (issued->contains(device) && issued->at(device) < when) issued->erase(device);
    }
  }

  // A slot gets something else when all that used it has been issued. What it has it need not get again.
  void fill(Content& slot, size_t item) {
    if (slot.item == item) return;
    EXPECT_TRUE(slot.released);
    slot = {item, false, false};
  }

  void read(size_t g) {
    Content& slot = host_slot(g);
    const bool may_be_on_device = !partition().groups[g].device.is_host();
    if (may_be_on_device && device_slot(g).item == g && device_slot(g).joined) return;
    fill(slot, g);
  }

  void join(size_t g) {
    Content& slot = device_slot(g);
    EXPECT_EQ(slot.item, g);
    if (partition().groups[g].on_disk && !slot.joined) {
      EXPECT_EQ(host_slot(g).item, g) << "joined before it was read";
      host_slot(g).released = true;
    }
    slot.joined = true;
    slot.released = false;
  }

  // While a sum goes on, nobody uses its memory, nor memory where that is.
  void expect_not_summed(DeviceId device, TensorId id) const {
    if (graph_.tensor(id).weight) return;
    for (const size_t sum : sums_) expect_not_summed(device, id, partition().segments[sum]);
  }
  void expect_not_summed(DeviceId device, TensorId id, const PlacedSegment& sum) const {
    const auto range = [&](TensorId tensor) {
      const Tensor& t = graph_.tensor(tensor);
      const size_t begin = partition().arena_offsets[device.index()][static_cast<size_t>(t.storage)];
      EXPECT_NE(begin, Partition::kNowhere);
      return std::pair(begin, begin + t.n_bytes());
    };
    for (const int32_t i : sum.nodes) {
      const Node& node = graph_.nodes[static_cast<size_t>(i)];
      if (node.device != device) continue;
      for (const TensorId summed : {std::get<CollectiveOp>(node.op).x, node.output}) {
        if (summed == kNoTensor) continue;
        const auto [begin, end] = range(summed);
        const auto [other, other_end] = range(id);
        EXPECT_TRUE(end <= other || other_end <= begin) << graph_.tensor(id).name;
      }
    }
  }

  void run(const Command& c) {
    ASSERT_EQ(c.segment, next_segment_++);
    const PlacedSegment& s = partition().segments[c.segment];
    for (const int32_t i : s.nodes) {
      const Node& node = graph_.nodes[static_cast<size_t>(i)];
      for (const TensorId id : inputs_of(node.op)) expect_not_summed(s.device, id);
      if (node.output != kNoTensor) expect_not_summed(s.device, node.output);
    }
    EXPECT_EQ(c.device, s.device);
    EXPECT_TRUE(!s.device.is_host() || unread_.empty()) << "may overwrite what a device reads";
    if (s.group) {
      Content& slot = s.device.is_host() ? host_slot(*s.group) : device_slot(*s.group);
      EXPECT_EQ(slot.item, *s.group);
      EXPECT_TRUE(slot.joined);
      if (s.device.is_host()) slot.released = true;
    }
    if (s.cache) {
      EXPECT_EQ(cache_slot(*s.cache).item, *s.cache);
      EXPECT_TRUE(cache_slot(*s.cache).joined);
    }
  }

  // Each device makes its part in an earlier segment of its own.
  void run_collective(const Command& c) {
    ASSERT_EQ(c.segment, next_segment_++);
    EXPECT_TRUE(c.kind == CommandKind::start_sum || sums_.empty()) << "beside sums of parts";
    const PlacedSegment& s = partition().segments[c.segment];
    ASSERT_TRUE(s.collective.has_value());
    EXPECT_TRUE(s.transfers.empty());
    std::set<DeviceId> devices;
    for (const int32_t i : s.nodes) {
      const Node& node = graph_.nodes[static_cast<size_t>(i)];
      EXPECT_TRUE(devices.insert(*node.device).second);
      if (c.kind == CommandKind::start_sum) continue;  // overwrites nothing yet
      EXPECT_TRUE(!node.device->is_host() || unread_.empty()) << "may overwrite what a device reads";
    }
    EXPECT_GT(devices.size(), 1u);
  }

  Content& device_slot(size_t g) {
    return slots_[{partition().groups[g].device, partition().groups[g].turn.slot}];
  }
  Content& host_slot(size_t g) { return slots_[{DeviceId::host(), partition().groups[g].disk_turn.slot}]; }
  Content& cache_slot(size_t c) {
    return cache_slots_[{partition().caches[c].device, partition().caches[c].turn.slot}];
  }

  const Graph& graph_;
  const Schedule& schedule_;
  int step_ = 0;
  size_t at_ = 0, next_segment_ = 0;
  int64_t now_ = 0;                     // commands of all steps so far
  std::map<DeviceId, int64_t> fed_;     // [device] when it was given the step's inputs that it may still read
  std::map<DeviceId, int64_t> unread_;  // [device] its last copy from the host that nobody has waited for
  std::map<DeviceId, int64_t> written_back_;                 // [device] the last of a cache to the host
  std::vector<size_t> sums_;                                 // segments of those that go on
  std::deque<size_t> begun_;                                 // of those that have not ended, by age
  std::map<size_t, size_t> ended_;                           // [segment] the events of the others
  std::set<size_t> sent_;                                    // events of tensors on their way to the host
  std::map<size_t, std::pair<DeviceId, int64_t>> recorded_;  // [event] its device, and when
  std::map<Slot, Content> slots_, cache_slots_;
};

class Schedules : public testing::Test {
 protected:
  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    dense_ = load("dense.gguf", shape);
    shape.n_expert = 5;
    shape.n_expert_used = 2;
    moe_ = load("moe.gguf", shape);
    stage_ = Model::load(directory_.path("moe.gguf"));
    stage_->keep_layers({1, 4});
  }

  std::unique_ptr<Model> load(const std::string& name, const test::TinyShape& shape) {
    test::tiny_llama(shape, 9).write(directory_.path(name));
    return Model::load(directory_.path(name));
  }

  struct Scheduled {
    Graph graph;
    Schedule schedule;
  };
  Scheduled decode(const Model& model, const OffloadChoice& choice, int n_gpus = 1, size_t n_slots = 2,
                   const OffloadOptions& options = {}, bool with_host = false) {
    std::vector<const DeviceModel*> devices{host_.get()};
    for (int d = 0; d < n_gpus; ++d) devices.push_back(&gpus_[static_cast<size_t>(d)]);
    Placement placement = place(model.architecture(), model.weights(), devices, options, choice);
    placement.n_stream_slots = n_slots;
    const SessionGraphs graphs = session_graphs(model.architecture(), ContextOptions{128, 16});
    if (placement.parallel) {
      if (with_host) placement.parallel->devices.push_back(DeviceId::host());
      if (with_host) placement.parallel->shares.push_back(1);
      divide_caches(placement, graphs.decode);
    }
    if (const auto* split = std::get_if<SplitCache>(&choice.cache)) {
      split_caches(placement, split->n_keep, graphs.kv, 16);
    }
    Scheduled s{placed_graph(graphs.decode, placement), {}};
    s.schedule = make_schedule(s.graph, placement, devices.size(), Arenas::none);
    return s;
  }

  // A step of up to 64 tokens in parts.
  struct Parted {
    PartedGraph graph;
    Schedule schedule;
  };
  Parted parted_prefill(const Model& model, const OffloadChoice& choice, const OffloadOptions& options,
                        int64_t n_parts, bool with_host) {
    const std::vector<const DeviceModel*> devices{host_.get(), &gpus_[0], &gpus_[1]};
    Placement placement = place(model.architecture(), model.weights(), devices, options, choice);
    const SessionGraphs graphs = session_graphs(model.architecture(), ContextOptions{128, 64});
    if (with_host) placement.parallel->devices.push_back(DeviceId::host());
    if (with_host) placement.parallel->shares.push_back(1);
    divide_caches(placement, graphs.decode);
    placement.parallel->parts = {n_parts, 33};
    Parted p{parted_graph(placed_graph(graphs.prefill, placement), placement).value(), {}};
    p.schedule = make_schedule(p.graph.graph, placement, 3, Arenas::laid_out, p.graph.parts);
    return p;
  }

  static std::vector<std::string> texts(const Scheduled& s) {
    std::vector<std::string> list;
    for (const Command& c : s.schedule.commands) list.push_back(text(c));
    return list;
  }

  test::TempDir directory_;
  std::unique_ptr<Model> dense_, moe_, stage_;
  std::unique_ptr<Device> host_ = cpu::make_cpu_device({1, 1});
  static size_t file_bytes(const Weight& w) { return w.n_bytes(); }
  std::array<ImaginedDevice, 2> gpus_{ImaginedDevice{"GPU0", size_t{1} << 30, file_bytes},
                                      ImaginedDevice{"GPU1", size_t{1} << 30, file_bytes}};
};

using testing::ElementsAre;

TEST_F(Schedules, OnTheCpu) {
  EXPECT_THAT(texts(decode(*dense_, {})), ElementsAre("feed 0", "run 0 on 0"));
}

TEST_F(Schedules, OnAGpu) {
  EXPECT_THAT(texts(decode(*dense_, {.n_gpu_layers = kLayers + 1})),
              ElementsAre("feed 0", "feed 1", "run 0 on 0", "copy 0 to 1", "record 1", "run 1 on 1", "wait 1",
                          "collect 1", "collect 1"));
}

TEST_F(Schedules, OfAStage) {
  EXPECT_THAT(texts(decode(*stage_, {})), ElementsAre("feed 0", "receive", "run 0 on 0", "send"));
  EXPECT_THAT(texts(decode(*stage_, {.n_gpu_layers = kLayers + 1})),
              ElementsAre("feed 1", "receive", "copy 0 to 1", "record 1", "run 0 on 1", "copy 1 to 0",
                          "record 1", "wait 1", "send", "wait 1"));
}

TEST_F(Schedules, StreamedWeightsAreFetchedAheadIntoTheSlotThatIsReleased) {
  const std::vector<std::string> list =
      texts(decode(*dense_, {.n_gpu_layers = 1, .streaming = Streaming::always}));
  std::vector<std::string> slots;
  for (const std::string& command : list) {
    if (command.starts_with("fetch") || command.starts_with("join") || command.starts_with("release")) {
      slots.push_back(command);
    }
  }
  // After the last groups it is the first ones' turn, for the next step.
  EXPECT_THAT(slots, ElementsAre("fetch 0", "fetch 1", "join 0", "release 0", "fetch 2", "join 1",
                                 "release 1", "fetch 3", "join 2", "release 2", "fetch 4", "join 3",
                                 "release 3", "fetch 1", "join 4", "release 4", "fetch 0"));
}

TEST_F(Schedules, NoCommandComesTooEarly) {
  for (const Model* model : {dense_.get(), moe_.get(), stage_.get()}) {
    for (int n_gpus : {1, 2}) {
      for (const size_t n_slots : {1, 2, 3}) {
        for (const Streaming streaming : {Streaming::none, Streaming::prefill, Streaming::always}) {
          for (int64_t n_gpu_layers : {0, 1, 3, 6}) {
            for (int64_t n_disk : {0, 1, 2, 5}) {
              for (const CacheChoice& cache : {CacheChoice(CacheBesideLayers{}), CacheChoice(CacheOnHost{}),
                                               CacheChoice(CacheBesideLayers{true}), CacheChoice(CacheOnHost{true}), CacheChoice(PrefetchedCache{}),
                                               CacheChoice(SplitCache{32})}) {
                for (const double rows : {1.0, 0.5}) {
                  SCOPED_TRACE(format("{}, {} GPUs, {} slots, {}, -ngl {}, {} on disk, cache {}, rows {:g}",
                                      model == moe_.get()     ? "moe"
                                      : model == dense_.get() ? "dense"
                                                              : "stage",
                                      n_gpus, n_slots, streaming_name(streaming),
                                      static_cast<int>(n_gpu_layers), static_cast<int>(n_disk), cache.index(),
                                      rows));
                  OffloadChoice choice{n_gpu_layers, cache, 0, streaming, n_disk};
                  choice.rows_prefill = choice.rows_decode = rows;
                  const Scheduled s = decode(*model, choice, n_gpus, n_slots);
                  Checker(s.graph, s.schedule).check();
                  if (testing::Test::HasFailure()) {
                    FAIL() << testing::PrintToString(texts(s));
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_F(Schedules, NoCommandComesTooEarlyWhereLayersAreDivided) {
  OffloadOptions options;
  options.split_mode = SplitMode::tensor;
  options.tensor_split = {2, 1};
  for (const Model* model : {dense_.get(), moe_.get()}) {
    for (const Streaming streaming : {Streaming::none, Streaming::always}) {
      for (int64_t n_gpu_layers : {1, 3, 6}) {
        for (const CacheChoice& cache : {CacheChoice(CacheBesideLayers{}), CacheChoice(CacheOnHost{})}) {
          for (const bool with_host : {false, true}) {
            SCOPED_TRACE(format("{}, {}, -ngl {}, cache {}{}", model == moe_.get() ? "moe" : "dense",
                                streaming_name(streaming), n_gpu_layers, cache.index(),
                                with_host ? ", host" : ""));
            OffloadChoice choice{n_gpu_layers, cache, 0, streaming};
            choice.split = options.split_mode;
            const Scheduled s = decode(*model, choice, 2, 2, options, with_host);
            Checker(s.graph, s.schedule).check();
            EXPECT_THAT(texts(s), testing::Contains(testing::StartsWith("all_reduce")));
            if (testing::Test::HasFailure()) FAIL() << testing::PrintToString(texts(s));
          }
        }
      }
    }
  }
}

TEST_F(Schedules, NoCommandComesTooEarlyInParts) {
  OffloadOptions options;
  options.split_mode = SplitMode::tensor;
  options.tensor_split = {2, 1};
  for (const Model* model : {dense_.get(), moe_.get(), stage_.get()}) {
    for (int64_t n_gpu_layers : {3, 6}) {
      for (const CacheChoice& cache : {CacheChoice(CacheBesideLayers{}), CacheChoice(CacheOnHost{})}) {
        for (const bool with_host : {false, true}) {
          if (with_host && n_gpu_layers <= kLayers)
            continue;  // GPUs are streamed their part of the host's layers
          OffloadChoice choice{n_gpu_layers, cache};
          choice.split = options.split_mode;
          for (const int64_t n_parts : {2, 3, 4}) {
            SCOPED_TRACE(format("-ngl {}, cache {}, {} parts{}", n_gpu_layers, cache.index(), n_parts,
                                with_host ? ", host" : ""));
            const Parted p = parted_prefill(*model, choice, options, n_parts, with_host);
            Checker(p.graph.graph, p.schedule).check();
            if (testing::Test::HasFailure()) FAIL();
          }
        }
      }
    }
  }
}

// Between the start of a part's sum and its join, each device has pieces of all other parts to compute, the next one's first.
TEST_F(Schedules, SumsGoOnBesideOtherParts) {
  OffloadOptions options;
  options.split_mode = SplitMode::tensor;
  OffloadChoice choice{kLayers + 1};
  choice.split = options.split_mode;
  for (const int n_parts : {2, 4}) {
    SCOPED_TRACE(n_parts);
    const Parted p = parted_prefill(*dense_, choice, options, n_parts, false);
    std::map<size_t, std::set<std::pair<DeviceId, StepRows>>> beside;  // [sum]
    int n_sums = 0;
    for (const Command& c : p.schedule.commands) {
      const PlacedSegment& s = p.schedule.partition.segments[c.segment];
      if (c.kind == CommandKind::start_sum) {
        beside[c.segment] = {};
        ++n_sums;
      } else if (c.kind == CommandKind::run && !c.device.is_host()) {  // which makes the embedding
        for (auto& [sum, pieces] : beside) {
          EXPECT_NE(s.rows, p.schedule.partition.segments[sum].rows);
          pieces.insert({c.device, s.rows});
        }
      } else if (c.kind == CommandKind::join_sum) {
        // At the beginning some parts have not begun, at the end some are done.
        if (n_sums > n_parts && n_sums < 2 * n_parts * (kLayers - 1)) {
          EXPECT_EQ(beside.at(c.segment).size(), 2u * static_cast<size_t>(n_parts - 1)) << n_sums;
        }
        beside.erase(c.segment);
      }
    }
    EXPECT_EQ(n_sums, 2 * n_parts * (kLayers - 1));  // the last layer has sums of outputs alone
  }
}

// The sizes of parts are multiples of 16.
TEST_F(Schedules, TokensOfParts) {
  EXPECT_EQ(tokens_of_part(48, 2), 32);
  EXPECT_EQ(tokens_of_part(512, 2), 256);
  EXPECT_EQ(tokens_of_part(16, 2), 0);
  EXPECT_EQ(tokens_of_part(512, 0), 0);
  EXPECT_EQ(tokens_of_part(512, 1), 0);
  EXPECT_EQ(tokens_of_part(512, 3), 176);
  EXPECT_EQ(tokens_of_part(48, 8), 16);
  const StepParts parts{.count = 3, .n_each = 176};
  const auto sizes = [&](int64_t n_step) {
    std::vector<int64_t> list;
    for (size_t i = 0; i < parts.count; ++i) list.push_back(parts.n_tokens(rows_of_part(i), n_step));
    return list;
  };
  EXPECT_THAT(sizes(512), ElementsAre(176, 176, 160));
  EXPECT_THAT(sizes(200), ElementsAre(176, 24, 0));
  EXPECT_EQ(parts.n_tokens(StepRows::all, 200), 200);
}

// Where they make no sense.
TEST_F(Schedules, NoParts) {
  const std::vector<const DeviceModel*> devices{host_.get(), &gpus_[0], &gpus_[1]};
  OffloadOptions options;
  options.split_mode = SplitMode::tensor;
  const auto has_parts = [&](int64_t n_ubatch, int64_t from, const OffloadChoice& choice,
                             bool decodes = false) {
    Placement placement = place(dense_->architecture(), dense_->weights(), devices, options, choice);
    const SessionGraphs graphs = session_graphs(dense_->architecture(), ContextOptions{128, n_ubatch});
    if (placement.parallel) divide_caches(placement, graphs.decode);
    if (placement.parallel) placement.parallel->parts = {2, from};
    return parted_graph(placed_graph(decodes ? graphs.decode : graphs.prefill, placement), placement)
        .has_value();
  };
  OffloadChoice choice{kLayers + 1};
  EXPECT_FALSE(has_parts(48, 33, choice)) << "whole layers";
  choice.split = options.split_mode;
  EXPECT_TRUE(has_parts(48, 33, choice));
  EXPECT_FALSE(has_parts(48, 33, choice, true)) << "decoding";
  EXPECT_FALSE(has_parts(48, 49, choice)) << "of more tokens than a step has";
  EXPECT_FALSE(has_parts(16, 1, choice)) << "too few tokens";
  choice.n_gpu_layers = 1;
  choice.streaming = Streaming::always;
  EXPECT_FALSE(has_parts(48, 33, choice)) << "streamed weights";
}

}  // namespace
}  // namespace tandem
