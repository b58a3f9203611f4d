// gather_rows: selects the rows that need logits. Reads and writes n_outputs * c floats; one block per row.
#include "ggml-cuda/handed_bytes.h"
#include "ggml-cuda/ops/rows.cuh"
#include "ggml-cuda/quantize.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>  // float, or float4 where a row is a multiple of it
__global__ void __launch_bounds__(kThreads) gather(const T* x, const int32_t* outputs, T* y, int64_t n_cols) {
  let_next_begin();
  wait_for_previous();
  const T* from = x + outputs[blockIdx.x] * n_cols;
  T* to = y + blockIdx.x * n_cols;
  for (int64_t i = threadIdx.x; i < n_cols; i += blockDim.x) to[i] = from[i];
}

// The same with the bytes of y (handed_bytes.h), eight columns a thread.
__global__ void __launch_bounds__(kThreads)
    gather_with_bytes(const float* x, const int32_t* outputs, float* y, int n_cols, MadeBytes made) {
  let_next_begin();
  wait_for_previous();
  const float4* from =
      reinterpret_cast<const float4*>(x + static_cast<int64_t>(outputs[blockIdx.x]) * n_cols);
  float4* to = reinterpret_cast<float4*>(y + static_cast<int64_t>(blockIdx.x) * n_cols);
  for (int base = 0; base < n_cols; base += kLaneColumns * kThreads) {
    const int at = base + kLaneColumns * static_cast<int>(threadIdx.x);
    float values[kLaneColumns] = {};
    for (int half = 0; half < 2 && at < n_cols; ++half) {
      const float4 v = to[at / 4 + half] = from[at / 4 + half];
      values[4 * half] = v.x, values[4 * half + 1] = v.y, values[4 * half + 2] = v.z,
                 values[4 * half + 3] = v.w;
    }
    encode_columns(values, at < n_cols, blockIdx.x, at, n_cols, made);
  }
}

class CompiledGatherRows final : public CompiledOp {
 public:
  CompiledGatherRows(const CompileContext& context, const Node& node, const GatherRowsOp& op)
      : n_cols_(context.tensor(node.output).n_cols),
        x_(context.address<const float>(op.x)),
        outputs_(context.address<const int32_t>(op.outputs)),
        y_(context.address<float>(node.output)) {
    if (n_cols_ % kBlockColumns == 0) maker_.tensor = node.output;
  }

  BytesMaker* bytes_maker() override { return &maker_; }

  void launch(const LaunchContext& context) const override {
    const auto n = static_cast<unsigned>(context.shape.n_outputs);
    if (n == 0) return;
    if (const MadeBytes made = maker_.bytes.made(context, n); made.any()) {
      launch_overlapping(gather_with_bytes, n, kThreads, 0, context.stream, x_, outputs_, y_,
                         static_cast<int>(n_cols_), made);
    } else if (n_cols_ % 4 == 0) {
      launch_overlapping(gather<float4>, n, kThreads, 0, context.stream, reinterpret_cast<const float4*>(x_),
                         outputs_, reinterpret_cast<float4*>(y_), n_cols_ / 4);
    } else {
      launch_overlapping(gather<float>, n, kThreads, 0, context.stream, x_, outputs_, y_, n_cols_);
    }
  }

 private:
  int64_t n_cols_;
  const float* x_;          // [n_tokens, n_cols]
  const int32_t* outputs_;  // [n_outputs]
  float* y_;                // [n_outputs, n_cols]
  BytesMaker maker_;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const GatherRowsOp& op) {
  return std::make_unique<CompiledGatherRows>(context, node, op);
}

}  // namespace tandem::cuda
