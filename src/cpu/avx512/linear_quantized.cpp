// Products with block-quantized weights: the formats.
#include "base/error.h"
#include "cpu/avx512/linear_drive.h"
#include "cpu/avx512/linear_row_formats.h"
#include "cpu/avx512/linear_row_pairs.h"
#include "cpu/avx512/linear_row_planes.h"
#include "cpu/avx512/linear_unpack_low.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Null: no kernels.
const Format* find_format(DType dtype) {
  static constexpr Format q4_0 = format_of<UnpackQ4_0, RowQ4_0>(), q4_1 = format_of<UnpackQ4_1, RowQ4_1>();
  static constexpr Format q5_0 = format_of<UnpackQ5_0, RowQ5_0>(), q5_1 = format_of<UnpackQ5_1, RowQ5_1>();
  static constexpr Format q8_0 = format_of<UnpackQ8_0, RowQ8_0>(),
                          iq4_nl = format_of<UnpackIQ4_NL, RowIQ4_NL>();
  static constexpr Format mxfp4 = format_of<UnpackMXFP4, RowMXFP4>(), q2_k = format_of<UnpackQ2_K, RowQ2_K>();
  static constexpr Format q3_k = format_of<UnpackQ3_K, RowQ3_K>(), q4_k = format_of<UnpackQ4_K, RowQ4_K>();
  static constexpr Format q5_k = format_of<UnpackQ5_K, RowQ5_K>(), q6_k = format_of<UnpackQ6_K, RowQ6_K>();
  static constexpr Format iq4_xs = format_of<UnpackIQ4_XS, RowIQ4_XS>(), tq2_0 = format_of<UnpackTQ2_0, RowTQ2_0>();
  static constexpr Format nvfp4 = format_of<UnpackNVFP4, RowNVFP4>(), q1_0 = format_of<UnpackQ1_0>();
  static constexpr Format iq1_s = format_of<UnpackIQ1_S>(), iq1_m = format_of<UnpackIQ1_M>(), tq1_0 = format_of<UnpackTQ1_0>();
  switch (dtype) {
    case DType::Q4_0: return &q4_0;
    case DType::Q4_1: return &q4_1;
    case DType::Q5_0: return &q5_0;
    case DType::Q5_1: return &q5_1;
    case DType::Q8_0: return &q8_0;
    case DType::IQ4_NL: return &iq4_nl;
    case DType::MXFP4: return &mxfp4;
    case DType::Q2_K: return &q2_k;
    case DType::Q3_K: return &q3_k;
    case DType::Q4_K: return &q4_k;
    case DType::Q5_K: return &q5_k;
    case DType::Q6_K: return &q6_k;
    case DType::IQ4_XS: return &iq4_xs;
    case DType::TQ2_0: return &tq2_0;
    case DType::NVFP4: return &nvfp4;
    case DType::Q1_0: return &q1_0;
    case DType::IQ1_S: return &iq1_s;
    case DType::IQ1_M: return &iq1_m;
    case DType::TQ1_0: return &tq1_0;
    default: return nullptr;
  }
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
