// Footprint: every byte that a session will take, known before the first is allocated. Computed by the code
// that allocates: partitions, arenas, cache sizes and the devices' own answers about weights and scratch.
#pragma once

#include <string>
#include <vector>

#include "exec/partition.h"
#include "kv/cache.h"
#include "model/architecture.h"

namespace tandem {

struct DeviceBytes {
  size_t weights = 0;  // copied to the device; 0 on the host, where they are mapped
  size_t kv = 0;
  size_t activations = 0;  // the arena that all programs share
  // The slots that streamed layers and caches pass through, or layers and experts from disk; on the host also what
  // devices pin for their copies.
  size_t staging = 0;
  size_t scratch = 0;
  size_t total() const { return weights + kv + activations + staging + scratch; }
};

// Bytes that cross between devices per decoded token, if both parts of split caches are in use.
struct BusBytes {
  size_t activations = 0;  // transfers between segments
  size_t logits = 0;       // from the device that makes them to the host, with what the step returns too
  size_t inputs = 0;       // ids, positions, ... to each device; the block table is inputs_per_block more
  size_t inputs_per_block = 0;      // for every cache block in use
  size_t inputs_per_hot_block = 0;  // for every block in use of hot caches
  size_t n_transfers = 0;
  size_t weights = 0;  // streamed, as they lie on the device
  // Of caches that are brought to a device: for every cache block in use; and what goes back.
  size_t kv_in_per_block = 0, kv_out = 0;
  size_t disk = 0;  // read from disk into host memory, chosen experts aside
  // Of split caches: what goes to the host once for every block of tokens, when the hot cache is
  // full.
  size_t kv_moved_per_block = 0;
  // Of spilled caches: what a token of a full context reads from disk.
  size_t kv_disk = 0;
  // What collectives carry over the link of each device, if all go over host memory (collectives.h); empty: there are none.
  std::vector<size_t> collectives = {};  // [device]
  size_t n_all_reduce = 0, n_all_gather = 0;
  std::vector<size_t> links = {};  // [device] activations, logits and collectives over the link of each
};

struct Footprint {
  std::vector<DeviceBytes> devices;
  BusBytes per_token;
  size_t mapped_weights = 0;  // bytes of weights that the host reads where they are mapped
  size_t disk_weights = 0;    // of those that it reads from disk
  size_t disk_kv = 0;         // bytes of the cache on disk when the context is full
  size_t expert_slots = 0;    // bytes of `staging` of the host: the slots of chosen experts
};

// Returns the pools of a layer whose heads or states are divided; no pools of any other.
HeadPools divided_pools(const KvHome& home, const KvShape& shape);

// "1.50 GiB", "20.0 MiB", "3.0 KiB".
std::string size_text(size_t bytes);

// For the given graphs (the shape classes that a session compiles, the decode one first).
Footprint footprint(const std::vector<const Graph*>& graphs, const DeviceModels& devices,
                    const Placement& placement, const KvConfig& kv);

}  // namespace tandem
