// norm: normalizes each group of columns of each row, with one warp for short groups (heads) and one block
// for whole rows. Reads and writes n * c floats; the second and third pass over a group hit the L1 cache.
#include <algorithm>

#include "ggml-cuda/chain.h"
#include "ggml-cuda/handed_bytes.h"
#include "ggml-cuda/ops/normalize.cuh"
#include "ggml-cuda/products.cuh"
#include "ggml-cuda/quantize.cuh"

namespace tandem::cuda {
namespace {

struct NormCall {
  const float* x;            // [n_groups, group]
  PlainValues weight, bias;  // [n_weights, group], [group]; bias may be absent
  float* y;                  // [n_groups, group]
  int64_t n_groups;
  int group, n_weights;  // groups take the rows of the weight in turn
  float eps;
};

template <class Team, int kWidth, NormKind kKind>
__device__ void normalize(const NormCall& call, int64_t group_index) {
  const int w = call.n_weights > 1 ? static_cast<int>(group_index % call.n_weights) * call.group : 0;
  let_next_begin();
  for (int i = kWidth * Team::rank(); i < call.group; i += kWidth * Team::size()) {
    call.weight.prefetch(w + i);
    call.bias.prefetch(i);
  }
  wait_for_previous();
  normalize_group<Team, kWidth, kKind>(call.x + group_index * call.group, call.y + group_index * call.group,
                                       call.group, call.eps, call.weight, w, call.bias);
}

constexpr int kWarps = 4, kMaxThreads = 1024;

template <int kWidth, NormKind kKind>
__global__ void __launch_bounds__(kWarps* kWarp) norm_by_warps(NormCall call) {
  const int64_t group = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (group < call.n_groups) {
    normalize<WarpTeam, kWidth, kKind>(call, group);
  } else {
    wait_for_previous();
  }
}
template <int kWidth, NormKind kKind>
__global__ void __launch_bounds__(kMaxThreads) norm_by_blocks(NormCall call) {
  normalize<BlockTeam, kWidth, kKind>(call, blockIdx.x);
}

template <int kWidth, NormKind kKind>
void launch_norm(const NormCall& call, cudaStream_t stream) {
  constexpr int kShort = 512;
  if (call.group <= kShort) {
    launch_overlapping(norm_by_warps<kWidth, kKind>, blocks_of(call.n_groups, kWarps), kWarps * kWarp, 0,
                       stream, call);
  } else {
    const int n = std::clamp((call.group / kWidth + kWarp - 1) / kWarp * kWarp, 128, kMaxThreads);
    launch_overlapping(norm_by_blocks<kWidth, kKind>, static_cast<unsigned>(call.n_groups), n, 0, stream,
                       call);
  }
}

// What else is made of a row: its bytes (handed_bytes.h), or 16-bit floats. All lanes call it, with eight neighbouring columns.
struct WithBytes {
  MadeBytes made;
  __device__ bool and_floats() const { return true; }
  __device__ void operator()(const float (&values)[kLaneColumns], bool inside, int row, int at, int n) const {
    encode_columns(values, inside, row, at, n, made);
  }
};
template <DType To>
struct WithNarrow {
  NarrowTo to;
  __device__ bool and_floats() const { return to.and_floats; }
  __device__ void operator()(const float (&values)[kLaneColumns], bool inside, int row, int at, int n) const {
    if (inside) store_narrow<To>(to.form.order, values, to.values + static_cast<int64_t>(row) * n, at);
  }
};

// The same for whole rows, a block each, with what `Also` makes of y. A thread has eight neighbouring columns at a time; n is a
// multiple of 32.
template <NormKind kKind, class Also>
__global__ void __launch_bounds__(kMaxThreads) norm_and_more(NormCall call, Also also) {
  const int n = call.group, step = kLaneColumns * static_cast<int>(blockDim.x);
  const int own = kLaneColumns * static_cast<int>(threadIdx.x);
  const int w = call.n_weights > 1 ? static_cast<int>(blockIdx.x % call.n_weights) * n : 0;
  const float4* x = reinterpret_cast<const float4*>(call.x + static_cast<int64_t>(blockIdx.x) * n);
  float4* y = reinterpret_cast<float4*>(call.y + static_cast<int64_t>(blockIdx.x) * n);
  let_next_begin();
  for (int at = own; at < n; at += step) {
    call.weight.prefetch(w + at);
    call.bias.prefetch(at);
  }
  wait_for_previous();
  float mean = 0.0f;
  if (kKind == NormKind::layer) {
    float sum = 0.0f;
    for (int at = own; at < n; at += step) sum += sum_of(x[at / 4]) + sum_of(x[at / 4 + 1]);
    mean = BlockTeam::sum(sum) / static_cast<float>(n);
  }
  float squares = 0.0f;
  for (int at = own; at < n; at += step)
    squares += squares_of(x[at / 4], mean) + squares_of(x[at / 4 + 1], mean);
  const float scale = 1.0f / sqrtf(BlockTeam::sum(squares) / static_cast<float>(n) + call.eps);
  for (int base = 0; base < n; base += step) {
    const int at = base + own;
    float values[kLaneColumns] = {};
    for (int half = 0; half < 2 && at < n; ++half) {
      const int i = at + 4 * half;
      float4 v = Access<4>::scaled(x[i / 4], mean, scale, call.weight.four(w + i));
      if (call.bias.data) v = Access<4>::plus(v, call.bias.four(i));
      if (also.and_floats()) y[i / 4] = v;
      values[4 * half] = v.x, values[4 * half + 1] = v.y, values[4 * half + 2] = v.z,
                 values[4 * half + 3] = v.w;
    }
    also(values, at < n, static_cast<int>(blockIdx.x), at, n);
  }
}

template <class Also>
void launch_norm_and_more(NormKind kind, const NormCall& call, const Also& also, cudaStream_t stream) {
  const int n_threads = std::min<int>(blocks_of(call.group, kLaneColumns * kWarp) * kWarp, kMaxThreads);
  const auto kernel =
      kind == NormKind::rms ? norm_and_more<NormKind::rms, Also> : norm_and_more<NormKind::layer, Also>;
  launch_overlapping(kernel, static_cast<unsigned>(call.n_groups), n_threads, 0, stream, call, also);
}

class CompiledNorm final : public CompiledOp {
 public:
  CompiledNorm(const CompileContext& context, const Node& node, const NormOp& op)
      : op_(op),
        shape_(context.tensor(node.output)),
        x_(context.address<const float>(op.x)),
        n_weights_(context.tensor(op.weight).n_rows),
        weight_(plain_values(context, op.weight)),
        bias_(plain_values(context, op.bias)),
        y_(context.address<float>(node.output)) {
    if (op.group == shape_.n_cols && op.group % kBlockColumns == 0) {
      maker_.tensor = node.output;
      maker_.few = kMaxHandedTokens;
      maker_.n_reads = count_reads(context, node.output);
    }
    ChainNorm part{op.x, node.output, {}};
    part.stage.x = x_;
    part.stage.weight = weight_;
    part.stage.bias = bias_;
    part.stage.normalized = y_;
    part.stage.eps = op.eps;
    part.stage.norm = op.kind;
    part.stage.k = static_cast<int>(shape_.n_cols);
    part_.work = part;
  }

