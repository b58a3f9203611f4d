// How the CPU device runs an executable: a list of compiled ops, each executed by all workers of the pool
// together. A file in ops/ turns a node (or a run of linear nodes with one input) into a compiled op.
#pragma once

#include <memory>
#include <span>

#include "base/numa.h"
#include "base/thread_pool.h"
#include "cpu/kernels.h"
#include "cpu/observer.h"
#include "device/lowering.h"

namespace tandem::cpu {

// The input of a running op.
struct RunContext {
  StepShape shape;
  std::byte* shared;   // scratch of the op, one for all workers; 64-byte aligned
  std::byte* scratch;  // scratch of this worker; 64-byte aligned
};

class CompiledOp {
 public:
  virtual ~CompiledOp() = default;
  // Called by every worker. Ends with a barrier: returns when the op's work is complete on all of them.
  virtual void run(Worker& worker, const RunContext& context) const = 0;

  // Reports the inputs of the op's matrix products. Called by one worker after run(), while the others wait.
  virtual void observe(const ProductObserver&, const RunContext&) const {}
  // Returns the bytes of a cache that run() has read, if it reads it sparsely. Called in the same way.
  virtual int64_t cache_bytes_read(const RunContext&) const { return 0; }

  size_t shared_bytes = 0;   // for the largest shape of the graph
  size_t scratch_bytes = 0;  // per worker
};
using CompiledOpPtr = std::unique_ptr<CompiledOp>;

// The input of an op's compile function.
struct CompileContext : SegmentView {
  const Kernels& kernels;
  int n_threads;
  NodeShares nodes = {};  // of workers, and of the rows of weights in memory
};

// One per file in ops/.
CompiledOpPtr compile(const CompileContext& context, const Node& node, const EmbedOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const NormOp& op);
// For nodes that all read the same x.
CompiledOpPtr compile_linear(const CompileContext& context, std::span<const int32_t> nodes);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const HeadLinearOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const RopeOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const HadamardOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const KvWriteOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const AttentionOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const LatentAttentionOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const GluOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const MoeRouteOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const CachedRouteOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const MoeFfnOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const AddOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const ScaleOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const SoftcapOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const GatherRowsOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const TopKOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const MergeOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const JoinOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const ColumnsOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const GateOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const CausalConvOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const DeltaRuleOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const SsmScanOp& op);

}  // namespace tandem::cpu
