#include "ggml-cuda/matmul.cuh"

#include <algorithm>

#include "ggml-cuda/products.cuh"

namespace tandem::cuda {
namespace {

constexpr int kReduceThreads = 256;

// Adds up the partial sums of the column slices. Bytes: 4 n m (n_slices + 1).
__global__ void __launch_bounds__(kReduceThreads) add_slices_kernel(const __grid_constant__ MatmulArgs args) {
  const int64_t count = static_cast<int64_t>(args.n) * args.w.m;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kReduceThreads + threadIdx.x;
  if (i >= count) return;
  float sum = 0.0f;
  for (int s = 0; s < args.n_slices; ++s) sum += args.partial[s * count + i];
  store_sum(args, 0, 0, static_cast<int>(i / args.w.m), static_cast<int>(i % args.w.m), sum);
}

template <DType T, int kPairs>
void launch(MatmulArgs args, dim3 grid, const Gpu& gpu, cudaStream_t stream) {
  using M = Matmul<T, kPairs>;
  const auto multiprocessor = static_cast<int>(shared_of_multiprocessor(gpu.compute_capability));
  // As many stages as leave room for three blocks a multiprocessor.
  args.n_stages = kMaxStages;
  while (args.n_stages > 2 && M::shared_bytes(args.n_stages) > multiprocessor / 3 - 1024) --args.n_stages;
  const int shared_bytes = M::shared_bytes(args.n_stages);
  TANDEM_CHECK(static_cast<size_t>(shared_bytes) <= shared_limit(gpu.compute_capability));
  const auto kernel = matmul_kernel<T, kPairs>;
  TANDEM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  kernel<<<grid, kMatmulThreads, static_cast<size_t>(shared_bytes), stream>>>(args);
  check_launch("matmul_kernel");
}

void launch(const MatmulArgs& args, int tile_tokens, dim3 grid, const Gpu& gpu, cudaStream_t stream) {
  for_format(args.w.dtype, [&]<DType T>() {
    tile_tokens == 32 ? launch<T, 1>(args, grid, gpu, stream) : launch<T, 2>(args, grid, gpu, stream);
  });
}

int tiles_of(int64_t count, int tile) {
  return static_cast<int>((count + tile - 1) / tile);
}

int tile_tokens_for(int64_t n) {
  return n <= 32 ? 32 : 64;
}

// Slices of the columns: enough for two blocks a multiprocessor where the tiles are few.
int slices_for(int64_t m, int64_t k, int64_t n, const Gpu& gpu) {
  const int tiles = tiles_of(m, kTileRows) * tiles_of(n, tile_tokens_for(n));
  const int stages = tiles_of(k, kStageBlocks * kBlockColumns);
  return std::clamp(2 * gpu.n_multiprocessors / tiles, 1, std::clamp(stages / 4, 1, 8));
}

}  // namespace

size_t matmul_scratch_bytes(const DeviceWeight& w, int64_t max_n, const Gpu& gpu) {
  size_t most = 0;
  for (int64_t n = 1; n <= max_n; ++n) {
    const int slices = slices_for(w.m, w.k, n, gpu);
    if (slices > 1) most = std::max(most, sizeof(float) * static_cast<size_t>(slices * n * w.m));
    if (tiles_of(w.m, kTileRows) * tiles_of(n, 64) > 2 * gpu.n_multiprocessors)
      break;  // one slice from here on
  }
  return most;
}

void launch_matmul(MatmulArgs args, std::byte* scratch, const Gpu& gpu, cudaStream_t stream) {
  const int tile = tile_tokens_for(args.n);
  args.n_slices = slices_for(args.w.m, args.w.k, args.n, gpu);
  const dim3 grid(static_cast<unsigned>(tiles_of(args.w.m, kTileRows)),
                  static_cast<unsigned>(tiles_of(args.n, tile)), static_cast<unsigned>(args.n_slices));
  if (args.n_slices == 1) return launch(args, tile, grid, gpu, stream);
  MatmulArgs slices = args;
  slices.partial = args.partial = reinterpret_cast<float*>(scratch);
  slices.store = MatmulStore::partial;
  launch(slices, tile, grid, gpu, stream);
  const int64_t count = static_cast<int64_t>(args.n) * args.w.m;
  add_slices_kernel<<<tiles_of(count, kReduceThreads), kReduceThreads, 0, stream>>>(args);
  check_launch("add_slices_kernel");
}

void launch_grouped_matmul(const MatmulArgs& args, int tile_tokens, int max_tiles, const Gpu& gpu,
                           cudaStream_t stream) {
  launch(args, tile_tokens,
         dim3(static_cast<unsigned>(tiles_of(args.w.m, kTileRows)), static_cast<unsigned>(max_tiles)), gpu,
         stream);
}

}  // namespace tandem::cuda
