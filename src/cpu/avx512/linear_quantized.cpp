// Products with block-quantized weights: the formats of all tables.
#include "base/error.h"
#include "cpu/avx512/linear_drive.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Null: no kernels.
const Format* find_format(DType dtype) {
  const Format* found = find_block_format(dtype);
  if (!found) found = find_super_format(dtype);
  return found ? found : find_low_format(dtype);
}

const Format& format(DType dtype) {
  const Format* found = find_format(dtype);
  TANDEM_CHECK(found != nullptr);
  return *found;
}

}  // namespace

int unit_of(DType dtype) {
  const Format* found = find_format(dtype);
  return found ? found->shape.unit : 0;
}

Encoding encoding_of(DType dtype, int64_t n) {
  const Format& f = format(dtype);
  return f.by_rows(n) ? Encoding{f.shape.unit, f.row_order, 1}
                      : Encoding{f.shape.unit, Order::columns, tile_tokens(n)};
}

size_t quantized_scratch_bytes(DType dtype, int64_t n, int64_t k) {
  return scratch_bytes_of(format(dtype), n, k);
}

void multiply_quantized(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  multiply_format(call, format(call.dtype), row0, row1, scratch);
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
