// FetchQueue: the decisions that a schedule leaves to the running step. A slot is not filled again with what
// it holds. Weights on disk go on to their device as soon as they are read, without blocking the host, and
// later fetches of that device do not overtake them. The executor and the cost model both use it, each with
// its own slots.
#pragma once

#include <span>
#include <vector>

#include "exec/partition.h"

namespace tandem {

// Slots of groups, by their indices.
class GroupSlots {
 public:
  virtual bool holds(size_t group) = 0;       // its slot on its device has it, or it is on its way there
  virtual bool is_read(size_t group) = 0;     // its slot of the host has it, complete
  virtual void start_read(size_t group) = 0;  // into its slot of the host, unless it is there or on its way
  virtual void wait_read(size_t group) = 0;   // until it is there
  virtual void clear(size_t group) = 0;       // its slot on its device: what that holds will be overwritten
  virtual void start_fetch(
      size_t group) = 0;  // into its slot on its device; from that of the host when on disk

 protected:
  ~GroupSlots() = default;
};

class FetchQueue {
 public:
  // The slots outlive the queue.
  FetchQueue(GroupSlots& slots, size_t n_devices) : slots_(slots), waiting_(n_devices) {}

  // Begins a step of a schedule with these groups. Fetches that still wait are dropped: the step asks again.
  void begin(std::span<const StreamGroup> groups);
  void read(size_t group);
  void fetch(size_t group);
  void start_ready();        // starts the fetches whose reads are complete
  void start(size_t group);  // starts its fetch if that still waits, after waiting for its read
  void wait_read(size_t group);

 private:
  void start_first(std::vector<size_t>& waiting);

  GroupSlots& slots_;
  std::span<const StreamGroup> groups_;
  std::vector<std::vector<size_t>> waiting_;  // [device] groups that wait for a read, or behind one
};

}  // namespace tandem
