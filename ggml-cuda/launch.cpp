#include "ggml-cuda/launch.cuh"

#include <map>
#include <mutex>
#include <utility>

namespace tandem::cuda {

std::atomic<bool> may_overlap_together{true};

bool can_overlap(const void* kernel) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, bool> known;  // by device
  int device = 0;
  TANDEM_CUDA(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  if (const auto found = known.find({device, kernel}); found != known.end()) return found->second;
  cudaFuncAttributes attributes{};
  TANDEM_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  return known[{device, kernel}] = attributes.ptxVersion >= 90;
}

void allow_shared(const void* function, size_t limit) {
  cudaFuncAttributes attributes{};
  TANDEM_CUDA(cudaFuncGetAttributes(&attributes, function));
  TANDEM_CUDA(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(limit - attributes.sharedSizeBytes)));
}

}  // namespace tandem::cuda
