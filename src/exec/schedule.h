// The schedule of a step: everything to do for it, as a list of commands in the order of issue. It is
// compiled once for a graph and its placement. The executor carries the list out, the cost model clocks it,
// and neither decides the order of anything. A device does its commands in order, at the same time as the
// host and the other devices: commands return at once unless they say that they wait.
//
// Two things are known only while a step runs: whether a slot still holds the right weights, and whether a
// read from disk is complete. FetchQueue (fetch_queue.h) decides by them, for the executor and the cost model
// alike.
//
// A new kind of command is one enumerator here, the code in schedule.cpp that emits it, and one case each in
// Executor::execute() and in Clock::execute() of plan/cost.cpp.
#pragma once

#include "exec/partition.h"

namespace tandem {

enum class CommandKind : uint8_t {
  feed,           // copy the step's inputs to the device
  copy,           // copy `tensor` from `from` to the device; between two GPUs through host memory
  record,         // `event` is the point where the device has done everything issued to it so far
  wait,           // the host waits until the device reaches `event`
  read,           // start to read `group` from disk into its host slot, unless that or the device has it
  wait_read,      // the host waits until its slot holds `group`
  fetch,          // bring `group` into its device slot, unless it is there; from disk as soon as it is read
  start_fetches,  // start the fetches whose reads are complete by now
  join,           // the device waits until its slot holds `group`
  release,        // everything that reads the slot of `group` has been issued; the next fetch waits for it
  fetch_cache,    // bring the used blocks of `cache` into its device slot
  join_cache,     // the device waits until they are there
  write_back,     // copy the blocks of `cache` that the step wrote to the host, and release the slot
  run,            // run `segment` on the device
  collect,        // copy the logits from the device to the host and wait for them
};
inline constexpr int kCommandKinds = 15;

struct Command {
  CommandKind kind = CommandKind::run;
  DeviceId device = DeviceId::host();  // that does it; `read`, `wait_read` and `start_fetches` are the host's
  DeviceId from = DeviceId::host();
  TensorId tensor = kNoTensor;
  size_t event = 0;    // below Schedule::n_events
  size_t group = 0;    // index into Partition::groups,
  size_t cache = 0;    // Partition::caches,
  size_t segment = 0;  // Partition::segments
};

// A split cache; the device has the hot part. Its oldest blocks move to the host before a step that
// needs more room. That is not a command, because the step's inputs depend on it (see kv/hot_cache.h).
struct SplitLayer {
  int layer;
  DeviceId device;
};

struct Schedule {
  std::vector<Command> commands;
  Partition partition;  // the segments, groups and caches that the commands name
  std::vector<SplitLayer> split_layers;
  size_t n_events = 0;
};

Schedule make_schedule(const Graph& graph, const Placement& placement, size_t n_devices,
                       Arenas arenas = Arenas::laid_out);

}  // namespace tandem
