#include "ggml-cuda/backend.h"

#include "ggml-cuda/dtypes.h"
#ifdef TANDEM_HAVE_CUDA
#include "ggml-cuda/cuda_device.h"
#endif

namespace tandem::cuda {
namespace {

constexpr double kGiga = 1e9;

// The read and arithmetic speeds that good kernels reach: 0.8 of the data sheet's memory bandwidth and 0.4 of
// its dense half-float products; for the bus, 0.85 of PCIe 3, 4 or 5 with 16 lanes (T4: 3, L4: 4 with 8
// lanes; GPUs without such a bus are not listed).
constexpr KnownDevice gpu(std::string_view name, double gib, double gb_per_s, double tflops,
                          double bus_gb_per_s) {
  return {name, gib, {0.8 * gb_per_s * kGiga, 0.4 * tflops * 1e12, 0.85 * bus_gb_per_s * kGiga, 8e-6, 2e-6}};
}
constexpr KnownDevice kGpus[] = {
    gpu("t4", 15, 320, 65, 15.8),       gpu("l4", 22.5, 300, 121, 15.8),  gpu("rtx3060", 12, 360, 51, 31.5),
    gpu("rtx3090", 24, 936, 142, 31.5), gpu("rtx4060", 8, 272, 60, 15.8), gpu("rtx4090", 24, 1008, 165, 31.5),
    gpu("rtx5090", 32, 1792, 210, 63),  gpu("a10", 22.5, 600, 125, 31.5), gpu("a100", 80, 2039, 312, 31.5),
    gpu("l40s", 45, 864, 362, 31.5),    gpu("h100", 80, 3350, 989, 63),   gpu("h200", 141, 4800, 989, 63),
};

#ifndef TANDEM_HAVE_CUDA
FoundDevices find_devices() {
  return {{}, "this program was built without CUDA"};
}
#endif

}  // namespace

Backend backend() {
  return {kBackendName, find_devices, device_weight_bytes, kGpus, dtype_support};
}

size_t device_weight_bytes(const Weight& weight) {
  return static_cast<size_t>(layout_bytes(weight.dtype, weight.n_mats, weight.n_rows, weight.n_cols,
                                          static_cast<int64_t>(weight.n_bytes())));
}

}  // namespace tandem::cuda
