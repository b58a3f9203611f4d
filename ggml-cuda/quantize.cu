#include "ggml-cuda/launch.cuh"
#include "ggml-cuda/products.cuh"
#include "ggml-cuda/quantize.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

// x [n, k] -> q, meta. Eight columns a thread: four threads a block of 32, a warp 256 columns; the grid's x
// is the token. Bytes: 4 n k read, 1.25 n k written; 16 + 5 KB for a token of 4096 columns: the time of a
// launch.
template <Encoding E>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const float* x, int k, std::byte* q, BlockMeta* meta) {
  let_next_begin();
  wait_for_previous();
  const int64_t token = blockIdx.x;
  const int column = kLaneColumns * static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  const bool inside = column < k;  // all the threads that share a scale, or none
  float values[kLaneColumns] = {};
  if (inside) {
    const float4* from = reinterpret_cast<const float4*>(x + token * k + column);
    const float4 a = from[0], b = from[1];
    values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
    values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
  }
  encode_columns<E>(values, inside, token, column, k, q, meta);
}

// x [n] as 16-bit floats, four a thread. Rows of columns in the order of fragments are multiples of 16, so that x is one row.
template <DType T>
__global__ void __launch_bounds__(kThreads)
    narrow_kernel(ColumnOrder order, const float* x, int64_t n, uint16_t* to) {
  const int64_t i = 4 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (i + 4 <= n) {
    const float4 v = *reinterpret_cast<const float4*>(x + i);
    const int at = static_cast<int>(i % 16);
    store_narrow<T>(order, {v.x, v.y, v.z, v.w}, to + (i - at), at);
  } else {
    for (int64_t j = i; j < n; ++j) to[j] = narrowed<T>(x[j]);
  }
}

}  // namespace

void quantize_activations(Encoding encoding, const float* x, int64_t n, int64_t k, const Activations& to,
                          cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(n),
                  static_cast<unsigned>((k / kLaneColumns + kThreads - 1) / kThreads));
  const auto kernel =
      encoding == Encoding::by_32 ? quantize_kernel<Encoding::by_32> : quantize_kernel<Encoding::by_256>;
  launch_overlapping(kernel, grid, kThreads, 0, stream, x, static_cast<int>(k), const_cast<std::byte*>(to.q),
                     const_cast<BlockMeta*>(to.meta));
}

void narrow_activations(NarrowForm form, const float* x, int64_t n, void* to, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>((n + 4 * kThreads - 1) / (4 * kThreads));
  auto* values = static_cast<uint16_t*>(to);
  const auto kernel = form.dtype == DType::BF16 ? narrow_kernel<DType::BF16> : narrow_kernel<DType::F16>;
  kernel<<<grid, kThreads, 0, stream>>>(form.order, x, n, values);
  check_launch("narrow_kernel");
}

}  // namespace tandem::cuda
