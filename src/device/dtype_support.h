// What a device can do with weights of a dtype.
#pragma once

#include <cstdint>

namespace tandem {

enum class KernelPath : uint8_t {
  none,     // cannot be done here
  generic,  // by way of rows of floats, which the format's reference makes: any format that can be read; slower
  own,      // kernels of the dtype's own
};

struct DTypeSupport {
  KernelPath read = KernelPath::none;      // rows as floats: token tables
  KernelPath multiply = KernelPath::none;  // matrix products
};

}  // namespace tandem
