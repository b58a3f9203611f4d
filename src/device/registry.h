// Registry: the backends of a program. A backend is a kind of device: the CPU, or the GPUs of one maker.
// Its folder describes it in a Backend, and the program lists them in one place (src/setup/backends.cpp). All
// other code asks the registry and names no backend.
//
// Single-threaded.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "device/rates.h"

namespace tandem {

struct FoundDevices {
  std::vector<std::unique_ptr<Device>> devices;
  std::string why_none;  // "no driver"; empty if there are devices
};

// A device to plan for without having it, with its data from the maker.
struct KnownDevice {
  std::string_view name;  // "h100", in lower case
  double memory_gib = 0;
  DeviceRates rates;
};

struct Backend {
  std::string name;  // "CPU"; names of GPUs append a number: "SIM0", "SIM1", ...
  // Finds the devices of this machine, new ones at each call. GPU backends do not throw.
  std::function<FoundDevices()> find;

  // For planning with GPUs that are not present: the bytes that a weight takes on one, and the GPUs known
  // by name.
  std::function<size_t(const Weight&)> weight_bytes = nullptr;
  std::span<const KnownDevice> known = {};
  std::function<DTypeSupport(DType)> dtype_support = nullptr;  // null: kernels for every dtype
};

// A KnownDevice with the functions of its backend.
struct KnownGpu : KnownDevice {
  std::function<size_t(const Weight&)> weight_bytes;
  std::function<DTypeSupport(DType)> dtype_support;
};

class Registry {
 public:
  // The host's backend comes first. Names must be unique.
  explicit Registry(std::vector<Backend> backends);

  std::span<const Backend> backends() const { return backends_; }
  std::span<const Backend> gpu_backends() const { return backends().subspan(1); }

  // Makes the host device, which works on host memory. Throws what its backend throws.
  std::unique_ptr<Device> make_host() const;
  // Finds the GPUs of this machine, backend by backend. With several backends, why_none names each of them.
  FoundDevices find_gpus() const;

  // Returns all known GPUs, in the order of the backends.
  std::vector<KnownGpu> known_gpus() const;
  // Returns the known GPU of that name, if there is one.
  std::optional<KnownGpu> find_known(std::string_view name) const;
  // For a GPU of an unknown model: the functions of the first GPU backend. Throws Error(usage) if there is
  // none.
  std::function<size_t(const Weight&)> usual_weight_bytes() const;
  std::function<DTypeSupport(DType)> usual_dtype_support() const;

 private:
  const Backend& usual_gpu_backend() const;

  std::vector<Backend> backends_;
};

}  // namespace tandem
