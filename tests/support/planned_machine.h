// A machine to plan for: speeds of its devices, and what weights take on a GPU.
#pragma once

#include <cstddef>

#include "device/rates.h"
#include "graph/tensor.h"

namespace tandem::test {

inline constexpr DeviceRates kPlannerHost{20e9, 0.5e12, 20e9, 1e-6, 1e-7};
inline constexpr DeviceRates kPlannerGpu{1000e9, 50e12, 25e9, 1e-5, 2e-6};

// For devices that keep weights as they are in the file.
inline size_t bytes_as_in_file(const Weight& w) {
  return w.n_bytes();
}

}  // namespace tandem::test
