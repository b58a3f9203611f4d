// embed: gathers rows of the token table as floats. One block per token; for a quantized table, one thread
// per block of 32 columns (layout.h). Reads n rows of the table, writes n * d floats.
#include "ggml-cuda/dtypes.h"
#include "ggml-cuda/formats.h"
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kPlainThreads = 256, kThreads = 128;

__global__ void __launch_bounds__(kPlainThreads)
    embed_plain(const int32_t* ids, PlainValues table, float* x, int64_t n_cols, float scale) {
  let_next_begin();
  wait_for_previous();
  const int64_t from = ids[blockIdx.x] * n_cols, to = blockIdx.x * n_cols;
  for (int64_t i = threadIdx.x; i < n_cols; i += blockDim.x) x[to + i] = table[from + i] * scale;
}

template <DType T>
__global__ void __launch_bounds__(kThreads)
    embed_quantized(const int32_t* ids, Planes table, float* x, int64_t n_cols, float scale) {
  let_next_begin();
  wait_for_previous();
  const int n_blocks = static_cast<int>(n_cols / kBlockColumns);
  const auto first = static_cast<uint32_t>(ids[blockIdx.x]) * static_cast<uint32_t>(n_blocks);
  for (int b = threadIdx.x; b < n_blocks; b += blockDim.x) {
    float block[kBlockColumns];
    dequantize_block<T>(table, first + b, block);
    float4* to = reinterpret_cast<float4*>(x + blockIdx.x * n_cols + b * kBlockColumns);
#pragma unroll
    for (int i = 0; i < kBlockColumns; i += 4) {
      to[i / 4] = {scale * block[i], scale * block[i + 1], scale * block[i + 2], scale * block[i + 3]};
    }
  }
}

// For the generic path.
template <class Block>
__global__ void __launch_bounds__(kThreads)
    embed_blocks(const int32_t* ids, const Block* table, float* x, int64_t n_cols, float scale) {
  let_next_begin();
  wait_for_previous();
  constexpr int kPieces = Block::kElements / kBlockColumns;
  const Block* row = table + ids[blockIdx.x] * (n_cols / Block::kElements);
  for (int piece = threadIdx.x; piece < n_cols / kBlockColumns; piece += blockDim.x) {
    float* to = x + blockIdx.x * n_cols + piece * kBlockColumns;
    dequantize_32(row[piece / kPieces], piece % kPieces, to);
    for (int i = 0; i < kBlockColumns; ++i) to[i] *= scale;
  }
}

class CompiledEmbed final : public CompiledOp {
 public:
  CompiledEmbed(const CompileContext& context, const Node& node, const EmbedOp& op)
      : ids_(context.address<const int32_t>(op.ids)),
        table_(context.address<const std::byte>(op.table)),
        dtype_(context.tensor(op.table).dtype),
        n_vocab_(context.tensor(op.table).n_rows),
        x_(context.address<float>(node.output)),
        n_cols_(context.tensor(node.output).n_cols),
        scale_(op.scale) {}

  void launch(const LaunchContext& context) const override {
    const auto n = static_cast<unsigned>(context.shape.n_tokens);
    if (is_plain(dtype_)) {
      launch_overlapping(embed_plain, n, kPlainThreads, 0, context.stream, ids_, PlainValues{table_, dtype_},
                         x_, n_cols_, scale_);
    } else if (!for_generic_block(dtype_, [&]<class Block>() {
                 launch_overlapping(embed_blocks<Block>, n, kThreads, 0, context.stream, ids_,
                                    reinterpret_cast<const Block*>(table_), x_, n_cols_, scale_);
               })) {
      const Planes planes = planes_of(dtype_, table_, n_vocab_, n_cols_);
      for_format(dtype_, [&]<DType T>() {
        launch_overlapping(embed_quantized<T>, n, kThreads, 0, context.stream, ids_, planes, x_, n_cols_,
                           scale_);
      });
    }
  }

 private:
  const int32_t* ids_;      // [n_tokens]
  const std::byte* table_;  // [n_vocab, n_cols]
  DType dtype_;
  int64_t n_vocab_;
  float* x_;  // [n_tokens, n_cols]
  int64_t n_cols_;
  float scale_;
};

}  // namespace

std::string why_not(const Graph& graph, const EmbedOp& op) {
  const Tensor& table = graph.tensor(op.table);
  if (dtype_support(table.dtype).read != KernelPath::none) return "";
  return table.name + ": dtype " + std::string(dtype_name(table.dtype)) + " has no kernel";
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const EmbedOp& op) {
  return std::make_unique<CompiledEmbed>(context, node, op);
}

}  // namespace tandem::cuda
