// Products with weights whose vectors are those of a grid: IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M.
#include "cpu/avx2/linear_formats_grid.h"
#include "cpu/avx2/linear_super.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <class Format>
constexpr DtypeKernels grid_kernels_of = signed_kernels_k<Format>(kVnni ? 8 : 9);

}  // namespace

const DtypeKernels* grid_kernels(DType dtype) {
  switch (dtype) {
    case DType::IQ2_XXS: return &grid_kernels_of<IQ2_XXS>;
    case DType::IQ2_XS: return &grid_kernels_of<IQ2_XS>;
    case DType::IQ2_S: return &grid_kernels_of<IQ2_S>;
    case DType::IQ3_XXS: return &grid_kernels_of<IQ3_XXS>;
    case DType::IQ3_S: return &grid_kernels_of<IQ3_S>;
    case DType::IQ1_S: return &grid_kernels_of<IQ1_S>;
    case DType::IQ1_M: return &grid_kernels_of<IQ1_M>;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
