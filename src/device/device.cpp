#include "device/device.h"

#include "device/registry.h"  // both headers compile on their own

namespace tandem {

static_assert(sizeof(DevicePtr) == 8, "device addresses are 64 bits wide");

}  // namespace tandem
