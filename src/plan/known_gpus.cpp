#include "plan/known_gpus.h"

#include <algorithm>
#include <iterator>

namespace tandem {
namespace {

constexpr double kGiga = 1e9;

// The reading and arithmetic speeds that good kernels reach, taken as 0.8 and 0.4 of what the makers' data
// sheets say of the memory and of dense products of half floats; and the bus, as 0.85 of PCIe 3, 4 or 5 with
// 16 lanes (T4: 3, L4: 4 with 8 lanes; Macs and the like have none and are not here).
constexpr KnownGpu gpu(std::string_view name, double gib, double gb_per_s, double tflops,
                       double bus_gb_per_s) {
  return {name, gib, {0.8 * gb_per_s * kGiga, 0.4 * tflops * 1e12, 0.85 * bus_gb_per_s * kGiga, 8e-6, 2e-6}};
}
constexpr KnownGpu kGpus[] = {
    gpu("t4", 15, 320, 65, 15.8),       gpu("l4", 22.5, 300, 121, 15.8),  gpu("rtx3060", 12, 360, 51, 31.5),
    gpu("rtx3090", 24, 936, 142, 31.5), gpu("rtx4060", 8, 272, 60, 15.8), gpu("rtx4090", 24, 1008, 165, 31.5),
    gpu("rtx5090", 32, 1792, 210, 63),  gpu("a10", 22.5, 600, 125, 31.5), gpu("a100", 80, 2039, 312, 31.5),
    gpu("l40s", 45, 864, 362, 31.5),    gpu("h100", 80, 3350, 989, 63),   gpu("h200", 141, 4800, 989, 63),
};

}  // namespace

std::span<const KnownGpu> known_gpus() {
  return kGpus;
}

const KnownGpu* find_gpu(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kGpus), std::end(kGpus), [&](const KnownGpu& g) { return g.name == name; });
  return found == std::end(kGpus) ? nullptr : found;
}

}  // namespace tandem
