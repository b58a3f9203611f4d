// The formats of vbmi/, whose unpackers give columns in fours.
#include "cpu/amx/linear_unpack.h"
#include "cpu/vbmi/linear_unpack.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

const Format* find_grid_format(DType dtype) {
  switch (dtype) {
    case DType::IQ1_S: return &format_of<UnpackIQ1_S, Order::fours>;
    case DType::IQ1_M: return &format_of<UnpackIQ1_M, Order::fours>;
    case DType::IQ2_XXS: return &format_of<UnpackIQ2_XXS, Order::fours>;
    case DType::IQ2_XS: return &format_of<UnpackIQ2_XS, Order::fours>;
    case DType::IQ2_S: return &format_of<UnpackIQ2_S, Order::fours>;
    case DType::IQ3_XXS: return &format_of<UnpackIQ3_XXS, Order::fours>;
    case DType::IQ3_S: return &format_of<UnpackIQ3_S, Order::fours>;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
