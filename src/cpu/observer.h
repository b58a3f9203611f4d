// Watching what matrix products multiply by: how importance matrices are made. Costs nothing when nobody
// watches.
#pragma once

#include <cstdint>
#include <functional>

#include "graph/tensor.h"

namespace tandem::cpu {

// The input of a product, or of one expert's product, in one step.
struct ProductInput {
  const Weight& weight;
  int64_t expert;         // which of weight.n_mats; 0 where there are no experts
  const float* x;         // rows of weight.n_cols
  const int32_t* row_of;  // [n] which rows of x; null: the first n
  int64_t n;

  const float* row(int64_t i) const { return x + (row_of ? row_of[i] : i) * weight.n_cols; }
};

// Called after the product, from one thread at a time, before the memory is used for anything else. Must not
// throw.
using ProductObserver = std::function<void(const ProductInput&)>;

}  // namespace tandem::cpu
