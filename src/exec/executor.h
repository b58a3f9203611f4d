// Executor: runs graphs under a placement. compile() makes the schedule of a graph and allocates what it
// needs; run() executes the commands of the schedule in order and returns the logits. run() allocates only
// if an arena or slots have moved since the program was bound.
//
// An executor and its programs belong to one thread. Devices outlive it.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/collectives.h"
#include "exec/cache_policy.h"
#include "exec/expert_use.h"
#include "exec/fetch_queue.h"
#include "exec/huge_weights.h"
#include "exec/kv_stream.h"
#include "exec/residency.h"
#include "exec/schedule.h"
#include "exec/stage_link.h"
#include "exec/weight_stream.h"

namespace tandem {

// What of the logits a step brings to the host: all; or, where their device picks them out (Graph::top), the largest of each
// output, and all only when they are asked for. none: nobody asks, so that a stage need not wait for those of another rank.
enum class LogitsWanted : uint8_t { all, largest, none };

// The data of one step. Sizes must fit the program's ShapeClass.
struct StepInputs {
  StepShape shape;
  // [Input]: n_tokens values each, except outputs, [n_outputs], and block_table, [rows, max_blocks] with at
  // most max_sequences rows, and hidden, the bits of [n_tokens, n_embd] floats.
  std::array<std::span<const int32_t>, kInputCount> data;
  LogitsWanted wanted = LogitsWanted::all;
};

// Bytes that run() copied between devices, for reports and tests. Streamed weights are counted separately.
struct TransferStats {
  uint64_t n_bytes = 0;  // activations only
  uint64_t n_copies = 0;
  uint64_t n_collectives = 0;  // their bytes are not counted
};

class ExpertCache;
class ExpertStore;
class Program;

class Executor {
 public:
  // kv[device][layer]; a layer's entry is used only on the device that its placement names. `disk` reads
  // the layers and experts on disk; null if the placement has none. `policy`: of experts that GPUs keep. `collectives`: for
  // layers that are divided over devices. `spill` reads the blocks of caches that are on disk, and outlives the executor; null:
  // none are.
  Executor(std::vector<Device*> devices, Placement placement, std::vector<std::vector<KvLayer>> kv,
           std::unique_ptr<DiskReader> disk = nullptr, MakeCachePolicy policy = usual_cache_policy,
           std::unique_ptr<Collectives> collectives = make_host_collectives(), DiskReader* spill = nullptr);
  ~Executor();

  // To the stages before and after, for graphs that receive or send; outlives the executor.
  void connect(StageLink& link) { link_ = &link; }

  // Page-locks weights, experts and caches that are fetched from host memory where that pays (pinned_weights.h).
  void pin_weights(HoldBytes hold);
  // Moves what the host computes with to huge pages where that pays (huge_weights.h), or at once.
  void use_huge_pages(HoldBytes hold, bool at_once) { huge_.emplace(std::move(hold), at_once); }

  // Compiles a graph. Throws Error(out_of_memory), or Error(usage) for a node that its device does not
  // support.
  std::unique_ptr<Program> compile(Graph graph);

  // Runs a step. What it returns stays valid until the next run.
  void run(Program& program, const StepInputs& inputs);
  // The logits of the last run, [n_outputs, n_vocab]; brings them if it brought the largest alone. Throws Error(io).
  std::span<const float> logits();
  // The largest ones, [n_outputs, 2 * n_top()], if that is what it brought; else empty.
  std::span<const float> top() const { return last_.top; }
  size_t n_top() const { return last_.n_top; }
  // What the last run made of its tokens, [n_tokens, n_embd], if its graph keeps it; valid as long.
  std::span<const float> hidden() const { return last_.hidden; }

  const TransferStats& transfers() const { return transfers_; }
  // Bytes on a device for uploaded weights and for activations.
  size_t weight_bytes(DeviceId device) const { return residency_.n_bytes(device); }
  size_t arena_bytes(DeviceId device) const { return arenas_[device.index()].n_bytes; }
  // Bytes of the stream slots for weights and caches, and of the experts' slots; below, the total bytes streamed and
  // read from disk.
  size_t slot_bytes(DeviceId device) const;
  uint64_t streamed_bytes() const { return stream_.fetched_bytes(); }
  const HugeWeights* huge_weights() const { return huge_ ? &*huge_ : nullptr; }
  size_t pinned_bytes() const { return pinned_ ? pinned_->n_bytes() : 0; }  // page-locked of weights and caches
  uint64_t disk_bytes() const;
  // To call when blocks of caches on disk have been written.
  void forget_spilled() { kv_stream_.forget(); }
  // The chosen experts; nothing if the placement has none.
  const ExpertStore& experts() const { return *experts_; }
  ExpertStore& experts() { return *experts_; }
  // The experts that GPUs keep beside the host; no layers if the placement has none.
  const ExpertCache& expert_cache() const { return *cache_; }
  ExpertCache& expert_cache() { return *cache_; }
  // What steps have used of the chosen experts and of those that GPUs keep.
  ExpertUse expert_use() const;
  // Brings experts that were used most to GPUs and to memory. Before the first step. Throws as run().
  void bring_most_used(const ExpertUse& use);

