// Schedule: all commands of a step in the order of issue, compiled once for a graph and its placement. The
// executor executes the list and the cost model times it; neither changes the order. A device executes its
// commands in order, in parallel with the host and the other devices: commands return at once unless they
// say that they wait.
//
// Two things are known only while a step runs: whether a slot still holds the right weights, and whether a
// read from disk is complete. FetchQueue (fetch_queue.h) handles both, for the executor and the cost
// model.
//
// A new kind of command needs an enumerator here, the code in schedule.cpp that emits it, and one case each
// in Executor::execute() and in Clock::execute() of plan/cost.cpp.
#pragma once

#include "exec/divide_experts.h"
#include "exec/expert_room.h"
#include "exec/partition.h"

namespace tandem {

enum class CommandKind : uint8_t {
  feed,           // copy the step's inputs to the device
  copy,           // copy `tensor` from `from` to the device; between two GPUs through host memory
  record,         // set `event` to the point where the device has done everything issued to it so far
  wait,           // the host waits until the device reaches `event`
  read,           // start reading `group` from disk into its host slot, unless a slot already holds it
  wait_read,      // the host waits until the host slot holds `group`
  fetch,          // copy `group` to its device slot, unless it is there; if on disk, as soon as it is read
  start_fetches,  // start the fetches whose reads are complete
  join,           // the device waits until its slot holds `group`
  release,        // all reads of the slot of `group` are issued; the next fetch into it waits for them
  fetch_cache,    // copy the used blocks of `cache` to its device slot; on the host, read those on disk
  join_cache,     // the device waits until that copy is complete
  write_back,     // copy the blocks of `cache` that the step wrote to the host, then release the slot
  run,            // run `segment` on the device
  all_reduce,  // the devices of `segment`, a collective, add what they have (collectives.h); they may wait for each other
  all_gather,  // the same, but they join the columns that they have
  start_sum,  // begin the all_reduce of `segment` in the devices' side queues (device.h): it goes on beside what follows
  end_sum,  // what of it is left to the host, which waits for the devices' parts if these go over its memory; in the order of
            // the starts. The devices' events behind the sum are `event` and those after it
  join_sum,  // what devices are given from here on finds the sum. All are joined before a collective that is none of them
  collect,  // copy `tensor`, `hidden`, the logits or of these `top`, from the device to the host and wait for it
  receive,  // wait for `tensor` from the rank with the stage before, and put it into host memory
  send,     // send `tensor`, which is in host memory, to the rank with the next stage
};
inline constexpr int kCommandKinds = 22;

// Whether such a command is for `segment`.
constexpr bool runs_segment(CommandKind kind) {
  return kind >= CommandKind::run && kind <= CommandKind::join_sum;
}

struct Command {
  CommandKind kind = CommandKind::run;
  // Executes it; the host executes `read`, `wait_read`, `start_fetches`, `receive` and `send`.
  DeviceId device = DeviceId::host();
  DeviceId from = DeviceId::host();
  TensorId tensor = kNoTensor;
  size_t event = 0;    // below Schedule::n_events
  size_t group = 0;    // index into Partition::groups,
  size_t cache = 0;    // Partition::caches,
  size_t segment = 0;  // Partition::segments
};

// A layer with a split cache; the device holds its hot part. Moving its oldest blocks to the host before a
// step that needs more room is not a command, because the step's inputs depend on it (see kv/hot_cache.h).
struct SplitLayer {
  int layer;
  DeviceId device;
};

struct Schedule {
  std::vector<Command> commands;
  Partition partition;  // the segments, groups and caches that the commands name
  std::vector<SplitLayer> split_layers;
  ExpertRoom experts;               // of the layers that take chosen experts in `run`
  std::vector<CachedLayer> cached;  // those with experts on a GPU beside the host
  size_t n_events = 0;
};

Schedule make_schedule(const Graph& graph, const Placement& placement, size_t n_devices,
                       Arenas arenas = Arenas::laid_out, const StepParts& parts = {});

}  // namespace tandem
