// Observes the inputs of matrix products, to build importance matrices. Costs nothing without an observer.
#pragma once

#include <cstdint>
#include <functional>

#include "graph/tensor.h"

namespace tandem::cpu {

// The input of a product, or of one expert's or head's product, in one step.
struct ProductInput {
  const Weight& weight;
  int64_t expert;         // which of weight.n_mats; 0 for a single matrix
  const float* x;         // rows of weight.n_cols
  const int32_t* row_of;  // [n] row of x for each input; null: the first n rows
  int64_t n;
  int64_t stride = 0;  // floats from row to row; 0: weight.n_cols

  const float* row(int64_t i) const {
    return x + (row_of ? row_of[i] : i) * (stride > 0 ? stride : weight.n_cols);
  }
};

// Called after the product, from one thread at a time, before the memory is reused. Must not throw.
using ProductObserver = std::function<void(const ProductInput&)>;

// Called with the bytes that attention has read of a layer's cache, where it reads it sparsely. Must not throw.
using CacheReadObserver = std::function<void(int64_t n_bytes)>;

}  // namespace tandem::cpu
