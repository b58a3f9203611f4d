// The devices of this process, in the order users count them: CPU first. The binary's main links devices in by adding
// them here; everything else only looks.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace tandem {

class DeviceRegistry {
 public:
  void add(std::unique_ptr<Device> device) { devices_.push_back(std::move(device)); }
  Device* find(std::string_view name) const {
    for (const auto& device : devices_) {
      if (device->info().name == name) return device.get();
    }
    return nullptr;
  }
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace tandem
