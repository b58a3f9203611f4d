// How the CPU device runs a plan: a list of steps, each executed by all workers of the pool together. A file
// in ops/ turns a node (or a run of linear nodes with one input) into a step.
#pragma once

#include <memory>
#include <span>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cpu/kernels.h"
#include "cpu/observer.h"
#include "device/device.h"

namespace tandem::cpu {

// What a step sees when it runs.
struct RunContext {
  StepShape shape;
  std::byte* shared;   // scratch of the step, one for all workers; 64-byte aligned
  std::byte* scratch;  // scratch of this worker; 64-byte aligned
};

class Step {
 public:
  virtual ~Step() = default;
  // Called by every worker. Leaves only after the step's work is complete on all of them (ends with a
  // barrier).
  virtual void run(Worker& worker, const RunContext& context) const = 0;

  // Tells of the inputs of its products. Called by one worker after run(), while the others wait.
  virtual void observe(const ProductObserver&, const RunContext&) const {}

  size_t shared_bytes = 0;   // for the largest shape of the graph
  size_t scratch_bytes = 0;  // per worker
};
using StepPtr = std::unique_ptr<Step>;

// What an op's compile function sees.
struct CompileContext {
  const Segment& segment;
  const Kernels& kernels;
  int n_threads;

  const Graph& graph() const { return *segment.graph; }
  const Node& node(int32_t index) const { return graph().nodes[static_cast<size_t>(index)]; }
  const Tensor& tensor(TensorId id) const { return graph().tensor(id); }
  // Address of a tensor on this device as T*; null for kNoTensor, and for all when only the scratch is asked
  // for.
  template <class T = float>
  T* address(TensorId id) const {
    if (id == kNoTensor || segment.addresses.empty()) return nullptr;
    DevicePtr p = segment.addresses[static_cast<size_t>(tensor(id).storage)];
    TANDEM_CHECK(p != nullptr);
    return reinterpret_cast<T*>(p);
  }
};

// Rows of a tensor in a step.
inline int64_t row_count(Extent extent, int64_t fixed, const StepShape& shape) {
  return extent == Extent::tokens ? shape.n_tokens : extent == Extent::outputs ? shape.n_outputs : fixed;
}
inline int64_t row_count(const Tensor& t, const StepShape& shape) {
  return row_count(t.extent, t.n_rows, shape);
}

// One a file in ops/.
StepPtr compile_embed(const CompileContext& context, const Node& node);
StepPtr compile_norm(const CompileContext& context, const Node& node);
StepPtr compile_linear(const CompileContext& context, std::span<const int32_t> nodes);  // all read the same x
StepPtr compile_rope(const CompileContext& context, const Node& node);
StepPtr compile_kv_write(const CompileContext& context, const Node& node);
StepPtr compile_attention(const CompileContext& context, const Node& node);
StepPtr compile_glu(const CompileContext& context, const Node& node);
StepPtr compile_moe_route(const CompileContext& context, const Node& node);
StepPtr compile_moe_ffn(const CompileContext& context, const Node& node);
StepPtr compile_add(const CompileContext& context, const Node& node);
StepPtr compile_scale(const CompileContext& context, const Node& node);
StepPtr compile_softcap(const CompileContext& context, const Node& node);
StepPtr compile_gather_rows(const CompileContext& context, const Node& node);
StepPtr compile_merge(const CompileContext& context, const Node& node);
StepPtr compile_join(const CompileContext& context, const Node& node);

}  // namespace tandem::cpu
