#include "cpu/avx512/linear_encode.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

void encode_tile(const TileLayout& layout, const float* x, int64_t ldx, int64_t T, std::byte* tile) {
  layout.unit == 32 ? encode_units<32>(layout, x, ldx, T, tile) : encode_units<256>(layout, x, ldx, T, tile);
}

void encode_row(const Encoding& encoding, const float* x, int64_t k, int64_t t, int64_t n, std::byte* encoded) {
  encoding.unit == 32 ? encode_row_units<32>(encoding.order, x, k, t, n, encoded)
                      : encode_row_units<256>(encoding.order, x, k, t, n, encoded);
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
