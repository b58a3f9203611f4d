// GPUs that one can only plan for: what their makers say of them.
#pragma once

#include <span>
#include <string_view>

#include "plan/cost.h"

namespace tandem {

// A GPU that `tandem plan` can be asked about.
struct KnownGpu {
  std::string_view name;  // "h100"
  double memory_gib = 0;
  DeviceRates rates;
};
std::span<const KnownGpu> known_gpus();
const KnownGpu* find_gpu(std::string_view name);  // null when there is none of that name

}  // namespace tandem
