#include "ggml-cuda/small_copies.h"

#include <algorithm>

#include "ggml-cuda/compiled_op.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kVector = 16;

struct SmallCopies {
  SmallCopy copy[kMaxSmallCopies];
};

// The grid's x is the copy; its y and the threads share its pieces of 16 bytes. Targets are aligned like floats, or
// copied byte by byte.
__global__ void __launch_bounds__(kThreads) small_copies_kernel(const __grid_constant__ SmallCopies copies) {
  const SmallCopy& copy = copies.copy[blockIdx.x];
  const auto at_target = reinterpret_cast<uintptr_t>(copy.to);
  const uint32_t step = kVector * kThreads * gridDim.y;
  for (uint32_t at = kVector * (blockIdx.y * kThreads + threadIdx.x); at < copy.n_bytes; at += step) {
    const uint4 v = __ldcv(reinterpret_cast<const uint4*>(copy.from + at));  // the host rewrites it
    if (at + kVector <= copy.n_bytes && at_target % kVector == 0) {
      *reinterpret_cast<uint4*>(copy.to + at) = v;
      continue;
    }
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    if (at + kVector <= copy.n_bytes && at_target % 4 == 0) {
      for (int i = 0; i < 4; ++i) reinterpret_cast<uint32_t*>(copy.to + at)[i] = words[i];
      continue;
    }
    for (uint32_t i = 0; i < kVector && at + i < copy.n_bytes; ++i)
      copy.to[at + i] = static_cast<std::byte>(words[i / 4] >> 8 * (i % 4) & 0xff);
  }
}

}  // namespace

void launch_small_copies(std::span<const SmallCopy> copies, cudaStream_t stream) {
  TANDEM_CHECK(!copies.empty() && copies.size() <= kMaxSmallCopies);
  SmallCopies all{};
  std::copy(copies.begin(), copies.end(), all.copy);
  uint32_t most = 0;
  for (const SmallCopy& copy : copies) most = std::max(most, copy.n_bytes);
  const dim3 grid(static_cast<unsigned>(copies.size()),
                  std::clamp<unsigned>(most / (4 * kVector * kThreads), 1, 4));
  small_copies_kernel<<<grid, kThreads, 0, stream>>>(all);
  check_launch("small_copies_kernel");
}

}  // namespace tandem::cuda
