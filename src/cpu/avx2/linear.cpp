// The table of the AVX2 matrix products: finds the kernels of a dtype and chooses by the number of tokens.
#include "cpu/avx2/linear.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

const DtypeKernels& kernels_of(DType dtype) {
  if (const DtypeKernels* found = block_kernels(dtype)) return *found;
  if (const DtypeKernels* found = super_block_kernels(dtype)) return *found;
  return *float_kernels(dtype);
}

bool uses_panels(const DtypeKernels& kernels, int64_t n) {
  return n >= kernels.panel_from;
}

const ActFormat& format_of(DType dtype, int64_t n) {
  const DtypeKernels& kernels = kernels_of(dtype);
  return uses_panels(kernels, n) ? kernels.panel_format : kernels.dot_format;
}

size_t encoded_bytes(DType dtype, int64_t n, int64_t k) {
  return static_cast<size_t>(n) * act_layout(format_of(dtype, n), k).stride;
}

bool same_encoding(DType a, DType b, int64_t n) {
  return equal(format_of(a, n), format_of(b, n));
}

int64_t encode_granularity(int64_t) {
  return 1;
}

void encode(DType dtype, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0, int64_t token1,
            std::byte* encoded) {
  encode_tokens(format_of(dtype, n), x, ldx, k, token0, token1, encoded);
}

int64_t row_granularity(DType dtype, int64_t n, int64_t, int64_t) {
  return uses_panels(kernels_of(dtype), n) ? 16 : 1;
}

size_t scratch_bytes(DType dtype, int64_t n, int64_t) {
  const DtypeKernels& kernels = kernels_of(dtype);
  return uses_panels(kernels, n) ? kernels.panel_scratch : 0;
}

void multiply(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  const DtypeKernels& kernels = kernels_of(call.dtype);
  if (uses_panels(kernels, call.n)) {
    kernels.panel(call, row0, row1, scratch);
  } else {
    kernels.dot(call, row0, row1);
  }
}

}  // namespace

const LinearKernels& linear_kernels() {
  static constexpr LinearKernels table{
      encoded_bytes, same_encoding, encode_granularity, encode, row_granularity, scratch_bytes, multiply};
  return table;
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
