// Formats of blocks of 32 columns with a scale each.
#include "cpu/avx512/linear_make_format.h"
#include "cpu/avx512/linear_row_formats.h"
#include "cpu/avx512/linear_unpack.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

const Format* find_block_format(DType dtype) {
  static constexpr Format q4_0 = format_of<UnpackQ4_0, RowQ4_0>();
  static constexpr Format q4_1 = format_of<UnpackQ4_1, RowQ4_1>();
  static constexpr Format q5_0 = format_of<UnpackQ5_0, RowQ5_0>();
  static constexpr Format q5_1 = format_of<UnpackQ5_1, RowQ5_1>();
  static constexpr Format q8_0 = format_of<UnpackQ8_0, RowQ8_0>();
  static constexpr Format iq4_nl = format_of<UnpackIQ4_NL, RowIQ4_NL>();
  switch (dtype) {
    case DType::Q4_0: return &q4_0;
    case DType::Q4_1: return &q4_1;
    case DType::Q5_0: return &q5_0;
    case DType::Q5_1: return &q5_1;
    case DType::Q8_0: return &q8_0;
    case DType::IQ4_NL: return &iq4_nl;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
