#include "cpu/avx512/linear_encode.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

void encode_tile(const TileLayout& layout, const float* x, int64_t ldx, int64_t T, std::byte* tile) {
  layout.unit == 32 ? encode_units<32>(layout, x, ldx, T, tile) : encode_units<256>(layout, x, ldx, T, tile);
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
