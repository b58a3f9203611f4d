// Bytes of its results (quantize.h) that a kernel makes for the next one (handed_bytes.h).
#pragma once

#include "ggml-cuda/quantize.h"

namespace tandem::cuda {

// For an encoding that is not wanted, null.
struct MadeBytes {
  std::byte* q[kEncodings] = {};
  BlockMeta* meta[kEncodings] = {};
  int* counters = nullptr;  // all 0, before and after a kernel

  TANDEM_HD bool any() const { return q[0] != nullptr || q[1] != nullptr; }
};

}  // namespace tandem::cuda
