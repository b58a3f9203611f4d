#include "exec/residency.h"

#include "base/error.h"

namespace tandem {

WeightResidency::WeightResidency(std::span<Device* const> devices)
    : devices_(devices), copies_(devices.size()), n_bytes_(devices.size(), 0) {}

WeightResidency::~WeightResidency() {
  for (size_t d = 0; d < copies_.size(); ++d) {
    for (const auto& [weight, address] : copies_[d]) devices_[d]->free(address);
  }
}

DevicePtr WeightResidency::address(DeviceId device, const Weight& weight, WeightSlices& slices) {
  const size_t d = device.index();
  // The CPU's kernels only read weights, but DevicePtr has no const form.
  if (devices_[d]->info().host_memory) return const_cast<std::byte*>(slices.kept(weight));
  const auto found = copies_[d].find(&weight);
  if (found != copies_[d].end()) return found->second;
  reserve(device, weight);
  const DevicePtr address = copies_[d].at(&weight);
  Weight contiguous = weight;
  const std::vector<std::byte> bytes = slices.packed(&weight);
  if (!bytes.empty()) contiguous.data = bytes.data();
  devices_[d]->upload(address, contiguous);
  if (!bytes.empty()) devices_[d]->wait(devices_[d]->record());  // before the bytes go
  return address;
}

void WeightResidency::reserve(DeviceId device, const Weight& weight) {
  const size_t d = device.index();
  TANDEM_CHECK(!devices_[d]->info().host_memory);
  if (copies_[d].contains(&weight)) return;
  const size_t n_bytes = devices_[d]->weight_bytes(weight);
  copies_[d].emplace(&weight, devices_[d]->alloc(n_bytes));
  n_bytes_[d] += n_bytes;
}

}  // namespace tandem
