// Measures the limits of the first GPU, for comparison in `make bench-gpu`. Prints one JSON object:
//   {"device": "...",
//    "copy": bytes/s read and written by a copy on the device,
//    "to_device", "to_host": bytes/s over the bus from and to pinned memory,
//    "f16": operations/s of a large F16 product with F32 sums by cuBLAS}
// or {"device": "", "why": "..."} if there is no GPU. Links nothing of the device, whose kernels would make it large.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/driver.h"

namespace tandem::cuda {
namespace {

constexpr size_t kCopyBytes = size_t{2} << 30;
constexpr size_t kBusBytes = size_t{256} << 20;
constexpr int kOrder = 8192;  // of the matrices

// The median time of some runs in seconds, after a warm-up.
double seconds(cudaStream_t stream, const std::function<void()>& work) {
  cudaEvent_t begin, end;
  TANDEM_CUDA(cudaEventCreate(&begin));
  TANDEM_CUDA(cudaEventCreate(&end));
  std::vector<float> ms;
  for (int i = 0; i < 12; ++i) {
    TANDEM_CUDA(cudaEventRecord(begin, stream));
    work();
    TANDEM_CUDA(cudaEventRecord(end, stream));
    TANDEM_CUDA(cudaEventSynchronize(end));
    float elapsed;
    TANDEM_CUDA(cudaEventElapsedTime(&elapsed, begin, end));
    if (i > 0) ms.push_back(elapsed);
  }
  std::nth_element(ms.begin(), ms.begin() + static_cast<long>(ms.size() / 2), ms.end());
  return ms[ms.size() / 2] / 1000.0;
}

// Not zeros, because products of zeros run faster.
__global__ void fill_with_noise(uint16_t* to, size_t n) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x) {
    const uint32_t bits = static_cast<uint32_t>(i) * 2654435761u;
    to[i] = static_cast<uint16_t>((bits >> 31 << 15) | 0x3000 | (bits >> 16 & 0x0fff));  // halves of 1/8 to 1
  }
}

void print_limits(const std::string& description) {
  cudaStream_t stream;
  TANDEM_CUDA(cudaSetDevice(0));
  TANDEM_CUDA(cudaStreamCreate(&stream));
  std::byte *a, *b, *host;
  TANDEM_CUDA(cudaMalloc(&a, kCopyBytes));
  TANDEM_CUDA(cudaMalloc(&b, kCopyBytes));
  TANDEM_CUDA(cudaMallocHost(&host, kBusBytes));
  for (std::byte* memory : {a, b}) {
    fill_with_noise<<<1024, 256, 0, stream>>>(reinterpret_cast<uint16_t*>(memory), kCopyBytes / 2);
    check_launch("fill_with_noise");
  }

  const double copy = seconds(
      stream, [&] { TANDEM_CUDA(cudaMemcpyAsync(b, a, kCopyBytes, cudaMemcpyDeviceToDevice, stream)); });
  const double to_host = seconds(
      stream, [&] { TANDEM_CUDA(cudaMemcpyAsync(host, a, kBusBytes, cudaMemcpyDeviceToHost, stream)); });
  const double to_device = seconds(
      stream, [&] { TANDEM_CUDA(cudaMemcpyAsync(a, host, kBusBytes, cudaMemcpyHostToDevice, stream)); });
  CublasHandle cublas(stream);
  const cublasHandle_t handle = cublas.get();
  constexpr size_t kMatrix = size_t{kOrder} * kOrder * 2;
  const float one = 1.0f, zero = 0.0f;
  const double product = seconds(stream, [&] {
    TANDEM_CUBLAS(cublas_api().gemm_ex(handle, CUBLAS_OP_T, CUBLAS_OP_N, kOrder, kOrder, kOrder, &one, a,
                                       CUDA_R_16F, kOrder, a + kMatrix, CUDA_R_16F, kOrder, &zero, b,
                                       CUDA_R_32F, kOrder, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  });
  printf("{\"device\": \"%s\", \"copy\": %.6g, \"to_device\": %.6g, \"to_host\": %.6g, \"f16\": %.6g}\n",
         description.c_str(), 2.0 * kCopyBytes / copy, kBusBytes / to_device, kBusBytes / to_host,
         2.0 * kOrder * kOrder * kOrder / product);
}

int run() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    printf("{\"device\": \"\", \"why\": \"%s\"}\n", why_no_gpu(status).c_str());
    return 0;
  }
  try {
    cudaDeviceProp properties;
    TANDEM_CUDA(cudaGetDeviceProperties(&properties, 0));
    print_limits(properties.name);
  } catch (const Error& e) {
    fprintf(stderr, "gpu_limits: %s\n", e.what());
    return static_cast<int>(e.code());
  }
  return 0;
}

}  // namespace
}  // namespace tandem::cuda

int main() {
  return tandem::cuda::run();
}
