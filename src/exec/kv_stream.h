// KvStream: device slots for caches in host memory. In every step, a layer's used blocks are copied to a
// slot while earlier layers compute; attention runs there; the blocks that the step wrote are copied back.
// A slot is as large as the cache of a layer. Owns the slots and fills them on request; the schedule
// decides the order.
//
// On the host, a slot is for the blocks of a layer that are on disk: attention reads them there, and the others where they
// are. They stay in their slot from step to step if it has no other layer's.
#pragma once

#include <span>
#include <vector>

#include "device/device.h"
#include "exec/disk_stream.h"
#include "exec/pinned_weights.h"

namespace tandem {

// Returns the bytes of a block in both pools of a layer's cache; below, as a step writes it: of grouped dtypes, the block is
// open.
size_t kv_block_bytes(const KvLayer& layer);
size_t kv_written_bytes(const KvLayer& layer);
// Returns the bytes of a host slot for the blocks of a spilled layer that are on disk.
size_t kv_spill_slot_bytes(const KvLayer& layer);

// Returns the slots that the caches need on a device. `layers` are the caches in host memory by layer, for
// their shapes.
SlotNeeds kv_slot_needs(std::span<const PrefetchedLayer> caches, std::span<const KvLayer> layers,
                        DeviceId device);

class KvStream {
 public:
  // `host`: the caches in host memory, by layer. `spill` reads what of them is on disk; null if nothing is. Throws
  // Error(out_of_memory).
  KvStream(std::span<Device* const> devices, std::vector<PrefetchedLayer> caches,
           std::span<const KvLayer> host, DiskReader* spill);
  ~KvStream();
  KvStream(const KvStream&) = delete;
  KvStream& operator=(const KvStream&) = delete;

  std::span<const PrefetchedLayer> caches() const { return caches_; }
  // Returns a cache, by its index, as its device sees it: in its stream slot.
  KvLayer view(size_t cache) const;
  size_t n_bytes(DeviceId device) const {
    return device.is_host() ? spilled_.n_bytes() : slots_[device.index()].needs.n_bytes();
  }

  // From now on the used part of caches in memory is page-locked where that pays; outlives the stream.
  void pin(PinnedWeights& pinned) { pinned_ = &pinned; }

  // Begins a step that reads the blocks in block_table and writes to the KV slots in `slots`, both as in
  // its inputs. `sequences`: those of the step, valid until it ends.
  void begin(std::span<const int32_t> block_table, std::span<const int32_t> slots,
             std::span<const SequenceStep> sequences);
  // Starts copying the used blocks into the cache's stream slot.
  void fetch(size_t cache);
  // Makes the cache's device wait until the copy is complete. On the host throws Error(io).
  void join(size_t cache);
  // Copies the blocks that the step wrote to the host. The next fetch into the stream slot starts after
  // that.
  void write_back(size_t cache);

  // What is on disk has changed, or a step has failed: host slots hold nothing.
  void forget() { spilled_.forget(); }
  uint64_t read_bytes() const { return spilled_.read_bytes(); }  // from disk, total so far

 private:
  struct Slot {
    DevicePtr base = nullptr;
    Event fetched = 0;
    Event released = 0;
  };
  struct Slots {
    SlotNeeds needs;
    std::vector<Slot> slots;
  };
  const KvLayer& host(size_t cache) const { return host_[caches_[cache].layer]; }
  Device& device_of(size_t cache) const { return *devices_[caches_[cache].device.index()]; }
  Slot& slot_of(size_t cache);
  int64_t spilled_blocks(const KvLayer& layer) const;
  void free_all();

  std::span<Device* const> devices_;
  std::vector<PrefetchedLayer> caches_;
  std::vector<KvLayer> host_;
  DiskStream spilled_;
  std::vector<Slots> slots_;      // [device]
  std::vector<Weight> parts_;     // [cache, part of it] as fetched
  PinnedWeights* pinned_ = nullptr;
  int64_t n_blocks_ = 0;          // of the step: all blocks up to the last used one
  int64_t n_open_ = 0;            // of the step: places of open blocks up to the last used one
  std::vector<int32_t> written_;  // of the step: blocks that it writes
  std::span<const int32_t> block_table_;
  std::span<const SequenceStep> sequences_;
};

}  // namespace tandem
