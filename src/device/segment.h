// What a device is asked about and given to run: nodes of a graph, the addresses of their tensors, and the
// cache that their attention reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "graph/graph.h"

namespace tandem {

// An address in a device's memory. Only that device may dereference it, unless its info says host_memory.
using DevicePtr = std::byte*;

// The cache of one layer: two pools of slots. Slot s of head h starts at
// ((s / block_size) * n_head_kv + h) * block_size + s % block_size rows of row_bytes(dtype, head_dim):
// a block holds, head after head, block_size rows.
struct KvLayer {
  DevicePtr k = nullptr, v = nullptr;
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  int64_t n_head_kv = 0, head_dim_k = 0, head_dim_v = 0;
  int64_t block_size = 0;  // tokens in a block
  int64_t n_blocks = 0;
};

// Nodes of a graph that run on one device in one go. Spans must outlive what is compiled of it. To ask for
// scratch only, addresses is empty and kv has no memory.
struct Segment {
  const Graph* graph = nullptr;
  std::span<const int32_t> nodes;        // indices into graph->nodes, ascending
  std::span<const DevicePtr> addresses;  // by TensorId, on this device; null where not used here
  std::span<const KvLayer> kv;           // by layer, on this device
};

// How big the step is that a run computes; at most the graph's ShapeClass.
struct StepShape {
  int64_t n_tokens = 0;
  int64_t n_outputs = 0;
};

}  // namespace tandem
