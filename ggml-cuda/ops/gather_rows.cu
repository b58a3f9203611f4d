// gather_rows: selects the rows that need logits, of one tensor or of two at once. Reads and writes n_outputs * c floats of
// each; a block has a row of one.
#include "device/overlap.h"
#include "ggml-cuda/handed_bytes.h"
#include "ggml-cuda/ops/rows.cuh"
#include "ggml-cuda/quantize.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256, kMaxTensors = 2;

struct GatherCall {
  struct Tensor {
    const float* x;  // [n_tokens, n_cols]
    float* y;        // [n_outputs, n_cols]
    int n_cols;
  };
  Tensor tensors[kMaxTensors];
  int n_tensors;
  const int32_t* outputs;  // [n_outputs]
  MadeBytes made;          // of the first one's y
};

template <class T>
__device__ inline void copy_row(const float* from, float* to, int n_cols) {
  constexpr int kWidth = sizeof(T) / sizeof(float);
  for (int i = static_cast<int>(threadIdx.x); i < n_cols / kWidth; i += kThreads)
    reinterpret_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[i];
}

// With the bytes of the row (handed_bytes.h), eight columns a thread.
__device__ inline void copy_row_with_bytes(const float* from, float* to, int n_cols, const MadeBytes& made) {
  const float4* four = reinterpret_cast<const float4*>(from);
  for (int base = 0; base < n_cols; base += kLaneColumns * kThreads) {
    const int at = base + kLaneColumns * static_cast<int>(threadIdx.x);
    float values[kLaneColumns] = {};
    for (int half = 0; half < 2 && at < n_cols; ++half) {
      const float4 v = reinterpret_cast<float4*>(to)[at / 4 + half] = four[at / 4 + half];
      values[4 * half] = v.x, values[4 * half + 1] = v.y, values[4 * half + 2] = v.z,
                 values[4 * half + 3] = v.w;
    }
    encode_columns(values, at < n_cols, blockIdx.x, at, n_cols, made);
  }
}

// Grid: x output, y tensor, or 1: then a block does one after the other.
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ GatherCall call) {
  let_next_begin();
  wait_for_previous();
  for (unsigned i = blockIdx.y; i < static_cast<unsigned>(call.n_tensors); i += gridDim.y) {
    if (i > blockIdx.y) __syncthreads();  // what is read may lie where this one is written
    const GatherCall::Tensor& tensor = call.tensors[i];
    const int n_cols = tensor.n_cols;
    const float* from = tensor.x + static_cast<int64_t>(call.outputs[blockIdx.x]) * n_cols;
    float* to = tensor.y + static_cast<int64_t>(blockIdx.x) * n_cols;
    if (i == 0 && call.made.any()) {
      copy_row_with_bytes(from, to, n_cols, call.made);
    } else if (n_cols % 4 == 0) {
      copy_row<float4>(from, to, n_cols);
    } else {
      copy_row<float>(from, to, n_cols);
    }
  }
}

const GatherRowsOp* gather_of(const CompileContext& context, int32_t node) {
  return std::get_if<GatherRowsOp>(&context.node(node).op);
}

class CompiledGatherRows final : public CompiledOp {
 public:
  enum class Order { any, as_listed };  // of the nodes, of each row

  CompiledGatherRows(const CompileContext& context, std::span<const int32_t> nodes, Order order)
      : n_side_by_side_(order == Order::any ? static_cast<unsigned>(nodes.size()) : 1) {
    TANDEM_CHECK(nodes.size() <= kMaxTensors);
    call_.n_tensors = static_cast<int>(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      const TensorId y = context.node(nodes[i]).output;
      const auto n_cols = static_cast<int>(context.tensor(y).n_cols);
      call_.tensors[i] = {context.address<const float>(gather_of(context, nodes[i])->x),
                          context.address<float>(y), n_cols};
      if (i == 0 && n_cols % kBlockColumns == 0) maker_.tensor = y;
    }
    call_.outputs = context.address<const int32_t>(gather_of(context, nodes[0])->outputs);
  }

  BytesMaker* bytes_maker() override { return &maker_; }

  void launch(const LaunchContext& context) const override {
    const auto n = static_cast<unsigned>(context.shape.n_outputs);
    if (n == 0) return;
    GatherCall call = call_;
    call.made = maker_.bytes.made(context, n);
    launch_overlapping(gather_kernel, dim3(n, n_side_by_side_), kThreads, 0, context.stream, call);
  }

 private:
  GatherCall call_{};
  unsigned n_side_by_side_;
  BytesMaker maker_;
};

}  // namespace

Lowered<CompiledOpPtr> compile_gathers(const CompileContext& context, std::span<const int32_t> nodes) {
  size_t n = 0;
  while (n < std::min<size_t>(nodes.size(), kMaxTensors) && gather_of(context, nodes[n])) ++n;
  if (n < 2) return {};
  using Order = CompiledGatherRows::Order;
  const GatherRowsOp &first = *gather_of(context, nodes[0]), &second = *gather_of(context, nodes[1]);
  const TensorId first_y = context.node(nodes[0]).output, second_y = context.node(nodes[1]).output;
  if (second.outputs != first.outputs || overlap(context, second.x, first_y)) return {};
  // Blocks of the one run beside those of the other, unless there is only one.
  const bool in_the_way = overlap(context, first.x, second_y);
  if (in_the_way && context.tensor(second_y).n_rows > 1) return {};
  const Order order = in_the_way ? Order::as_listed : Order::any;
  return {std::make_unique<CompiledGatherRows>(context, nodes.first(n), order), n};
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const GatherRowsOp&) {
  const auto index = static_cast<int32_t>(&node - context.graph().nodes.data());
  return std::make_unique<CompiledGatherRows>(context, std::span(&index, 1), CompiledGatherRows::Order::any);
}

}  // namespace tandem::cuda
