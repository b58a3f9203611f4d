#include "ggml-cuda/backend.h"

#include "ggml-cuda/dtypes.h"
#ifdef TANDEM_HAVE_CUDA
#include "ggml-cuda/cuda_device.h"
#endif

namespace tandem::cuda {
namespace {

constexpr double kGiga = 1e9;

// The read and arithmetic speeds that good kernels reach: 0.8 of the data sheet's memory bandwidth and 0.4 of
// its dense half-float products; for the bus, 0.85 of PCIe 3, 4 or 5 with as many lanes as the card has. Of cards that come in
// machines with NVLink between all of them, 0.8 of what it carries each way, and a usual time for the shortest sum.
constexpr KnownDevice gpu(std::string_view name, double gib, double gb_per_s, double tflops,
                          double bus_gb_per_s, double nvlink_gb_per_s = 0) {
  DeviceRates rates{0.8 * gb_per_s * kGiga, 0.4 * tflops * 1e12, 0.85 * bus_gb_per_s * kGiga, 8e-6, 2e-6};
  rates.peer_bytes_per_s = 0.8 * nvlink_gb_per_s * kGiga;
  rates.peer_s = nvlink_gb_per_s > 0 ? DeviceRates::kUsualPeerS : 0;
  return {name, gib, rates};
}
constexpr double kPcie3x16 = 15.8, kPcie4x8 = 15.8, kPcie4x16 = 31.5, kPcie5x8 = 31.5, kPcie5x16 = 63;
// Memory: of cards with error correction in the same memory, what that leaves.
constexpr KnownDevice kGpus[] = {
    // GeForce RTX 20, 30, 40, 50
    gpu("rtx2060", 6, 336, 52, kPcie3x16),
    gpu("rtx2070", 8, 448, 60, kPcie3x16),
    gpu("rtx2080", 8, 448, 81, kPcie3x16),
    gpu("rtx2080ti", 11, 616, 108, kPcie3x16),
    gpu("rtx3060", 12, 360, 51, kPcie4x16),
    gpu("rtx3060ti", 8, 448, 65, kPcie4x16),
    gpu("rtx3070", 8, 448, 81, kPcie4x16),
    gpu("rtx3080", 10, 760, 119, kPcie4x16),
    gpu("rtx3080ti", 12, 912, 136, kPcie4x16),
    gpu("rtx3090", 24, 936, 142, kPcie4x16),
    gpu("rtx3090ti", 24, 1008, 160, kPcie4x16),
    gpu("rtx4060", 8, 272, 60, kPcie4x8),
    gpu("rtx4060ti-8gb", 8, 288, 88, kPcie4x8),
    gpu("rtx4060ti-16gb", 16, 288, 88, kPcie4x8),
    gpu("rtx4070", 12, 504, 117, kPcie4x16),
    gpu("rtx4070super", 12, 504, 142, kPcie4x16),
    gpu("rtx4070ti", 12, 504, 160, kPcie4x16),
    gpu("rtx4070tisuper", 16, 672, 176, kPcie4x16),
    gpu("rtx4080", 16, 717, 195, kPcie4x16),
    gpu("rtx4080super", 16, 736, 209, kPcie4x16),
    gpu("rtx4090", 24, 1008, 330, kPcie4x16),
    gpu("rtx5060", 8, 448, 77, kPcie5x8),
    gpu("rtx5060ti-8gb", 8, 448, 95, kPcie5x8),
    gpu("rtx5060ti-16gb", 16, 448, 95, kPcie5x8),
    gpu("rtx5070", 12, 672, 123, kPcie5x16),
    gpu("rtx5070ti", 16, 896, 176, kPcie5x16),
    gpu("rtx5080", 16, 960, 225, kPcie5x16),
    gpu("rtx5090", 32, 1792, 419, kPcie5x16),
    // Workstations
    gpu("rtxa6000", 48, 768, 155, kPcie4x16),
    gpu("rtx6000ada", 48, 960, 364, kPcie4x16),
    gpu("rtxpro6000", 96, 1792, 503, kPcie5x16),
    // Servers
    gpu("v100-16gb", 16, 900, 125, kPcie3x16, 150),
    gpu("v100", 32, 900, 125, kPcie3x16, 150),
    gpu("t4", 15, 320, 65, kPcie3x16),
    gpu("a10", 22.5, 600, 125, kPcie4x16),
    gpu("a30", 24, 933, 165, kPcie4x16),
    gpu("a40", 45, 696, 150, kPcie4x16),
    gpu("a100-40gb", 40, 1555, 312, kPcie4x16, 300),
    gpu("a100", 80, 2039, 312, kPcie4x16, 300),
    gpu("l4", 22.5, 300, 121, kPcie4x8),
    gpu("l40", 45, 864, 181, kPcie4x16),
    gpu("l40s", 45, 864, 362, kPcie4x16),
    gpu("h100-pcie", 80, 2000, 756, kPcie5x16),
    gpu("h100", 80, 3350, 989, kPcie5x16, 450),
    gpu("h200", 141, 4800, 989, kPcie5x16, 450),
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
