// Formats of super-blocks of 256 columns.
#include "cpu/avx512/linear_make_format.h"
#include "cpu/avx512/linear_row_formats.h"
#include "cpu/avx512/linear_row_planes.h"
#include "cpu/avx512/linear_unpack.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

const Format* find_super_format(DType dtype) {
  static constexpr Format q2_k = format_of<UnpackQ2_K, RowQ2_K>();
  static constexpr Format q3_k = format_of<UnpackQ3_K, RowQ3_K>();
  static constexpr Format q4_k = format_of<UnpackQ4_K, RowQ4_K>();
  static constexpr Format q5_k = format_of<UnpackQ5_K, RowQ5_K>();
  static constexpr Format q6_k = format_of<UnpackQ6_K, RowQ6_K>();
  static constexpr Format iq4_xs = format_of<UnpackIQ4_XS, RowIQ4_XS>();
  switch (dtype) {
    case DType::Q2_K: return &q2_k;
    case DType::Q3_K: return &q3_k;
    case DType::Q4_K: return &q4_k;
    case DType::Q5_K: return &q5_k;
    case DType::Q6_K: return &q6_k;
    case DType::IQ4_XS: return &iq4_xs;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
