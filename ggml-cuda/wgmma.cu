#include "ggml-cuda/wgmma.cuh"

#include <algorithm>

#include "ggml-cuda/launch.cuh"

namespace tandem::cuda {
namespace {

int row_tiles_of(int m, int rows) {
  return (m + rows - 1) / rows;
}

template <DType T, int kTokens>
void launch(const WgmmaArgs& args, unsigned n_blocks, cudaStream_t stream) {
  const auto kernel = wgmma_kernel<T, kTokens>;
  constexpr int kSharedBytes = WgmmaTile<T, kTokens>::kSharedBytes;
  static_assert(kSharedBytes <= static_cast<int>(shared_limit(90)));
  TANDEM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  kernel<<<n_blocks, kWgmmaThreads, kSharedBytes, stream>>>(args);
  check_launch("wgmma_kernel");
}

}  // namespace

void launch_wgmma(WgmmaArgs args, const Gpu& gpu, cudaStream_t stream) {
  int n_row_tiles = 0;
  if (args.gated) {
    n_row_tiles = row_tiles_of(args.targets[0].w.m, kWgmmaRows / 2);
  } else {
    for (int i = 0; i < args.n_targets; ++i) {
      args.targets[i].first_tile = n_row_tiles;
      n_row_tiles += row_tiles_of(args.targets[i].w.m, kWgmmaRows);
    }
  }
  const int tokens = wgmma_tile_tokens(args.n, n_row_tiles, gpu.n_multiprocessors);
  args.n_token_tiles = (args.n + tokens - 1) / tokens;
  args.n_row_tiles = n_row_tiles;
  args.n_tiles = n_row_tiles * args.n_token_tiles;
  const auto n_blocks = static_cast<unsigned>(std::min(args.n_tiles, gpu.n_multiprocessors));
  for_format(args.targets[0].w.dtype, [&]<DType T>() {
    tokens == 256 ? launch<T, 256>(args, n_blocks, stream) : launch<T, 128>(args, n_blocks, stream);
  });
}

}  // namespace tandem::cuda
