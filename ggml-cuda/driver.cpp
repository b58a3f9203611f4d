#include "ggml-cuda/driver.h"

#include <cstring>

#include "base/error.h"
#include "ggml-cuda/compiled_op.h"

namespace tandem::cuda {
namespace {

std::string version_text(int version) {
  return format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

std::string why_no_gpu(cudaError_t status) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaGetLastError();
  if (driver == 0) return "no NVIDIA driver";
  if (status == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver is for CUDA " + version_text(driver) + ", needed is " + version_text(runtime);
  }
  if (status == cudaSuccess || status == cudaErrorNoDevice) return "no NVIDIA GPU";
  return std::string("the NVIDIA driver says: ") + cudaGetErrorString(status);
}

void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // what can be forgotten is forgotten
  const auto name_length = static_cast<int>(std::strcspn(call, "("));
  throw_error(status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::io, "{:.{}}: {}",
              call, name_length, cudaGetErrorString(status));
}

}  // namespace tandem::cuda
