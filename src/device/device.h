// The Device interface: the dozen functions that everything above devices is written against. A device owns
// an address space; the addresses it gives out (DevicePtr) may be dereferenced by that device only, unless
// its info says that it works on host memory.
//
// All calls on one device come from one thread. Copies and runs are asynchronous in the order they are
// issued; record() marks a point in that order and wait() blocks the host until it is reached. Functions
// throw Error(out_of_memory | io | bug).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "graph/graph.h"

namespace tandem {

using DevicePtr = std::byte*;

struct DeviceInfo {
  std::string name;          // "CPU", "CUDA0": what users type
  std::string description;   // "Xeon ..., AVX512-VNNI, 2 threads"
  bool host_memory = false;  // its addresses are host addresses: weights are used where they are mapped
};

struct MemoryInfo {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

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

// Nodes of a graph that run on one device in one go. Spans must outlive the plan. To ask for scratch only,
// addresses is empty and kv has no memory.
struct Segment {
  const Graph* graph = nullptr;
  std::span<const int32_t> nodes;        // indices into graph->nodes, ascending
  std::span<const DevicePtr> addresses;  // by TensorId, on this device; null where not used here
  std::span<const KvLayer> kv;           // by layer, on this device
};

// How big the step is that a plan runs; at most the graph's ShapeClass.
struct StepShape {
  int64_t n_tokens = 0;
  int64_t n_outputs = 0;
};

// A compiled segment; only the device that made it knows what is inside.
class Plan {
 public:
  virtual ~Plan() = default;
};

using Event = uint64_t;

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  // Why this device cannot run the node, or an empty string when it can. What is not supported is placed
  // elsewhere.
  virtual std::string why_unsupported(const Graph& graph, const Node& node) const = 0;

  // Bytes that a weight takes here once uploaded; 0 on host memory, where it is used where it is mapped.
  virtual size_t weight_bytes(const Weight& weight) const = 0;
  // Bytes of scratch that a segment of these nodes needs while it runs. The device keeps one scratch, as
  // large as the largest segment compiled on it needs, and takes it when it compiles.
  virtual size_t scratch_bytes(const Segment& segment) = 0;

  virtual MemoryInfo memory_info() = 0;
  virtual DevicePtr alloc(size_t n_bytes) = 0;  // 64-byte aligned at least; never null
  virtual void free(DevicePtr address) = 0;
  // Brings a weight in, in whatever layout this device's kernels like; `to` has weight_bytes(weight).
  virtual void upload(DevicePtr to, const Weight& weight) = 0;
  virtual void copy_in(DevicePtr to, const void* from, size_t n_bytes) = 0;  // host to device
  virtual void copy_out(void* to, DevicePtr from, size_t n_bytes) = 0;       // device to host
  virtual void copy_within(DevicePtr to, DevicePtr from, size_t n_bytes) = 0;
  virtual Event record() = 0;
  virtual void wait(Event event) = 0;

  // Weights that do not stay are brought in beside the runs: fetch() is upload() in an order of its own. It
  // begins once `after`, an event of record(), is reached; what is issued after join(fetch()) begins when the
  // fetch is complete. The weight's bytes and `to` are in use until then. Failures are thrown as those of
  // upload() are. A device with only one order does it all in that, as here.
  virtual Event fetch(DevicePtr to, const Weight& weight, [[maybe_unused]] Event after) {
    upload(to, weight);
    return 0;
  }
  virtual void join([[maybe_unused]] Event fetched) {}

  virtual std::unique_ptr<Plan> compile(const Segment& segment) = 0;
  virtual void run(Plan& plan, const StepShape& shape) = 0;
};

}  // namespace tandem
