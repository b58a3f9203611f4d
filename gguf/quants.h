// The scalar reference of the dtypes: converts blocks to floats and back, bit-compatible with the
// format. All kernels are tested against it. Callable from any thread; no state; nothing is thrown.
//
// Pointers need only the alignment of the block type's members (at most 2 bytes; 4 for F32).
// Quantizers accept any float: NaN and infinities do not crash, but give meaningless values.
#pragma once

#include <cstdint>

#include "gguf/dtype.h"

namespace tandem {

// Look up the function once, outside the loop. The dtype must have it (see DTypeInfo).
DequantizeFn dequantize_fn(DType dtype);
QuantizeFn quantize_fn(DType dtype);

inline void dequantize_row(DType dtype, const void* src, float* dst, int64_t n) {
  dequantize_fn(dtype)(src, dst, n);
}
inline void quantize_row(DType dtype, const float* src, void* dst, int64_t n,
                         const float* importance = nullptr) {
  quantize_fn(dtype)(src, dst, n, importance);
}
// As quantize_row, for the rows of a cache, which are stored while text is generated: IQ4_NL's scale comes from one
// rounding instead of a search. All other dtypes give the same bytes.
void quantize_cache_row(DType dtype, const float* src, void* dst, int64_t n);

}  // namespace tandem
