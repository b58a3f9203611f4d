// gather_rows: selects the rows that need logits, of one tensor or of two at once. Reads and writes n_outputs * c floats of
// each; a block has a row of one.
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

// Grid: x output, y tensor.
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ GatherCall call) {
  let_next_begin();
  wait_for_previous();
  const GatherCall::Tensor& tensor = call.tensors[blockIdx.y];
  const int n_cols = tensor.n_cols;
  const float* from = tensor.x + static_cast<int64_t>(call.outputs[blockIdx.x]) * n_cols;
  float* to = tensor.y + static_cast<int64_t>(blockIdx.x) * n_cols;
  if (blockIdx.y == 0 && call.made.any()) {
    copy_row_with_bytes(from, to, n_cols, call.made);
  } else if (n_cols % 4 == 0) {
    copy_row<float4>(from, to, n_cols);
  } else {
    copy_row<float>(from, to, n_cols);
  }
}

const GatherRowsOp* gather_of(const CompileContext& context, int32_t node) {
  return std::get_if<GatherRowsOp>(&context.node(node).op);
}

class CompiledGatherRows final : public CompiledOp {
 public:
  CompiledGatherRows(const CompileContext& context, std::span<const int32_t> nodes)
      : n_tensors_(static_cast<unsigned>(nodes.size())) {
    TANDEM_CHECK(nodes.size() <= kMaxTensors);
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
    launch_overlapping(gather_kernel, dim3(n, n_tensors_), kThreads, 0, context.stream, call);
  }

 private:
  GatherCall call_{};
  unsigned n_tensors_;
  BytesMaker maker_;
};

}  // namespace

Lowered<CompiledOpPtr> compile_gathers(const CompileContext& context, std::span<const int32_t> nodes) {
  size_t n = 0;
  while (n < std::min<size_t>(nodes.size(), kMaxTensors) && gather_of(context, nodes[n])) ++n;
  const auto independent = [&] {
    return gather_of(context, nodes[1])->x != context.node(nodes[0]).output &&
           gather_of(context, nodes[1])->outputs == gather_of(context, nodes[0])->outputs;
  };
  if (n < 2 || !independent()) return {};
  return {std::make_unique<CompiledGatherRows>(context, nodes.first(n)), n};
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const GatherRowsOp&) {
  const auto index = static_cast<int32_t>(&node - context.graph().nodes.data());
  return std::make_unique<CompiledGatherRows>(context, std::span(&index, 1));
}

}  // namespace tandem::cuda
