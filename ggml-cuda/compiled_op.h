// How the CUDA device runs an executable: a list of compiled ops, each one or a few launches on the device's
// stream. A file in ops/ turns a node (or a run of linear nodes with one input) into a compiled op; the names
// match the CPU's ops.
//
// launch() only enqueues. It may not allocate, synchronize or depend on host data that changes from step to
// step: launches of few tokens are captured once as a CUDA graph and replayed, so lengths and positions are
// read from device memory (the input tensors). For more tokens the grid may follow the shape.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <span>
#include <string>

#include "device/lowering.h"
#include "ggml-cuda/cublas.h"
#include "ggml-cuda/gpu.h"

namespace tandem::cuda {

// Throws Error(out_of_memory) for cudaErrorMemoryAllocation and Error(io) for the rest, naming the call.
void check_cuda(cudaError_t status, const char* call);
void check_cublas(cublasStatus_t status, const char* call);
#define TANDEM_CUDA(call) ::tandem::cuda::check_cuda((call), #call)
#define TANDEM_CUBLAS(call) ::tandem::cuda::check_cublas((call), #call)
// Checks the launch of a kernel, right after it.
inline void check_launch(const char* kernel) {
  check_cuda(cudaPeekAtLastError(), kernel);
}

struct LaunchContext {
  cudaStream_t stream;
  StepShape shape;
  std::byte* scratch;         // the device's, 256-byte aligned, at least the op's scratch_bytes
  std::byte* handed[2] = {};  // handed_bytes.h
  int* counters = nullptr;    // [kCounters], all 0
};
inline constexpr size_t kCounters = 1024;

struct BytesReader;
struct BytesMaker;
struct ChainPart;

class CompiledOp {
 public:
  virtual ~CompiledOp() = default;
  virtual void launch(const LaunchContext& context) const = 0;
  // Whether a step's launches depend on its numbers of tokens and outputs alone, and may be recorded.
  virtual bool repeats(const StepShape&) const { return true; }
  // What it may take from the op before it, and give to the one behind it: handed_bytes.h. Null: nothing.
  virtual BytesReader* bytes_reader() { return nullptr; }
  virtual BytesMaker* bytes_maker() { return nullptr; }
  // Its part of a chain, in steps where it has one row: chain.h. Null: it has none.
  virtual const ChainPart* chain_part() const { return nullptr; }
  size_t scratch_bytes = 0;  // for the largest shape of the graph
};
using CompiledOpPtr = std::unique_ptr<CompiledOp>;

// The input of an op's compile function. Addresses may be null when only scratch_bytes is asked for: compile
// functions store addresses and never read through them.
struct CompileContext : SegmentView {
  Gpu gpu;
  CublasHandle*
      cublas;  // null when only scratch_bytes is asked for; get() it when compiling, if it will be needed
  std::span<const int64_t> reads = {};  // count_reads() of its graph
};
// How often nodes read the memory of each tensor, by storage: INT64_MAX of what is also read when the graph is over, or by
// other names.
std::vector<int64_t> count_reads(const Graph& graph);
// The same in some nodes.
int64_t count_reads(const CompileContext& context, TensorId tensor, std::span<const int32_t> nodes);
inline int64_t count_reads(const CompileContext& context, TensorId tensor) {
  return context.reads[static_cast<size_t>(context.tensor(tensor).storage)];
}

// One per file in ops/.
CompiledOpPtr compile(const CompileContext& context, const Node& node, const EmbedOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const NormOp& op);
// For nodes that all read the same x.
CompiledOpPtr compile_linear(const CompileContext& context, std::span<const int32_t> nodes);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const HeadLinearOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const RopeOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const HadamardOp& op);
CompiledOpPtr compile(const CompileContext& context, const Node& node, const KvWriteOp& op);
// A fusion of the first nodes, if they are rope of queries, rope of keys and kv_write of those keys, with or without norms of the
// heads of both before them, and hadamard of queries and keys, and of values, behind.
Lowered<CompiledOpPtr> compile_rope_kv(const CompileContext& context, std::span<const int32_t> nodes);
// A fusion of the first two nodes, if both are gather_rows of rows that are there.
Lowered<CompiledOpPtr> compile_gathers(const CompileContext& context, std::span<const int32_t> nodes);
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

// Why an op cannot run here, worded for Device::why_unsupported, or an empty string. Ops with limits define
// it next to their compile function.
std::string why_not(const Graph& graph, const EmbedOp& op);
std::string why_not(const Graph& graph, const NormOp& op);
std::string why_not(const Graph& graph, const LinearOp& op);
std::string why_not(const Graph& graph, const HeadLinearOp& op);
std::string why_not(const Graph& graph, const RopeOp& op);
std::string why_not(const Graph& graph, const AttentionOp& op);
std::string why_not(const Graph& graph, const LatentAttentionOp& op);
std::string why_not(const Graph& graph, const GluOp& op);
std::string why_not(const Graph& graph, const MoeRouteOp& op);
std::string why_not(const Graph& graph, const CachedRouteOp& op);
std::string why_not(const Graph& graph, const MoeFfnOp& op);
std::string why_not(const Graph& graph, const DeltaRuleOp& op);
std::string why_not(const Graph& graph, const SsmScanOp& op);
template <class OtherOp>
std::string why_not(const Graph&, const OtherOp&) {
  return "";
}

// Weight layouts (layout.h): how each dtype's matrix lies on the device. F32, F16 and BF16 lie as in the
// file.
// A weight in the file's layout may be cut at multiples of this many bytes.
size_t chunk_unit(const Weight& weight);
// Enqueues the relayout of bytes [at, at + count) of a weight, in whole units, from `from`: memory that the
// device can read, 16-byte aligned and readable up to a multiple of 16.
void lay_out(std::byte* to, const Weight& weight, const std::byte* from, size_t at, size_t count,
             cudaStream_t stream);
// Loads the kernels of lay_out() for all dtypes, so that none is loaded while a graph is recorded.
void load_relayout_kernels();
// Enqueues the relayout of `weight` from host memory to `to`, through the caller's pinned staging buffers.
void upload_weight(std::byte* to, const Weight& weight, std::span<std::byte> staging, cudaStream_t stream);

}  // namespace tandem::cuda