 private:
  friend class Program;
  std::unique_ptr<Program> compile_placed(Graph graph, const StepParts& parts = {});
  struct Arena {
    DevicePtr base = nullptr;
    size_t n_bytes = 0;
  };

  void check_supported(const Graph& graph, const Partition& partition) const;
  void grow_arena(size_t device, size_t n_bytes);
  void prepare(Program& program);
  void bind(Program& program);
  void bind_groups(Program& program);
  void grow_slots(DeviceId device, const SlotNeeds& needs);
  static Program& program_for(Program& program, const StepInputs& inputs);
  void begin_step(const Program& program, const StepInputs& inputs);
  void set_shapes(const StepParts& parts, const StepInputs& inputs);
  const StepShape& shape_of(StepRows rows) const { return shapes_[static_cast<size_t>(rows)]; }
  const StepShape& shape_of(const Program& program, TensorId tensor) const;
  bool is_of_empty_part(const Program& program, const Command& command) const;
  void execute(Program& program, const Command& command, const StepInputs& inputs);
  void run_segment(Program& program, const Command& command);
  void feed(const Program& program, size_t device, const StepInputs& inputs);
  void copy(const Program& program, const Command& command);
  void run_collective(const Program& program, const Command& command);
  void end_sum(Program& program, const Command& command);
  void join_sum(const Program& program, const Command& command);
  std::vector<float>& collected(const Graph& graph, TensorId tensor);
  static bool is_left(const Program& program, TensorId tensor, LogitsWanted wanted);
  void wait(size_t device, Event event);
  void bring(const Program& program, TensorId tensor, DeviceId device, const StepShape& shape);
  std::span<const float> result(const Program& program, TensorId tensor, DeviceId device,
                                const StepShape& shape);
  std::span<std::byte> host_bytes(const Program& program, TensorId tensor, const StepShape& shape) const;
  void abandon_step();

  std::vector<Device*> devices_;
  StageLink* link_ = nullptr;
  Placement placement_;
  std::vector<std::vector<KvLayer>> kv_;
  std::optional<PinnedWeights> pinned_;
  std::optional<HugeWeights> huge_;
  WeightResidency residency_;
  std::unique_ptr<DiskReader> reader_;
  DiskStream disk_;
  std::unique_ptr<ExpertStore> experts_;
  std::unique_ptr<ExpertCache> cache_;
  WeightStream stream_;
  FetchQueue queue_;
  KvStream kv_stream_;
  std::unique_ptr<Collectives> collectives_;
  std::vector<CollectivePart> collective_parts_;
  // Of the step that runs: all of it and its parts (StepRows), and what parts are made of.
  std::array<StepShape, kStepRows> shapes_;
  std::array<std::vector<SequenceStep>, kStepRows> sequences_;
  std::array<std::vector<int32_t>, kStepRows> states_;  // input `states` of parts but the first
  std::vector<Arena> arenas_;                           // one per device, shared by all programs
  std::vector<Program*> programs_;
  std::vector<std::byte> staging_;            // for copies between two GPUs
  std::vector<float> logits_, top_, hidden_;  // if they are computed on a GPU
  // What the last run has left. Logits that are still on their device are lost when its arena moves.
  struct LastRun {
    const Program* program = nullptr;  // null: none, or it failed
    StepShape shape;
    bool has_logits = false;
    std::span<const float> top, hidden;
    size_t n_top = 0;
  };
  LastRun last_;
  TransferStats transfers_;
};

// A graph compiled for an executor's placement.
class Program {
 public:
  ~Program();
  const Graph& graph() const { return graph_; }
  const Schedule& schedule() const { return schedule_; }

 private:
  friend class Executor;
  Program(Executor& executor, Graph graph, Schedule schedule);

  Executor& executor_;
  Graph graph_;
  Schedule schedule_;
  std::vector<std::vector<DevicePtr>> addresses_;         // [device][TensorId]
  std::vector<std::unique_ptr<Executable>> executables_;  // one per segment
  std::vector<SlotNeeds> slots_;                          // [device]
  std::vector<GroupWeights> groups_;
  std::vector<Event> events_;           // recorded by the schedule's commands
  std::unique_ptr<Program> while_hot_;  // runs instead while the cold caches are empty
  std::unique_ptr<Program> in_parts_;   // runs instead for many tokens (parts.h)
};

}  // namespace tandem
