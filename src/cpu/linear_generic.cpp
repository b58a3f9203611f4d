#include "cpu/linear_generic.h"

#include <algorithm>

#include "gguf/quants.h"

namespace tandem::cpu {
namespace {

// Rows of a strip: a multiple of the row granularity. With 16 rows of 4096 columns its floats take 256 KB and fit in
// L2.
int64_t strip_rows(const LinearKernels& own, int64_t n, int64_t k) {
  return std::max<int64_t>(16, own.row_granularity(DType::F32, n, INT64_MAX, k));
}

size_t strip_bytes(int64_t rows, int64_t k) {
  return (sizeof(float) * static_cast<size_t>(rows * k) + 63) / 64 * 64;
}

}  // namespace

void multiply_as_floats(const LinearKernels& own, const LinearCall& call, int64_t row0, int64_t row1,
                        std::byte* scratch) {
  const DequantizeFn dequantize = dequantize_fn(call.dtype);
  const size_t stride = row_bytes(call.dtype, call.k);
  const int64_t rows = strip_rows(own, call.n, call.k);
  float* const floats = reinterpret_cast<float*>(scratch);  // [rows, k]
  for (int64_t row = row0; row < row1; row += rows) {
    LinearCall strip = call;
    strip.dtype = DType::F32;
    strip.w = scratch;
    strip.m = std::min(rows, row1 - row);
    strip.y += row;
    if (strip.bias) strip.bias += row;
    if (strip.residual) strip.residual += row;
    const std::byte* from = call.w + static_cast<size_t>(row) * stride;
    for (int64_t r = 0; r < strip.m; ++r, from += stride) dequantize(from, floats + r * call.k, call.k);
    own.multiply(strip, 0, strip.m, scratch + strip_bytes(rows, call.k));
  }
}

size_t as_floats_scratch_bytes(const LinearKernels& own, int64_t n, int64_t k) {
  return strip_bytes(strip_rows(own, n, k), k) + own.scratch_bytes(DType::F32, n, k);
}

}  // namespace tandem::cpu
