// The table of products for the formats of linear_unpack.h. All other dtypes take the kernels of avx512/.
//
// Folder vbmi/ has only what VBMI makes faster; layout, drivers and encoding are those of avx512/.
#include "base/error.h"
#include "cpu/avx512/linear_drive.h"
#include "cpu/avx512/linear_encode.h"
#include "cpu/avx512/linear_make_format.h"
#include "cpu/vbmi/linear_unpack.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

const Format* find_format(DType dtype) {
  static constexpr Format iq2_xxs = format_of<UnpackIQ2_XXS>(), iq2_xs = format_of<UnpackIQ2_XS>();
  static constexpr Format iq2_s = format_of<UnpackIQ2_S>();
  static constexpr Format iq3_xxs = format_of<UnpackIQ3_XXS>(), iq3_s = format_of<UnpackIQ3_S>();
  static constexpr Format iq1_s = format_of<UnpackIQ1_S>(), iq1_m = format_of<UnpackIQ1_M>();
  switch (dtype) {
    case DType::IQ1_S: return &iq1_s;
    case DType::IQ1_M: return &iq1_m;
    case DType::IQ2_XXS: return &iq2_xxs;
    case DType::IQ2_XS: return &iq2_xs;
    case DType::IQ2_S: return &iq2_s;
    case DType::IQ3_XXS: return &iq3_xxs;
    case DType::IQ3_S: return &iq3_s;
    default: return nullptr;
  }
}

const Format& format(DType dtype) {
  const Format* found = find_format(dtype);
  TANDEM_CHECK(found != nullptr);
  return *found;
}

bool has_kernel(DType dtype) {
  return find_format(dtype) != nullptr;
}

TileLayout layout_of(int64_t k) {
  return {256, k, Order::fours};
}

size_t encoded_bytes(DType, int64_t n, int64_t k) {
  return static_cast<size_t>(4 * n * layout_of(k).token_words());
}

bool same_encoding(DType, DType, int64_t) {
  return true;
}

int64_t encode_granularity(DType, int64_t n) {
  return tile_tokens(n);
}

void encode(DType, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0, int64_t token1,
            std::byte* encoded) {
  const TileLayout layout = layout_of(k);
  const int64_t T = tile_tokens(n);
  for (int64_t t = token0; t < token1; t += T) {
    encode_units<256>(layout, x + t * ldx, ldx, min64(T, n - t), encoded + 4 * t * layout.token_words());
  }
}

int64_t row_granularity(DType, int64_t, int64_t, int64_t) {
  return kStrip;
}

size_t scratch_bytes(DType dtype, int64_t n, int64_t k) {
  return scratch_bytes_of(format(dtype), n, k);
}

void multiply(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  multiply_format(call, format(call.dtype), row0, row1, scratch);
}

}  // namespace

const LinearKernels& linear_kernels() {
  static constexpr LinearKernels table{has_kernel, encoded_bytes,   same_encoding, encode_granularity,
                                       encode,     row_granularity, scratch_bytes, multiply};
  return table;
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
