// Activations [n, k] as 16-bit floats, as products of many tokens read them.
#pragma once

#include <cstdint>

#include "ggml-cuda/portable.h"
#include "gguf/dtype.h"

namespace tandem::cuda {

enum class ColumnOrder : uint8_t {
  ascending,  // as cuBLAS reads them
  fragments,  // as wgmma.h does, whose lanes hold four neighbouring columns of the weights
};

struct NarrowForm {
  DType dtype = DType::BF16;  // or F16
  ColumnOrder order = ColumnOrder::ascending;
  bool operator==(const NarrowForm&) const = default;
};

// In the order of fragments, of each 16 columns the pairs 0, 2, 4, 6 come first, then 1, 3, 5, 7. Returns the place of the first of
// two columns; it is even.
TANDEM_HD constexpr int place_of_pair(int column) {
  const int pair = column % 16 / 2;
  return column / 16 * 16 + 2 * (pair / 2 + pair % 2 * 4);
}

}  // namespace tandem::cuda
