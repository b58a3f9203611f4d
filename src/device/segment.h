// Segment: what a device compiles, runs and answers questions about: nodes of a graph, the addresses of
// their tensors, and the cache that their attention reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "graph/graph.h"

namespace tandem {

// An address in a device's memory. Only that device may dereference it, unless its info says host_memory.
using DevicePtr = std::byte*;

// The cache of one layer: two pools of KV slots. Slot s of head h starts at row
//   ((s / block_size) * n_head_kv + h) * block_size + s % block_size
// where a row has row_bytes(dtype, head_dim) bytes: a block holds block_size rows of each head, head after
// head. Where head_dim_v is 0 there are no values, and v is null: attention takes them from the keys.
// With n_key_sets, the keys' pool has so many times n_head_kv heads: all of a set, and then those of the next.
struct KvLayer {
  DevicePtr k = nullptr, v = nullptr;
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  int64_t n_head_kv = 0, head_dim_k = 0, head_dim_v = 0;
  int64_t block_size = 0;  // tokens in a block
  int64_t n_blocks = 0;
  // On the host, of layers that attention reads sparsely (kv_index.h). Whatever writes rows keeps the index true.
  bool indexed = false;
  DevicePtr index = nullptr;
  // Of grouped dtypes (gguf/kivi.h), whose block is a group. Open blocks, the newest of each sequence, have F16 rows in pools
  // of their own, with the same layout; closed ones are quantized. A pool is null if its half is of another dtype.
  int64_t n_open = 0;  // room for so many open blocks
  const int32_t* open_of =
      nullptr;  // [n_blocks] where an open block is among them; -1: it is closed. In host memory
  DevicePtr open_table = nullptr;  // a copy of it, in the memory of a device that is not the host
  DevicePtr k_open = nullptr, v_open = nullptr;
  // Of spilled caches, on the host: blocks n_blocks to n_blocks + n_spilled are on disk. Where they are in the mapped file,
  // and in what a device compiles where steps have read them to (exec/kv_stream.h).
  int64_t n_spilled = 0;
  DevicePtr k_spilled = nullptr, v_spilled = nullptr;
  int64_t window = 0;  // of a spilled cache: positions that attention sees; 0: all
  int64_t n_key_sets = 1;

  int64_t n_head_k() const { return n_head_kv * n_key_sets; }  // heads in the keys' pool
};

// An open block, and where it is among the open ones.
struct OpenBlock {
  int32_t block, place;
};

class ExpertSource;
class ExpertSlots;

// Nodes of a graph that one device runs in one go. The spans must outlive what is compiled from them. To
// query the scratch size only, leave addresses empty and kv without memory.
struct Segment {
  const Graph* graph = nullptr;
  std::span<const int32_t> nodes;        // indices into graph->nodes, ascending
  std::span<const DevicePtr> addresses;  // by TensorId, on this device; null where not used here
  std::span<const KvLayer> kv;           // by layer, on this device
  ExpertSource* experts = nullptr;       // of layers whose experts are not all in memory (expert_source.h)
  ExpertSlots* slots = nullptr;          // of layers with experts on a device too (expert_slots.h)
};

// The tokens of one sequence in a step, and those in the cache before.
struct SequenceStep {
  int64_t n_tokens = 0, n_past = 0;
};

// The size of the step to run; at most the graph's ShapeClass.
struct StepShape {
  int64_t n_tokens = 0;
  int64_t n_outputs = 0;
  // In the order of the tokens; valid until the step is complete. Empty: not known. Ops may choose how they compute by
  // it, not what.
  std::span<const SequenceStep> sequences = {};
};

}  // namespace tandem
