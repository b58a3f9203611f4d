// How the CPU device runs a plan: a list of steps, each executed by all workers of the pool together. A file
// in ops/ turns a node (or a run of linear nodes with one input) into a step.
#pragma once

#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "cpu/kernels.h"
#include "cpu/observer.h"
#include "device/lowering.h"

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
struct CompileContext : SegmentView {
  const Kernels& kernels;
  int n_threads;
};

// One a file in ops/.
StepPtr compile(const CompileContext& context, const Node& node, const EmbedOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const NormOp& op);
StepPtr compile_linear(const CompileContext& context, std::span<const int32_t> nodes);  // all read the same x
StepPtr compile(const CompileContext& context, const Node& node, const RopeOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const KvWriteOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const AttentionOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const GluOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const MoeRouteOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const MoeFfnOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const AddOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const ScaleOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const SoftcapOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const GatherRowsOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const MergeOp& op);
StepPtr compile(const CompileContext& context, const Node& node, const JoinOp& op);

}  // namespace tandem::cpu
