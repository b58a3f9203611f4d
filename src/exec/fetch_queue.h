// FetchQueue: makes the decisions that a schedule leaves to the running step. A slot is not filled again
// with weights that it already holds. Weights on disk are fetched to their device as soon as they are read,
// without blocking the host, and later fetches to that device do not overtake them. The executor and the
// cost model both use it, each with its own slots.
#pragma once

#include <span>
#include <vector>

#include "exec/partition.h"

namespace tandem {

// The stream slots of groups; `group` is an index. A group has a slot on its device and, if it is on disk,
// one on the host.
class GroupSlots {
 public:
  virtual bool holds(size_t group) = 0;        // whether its device slot holds it or is being filled with it
  virtual bool is_read(size_t group) = 0;      // whether its host slot holds it completely
  virtual void start_read(size_t group) = 0;   // reads it into its host slot, unless it is there or under way
  virtual void wait_read(size_t group) = 0;    // waits until the read is complete
  virtual void clear(size_t group) = 0;        // the contents of its device slot will be overwritten
  virtual void start_fetch(size_t group) = 0;  // into its device slot; from its host slot if on disk

 protected:
  ~GroupSlots() = default;
};

class FetchQueue {
 public:
  // `slots` outlives the queue.
  FetchQueue(GroupSlots& slots, size_t n_devices) : slots_(slots), waiting_(n_devices) {}

  // Begins a step with the groups of its schedule. Drops fetches that still wait: the step requests them
  // again.
  void begin(std::span<const StreamGroup> groups);
  void read(size_t group);
  void fetch(size_t group);
  void start_ready();        // starts the fetches whose reads are complete
  void start(size_t group);  // if its fetch still waits: waits for its read, then starts it
  void wait_read(size_t group);

 private:
  void start_first(std::vector<size_t>& waiting);

  GroupSlots& slots_;
  std::span<const StreamGroup> groups_;
  std::vector<std::vector<size_t>> waiting_;  // [device] groups waiting for a read, or queued behind one
};

}  // namespace tandem
