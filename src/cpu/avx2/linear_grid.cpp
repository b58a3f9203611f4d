// Products with weights whose vectors are those of a grid: IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M.
#include "cpu/avx2/linear_formats_grid.h"
#include "cpu/avx2/linear_super.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// With AVX-VNNI on an Emerald Rapids, panels against dot products: of four tokens 0.7 to 1.1, of five 1.3 to 1.7; IQ3_S of three 1.2.
template <class Format>
constexpr DtypeKernels grid_kernels_of = signed_kernels_k<Format>(kVnni ? 5 : 9);
constexpr DtypeKernels iq3_s_kernels = signed_kernels_k<IQ3_S>(kVnni ? 3 : 9);

}  // namespace

const DtypeKernels* grid_kernels(DType dtype) {
  switch (dtype) {
    case DType::IQ2_XXS: return &grid_kernels_of<IQ2_XXS>;
    case DType::IQ2_XS: return &grid_kernels_of<IQ2_XS>;
    case DType::IQ2_S: return &grid_kernels_of<IQ2_S>;
    case DType::IQ3_XXS: return &grid_kernels_of<IQ3_XXS>;
    case DType::IQ3_S: return &iq3_s_kernels;
    case DType::IQ1_S: return &grid_kernels_of<IQ1_S>;
    case DType::IQ1_M: return &grid_kernels_of<IQ1_M>;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
