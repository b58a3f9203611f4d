// Which path each dtype takes on the device. Floats lie as in the file, quantized dtypes with kernels in
// planes (layout.h). Every other readable format also lies as in the file; its kernels (matvec.h,
// products.cu) read it with the format's reference code.
#pragma once

#include "device/dtype_support.h"
#include "ggml-cuda/layout.h"
#include "gguf/blocks.h"

namespace tandem::cuda {

// Calls fn.template operator()<Block>() for a dtype of the generic path; false for others.
template <class Fn>
TANDEM_HD inline bool for_generic_block(DType dtype, Fn&& fn) {
  bool found = false;
  BlockFormats::visit(dtype, [&]<class Block>() {
    if constexpr (!has_planes(Block::kDType)) {
      fn.template operator()<Block>();
      found = true;
    }
  });
  return found;
}

inline bool is_generic(DType dtype) {
  return for_generic_block(dtype, [&]<class Block>() {});
}

inline DTypeSupport dtype_support(DType dtype) {
  const KernelPath path = is_plain(dtype) || has_planes(dtype) ? KernelPath::own
                          : is_generic(dtype)                  ? KernelPath::generic
                                                               : KernelPath::none;
  return {path, path};
}

}  // namespace tandem::cuda
