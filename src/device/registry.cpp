#include "device/registry.h"

#include "base/error.h"

namespace tandem {

Registry::Registry(std::vector<Backend> backends) : backends_(std::move(backends)) {
  TANDEM_CHECK(!backends_.empty());
  for (size_t i = 0; i < backends_.size(); ++i) {
    TANDEM_CHECK(!backends_[i].name.empty() && backends_[i].find);
    for (size_t j = 0; j < i; ++j) TANDEM_CHECK(backends_[i].name != backends_[j].name);
  }
}

std::unique_ptr<Device> Registry::make_host() const {
  FoundDevices found = backends_.front().find();
  TANDEM_CHECK(!found.devices.empty() && found.devices.front()->info().host_memory);
  return std::move(found.devices.front());
}

FoundDevices Registry::find_gpus() const {
  FoundDevices all;
  for (const Backend& backend : gpu_backends()) {
    FoundDevices found = backend.find();
    for (auto& device : found.devices) all.devices.push_back(std::move(device));
    if (!all.why_none.empty()) all.why_none += "; ";
    all.why_none += (gpu_backends().size() > 1 ? backend.name + ": " : "") + found.why_none;
  }
  if (gpu_backends().empty()) all.why_none = "this program was built without a GPU backend";
  if (!all.devices.empty()) all.why_none.clear();
  return all;
}

std::vector<KnownGpu> Registry::known_gpus() const {
  std::vector<KnownGpu> list;
  for (const Backend& backend : gpu_backends()) {
    for (const KnownDevice& device : backend.known)
      list.push_back({device, backend.weight_bytes, backend.dtype_support});
  }
  return list;
}

std::optional<KnownGpu> Registry::find_known(std::string_view name) const {
  for (KnownGpu& gpu : known_gpus()) {
    if (gpu.name == name) return std::move(gpu);
  }
  return std::nullopt;
}

const Backend& Registry::usual_gpu_backend() const {
  if (gpu_backends().empty()) throw_error(ErrorCode::usage, "this program was built without a GPU backend");
  return gpu_backends().front();
}

std::function<size_t(const Weight&)> Registry::usual_weight_bytes() const {
  return usual_gpu_backend().weight_bytes;
}

std::function<DTypeSupport(DType)> Registry::usual_dtype_support() const {
  return usual_gpu_backend().dtype_support;
}

}  // namespace tandem
