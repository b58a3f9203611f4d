// What the choice of kernels depends on in a GPU. No CUDA in here: the unit tests run all of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tandem::cuda {

struct Gpu {
  int compute_capability = 0;  // 80, 86, 89, 90, ...
  int n_multiprocessors = 0;
  int64_t panel_bytes = 0;  // of weights that are converted for cuBLAS at a time
  int64_t l2_bytes = 0;
};

// Bytes of converted weights at a time: much of it still in the L2 cache when it is read, and little of the memory.
constexpr int64_t panel_bytes_for(int64_t memory_bytes) {
  return std::min(int64_t{64} << 20, memory_bytes / 256);
}

// Tokens up to which the integer kernel (matmul.h) is the faster one for quantized weights. Making bf16 panels moves 4.6
// bytes a weight (2.6 to make one, 2 to read it back), whatever n; then cuBLAS does two to three times the operations a
// second on server GPUs (A100; H100, B100), and no more on the others: GeForce and RTX GPUs multiply 16-bit floats with
// F32 sums at half their speed, those of compute capability 12 too. To be confirmed by measurement.
constexpr int64_t max_int8_tokens(int compute_capability) {
  if (compute_capability == 80) return 512;
  return compute_capability >= 90 && compute_capability < 120 ? 192 : INT64_MAX;
}

// Maximum bytes of shared memory per block, and of a multiprocessor.
constexpr size_t shared_limit(int compute_capability) {
  switch (compute_capability) {
    case 80:
    case 87: return 163 << 10;
    case 90:
    case 100:
    case 103:
    case 110: return 227 << 10;
    default: return 99 << 10;
  }
}
constexpr size_t shared_of_multiprocessor(int compute_capability) {
  return shared_limit(compute_capability) + 1024;
}

}  // namespace tandem::cuda
