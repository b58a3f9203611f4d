// Formats of one or two bits, and of floats of four bits.
#include "cpu/avx512/linear_make_format.h"
#include "cpu/avx512/linear_row_formats.h"
#include "cpu/avx512/linear_row_pairs.h"
#include "cpu/avx512/linear_row_planes.h"
#include "cpu/avx512/linear_unpack_low.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

const Format* find_low_format(DType dtype) {
  static constexpr Format mxfp4 = format_of<UnpackMXFP4, RowMXFP4>();
  static constexpr Format nvfp4 = format_of<UnpackNVFP4, RowNVFP4>();
  static constexpr Format q1_0 = format_of<UnpackQ1_0>();
  static constexpr Format tq2_0 = format_of<UnpackTQ2_0, RowTQ2_0>();
  static constexpr Format iq1_s = format_of<UnpackIQ1_S>();
  static constexpr Format iq1_m = format_of<UnpackIQ1_M>();
  static constexpr Format tq1_0 = format_of<UnpackTQ1_0>();
  switch (dtype) {
    case DType::MXFP4: return &mxfp4;
    case DType::NVFP4: return &nvfp4;
    case DType::Q1_0: return &q1_0;
    case DType::TQ2_0: return &tq2_0;
    case DType::IQ1_S: return &iq1_s;
    case DType::IQ1_M: return &iq1_m;
    case DType::TQ1_0: return &tq1_0;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