  BytesMaker* bytes_maker() override { return &maker_; }
  const ChainPart* chain_part() const override {
    const bool whole_rows = op_.group == shape_.n_cols && n_weights_ == 1;
    return whole_rows && shape_.extent != Extent::fixed ? &part_ : nullptr;
  }

  void launch(const LaunchContext& context) const override {
    const int64_t n_groups = row_count(shape_, context.shape) * (shape_.n_cols / op_.group);
    if (n_groups == 0) return;
    const NormCall call{
        x_, weight_, bias_, y_, n_groups, static_cast<int>(op_.group), static_cast<int>(n_weights_), op_.eps};
    const bool rms = op_.kind == NormKind::rms;
    const HandedBytes& handed = maker_.bytes;
    if (const MadeBytes made = handed.made(context, n_groups); made.any())
      return launch_norm_and_more(op_.kind, call, WithBytes{made}, context.stream);
    if (uint16_t* const narrow = handed.narrow_at(context, n_groups)) {
      const NarrowTo to{narrow, *handed.narrow, maker_.makes_floats(n_groups)};
      return to.form.dtype == DType::F16
                 ? launch_norm_and_more(op_.kind, call, WithNarrow<DType::F16>{to}, context.stream)
                 : launch_norm_and_more(op_.kind, call, WithNarrow<DType::BF16>{to}, context.stream);
    }
    if (op_.group % 4 == 0) {
      rms ? launch_norm<4, NormKind::rms>(call, context.stream)
          : launch_norm<4, NormKind::layer>(call, context.stream);
    } else {
      rms ? launch_norm<1, NormKind::rms>(call, context.stream)
          : launch_norm<1, NormKind::layer>(call, context.stream);
    }
  }

 private:
  NormOp op_;
  const Tensor& shape_;
  const float* x_;  // [n, n_cols]
  int64_t n_weights_;
  PlainValues weight_, bias_;  // [n_weights, group], [group]
  float* y_;                   // [n, n_cols]
  BytesMaker maker_;
  ChainPart part_;
};

}  // namespace

std::string why_not(const Graph& graph, const NormOp& op) {
  const std::string why = why_not_plain(graph, op.weight, "norm");
  return why.empty() ? why_not_plain(graph, op.bias, "norm") : why;
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const NormOp& op) {
  return std::make_unique<CompiledNorm>(context, node, op);
}

}  // namespace tandem::cuda
