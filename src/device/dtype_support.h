// DTypeSupport: how a device reads and multiplies weights of a dtype.
#pragma once

#include <cstdint>

namespace tandem {

enum class KernelPath : uint8_t {
  none,     // not supported
  generic,  // any readable dtype: rows are dequantized to floats by its reference code; slower
  own,      // kernels for this dtype
};

struct DTypeSupport {
  KernelPath read = KernelPath::none;      // rows as floats, for embedding tables
  KernelPath multiply = KernelPath::none;  // matrix products
};

}  // namespace tandem
