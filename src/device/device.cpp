#include "device/device.h"  // compiles on its own

namespace tandem {

static_assert(sizeof(DevicePtr) == 8, "device addresses are 64 bits wide");

}  // namespace tandem
