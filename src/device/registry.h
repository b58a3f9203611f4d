// The registry: the backends that a program has. A backend is a kind of device: the CPU, or the GPUs of one
// maker. Its folder describes it in a Backend, the program lists those in one place (tools/backends.cpp), and
// all others ask here, so none of them names a backend.
//
// One thread.
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
  std::string why_none;  // "no driver"; empty when there are some
};

// A device that one can plan for without having it: what its maker says of it.
struct KnownDevice {
  std::string_view name;  // "h100", in lower case
  double memory_gib = 0;
  DeviceRates rates;
};

struct Backend {
  std::string name;  // "CPU"; GPUs have numbers behind it: "SIM0", "SIM1", ...
  // The devices of this machine, new ones at each call. Those of GPUs throw nothing.
  std::function<FoundDevices()> find;

  // Of GPUs, to plan for what is not here: bytes that a weight takes on one, and those known by name.
  std::function<size_t(const Weight&)> weight_bytes = nullptr;
  std::span<const KnownDevice> known = {};
  std::function<DTypeSupport(DType)> dtype_support = nullptr;  // null: kernels for every dtype
};

// A KnownDevice of any backend.
struct KnownGpu : KnownDevice {
  std::function<size_t(const Weight&)> weight_bytes;
  std::function<DTypeSupport(DType)> dtype_support;
};

class Registry {
 public:
  // The host's backend first; no two have one name.
  explicit Registry(std::vector<Backend> backends);

  std::span<const Backend> backends() const { return backends_; }
  std::span<const Backend> gpu_backends() const { return backends().subspan(1); }

  // The host of devices: it works on host memory. Throws what its backend throws.
  std::unique_ptr<Device> make_host() const;
  // The GPUs of this machine, of one backend after the other. Why there are none names the backends where
  // there are several.
  FoundDevices find_gpus() const;

  // All known GPUs, in the backends' order, and the one of that name.
  std::vector<KnownGpu> known_gpus() const;
  std::optional<KnownGpu> find_known(std::string_view name) const;
  // Of a GPU of which nothing is known: as on those of the first backend. Throws Error(usage) without one.
  std::function<size_t(const Weight&)> usual_weight_bytes() const;
  std::function<DTypeSupport(DType)> usual_dtype_support() const;

 private:
  const Backend& usual_gpu_backend() const;

  std::vector<Backend> backends_;
};

}  // namespace tandem
