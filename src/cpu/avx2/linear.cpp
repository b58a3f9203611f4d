// The table of AVX2 matrix products: finds the kernels of a dtype and chooses by the number of tokens.
//
// Panels are bound by vector operations, three a cycle. Products of weights with activations, in 10^9 a
// second, on one core of a Sapphire Rapids at about 3 GHz, 60 to 512 tokens, and what counting the operations
// of a tile allows at 3 GHz:
//   Q4_0 Q5_0 MXFP4    112 of 115     Q4_K         120 of 125     Q8_0 IQ4_NL    67 of 66
//   Q4_1 Q5_1          106 of 110     Q5_K         113 of 119     IQ4_XS         70 of 71
//   F32 F16 BF16        47 of 48      Q3_K Q6_K    113 of 113     Q2_K          104 of 113
// Dot products of one token from memory read 10.4 to 11.8 GB/s there, a bare loop 12.8; Q2_K and Q3_K 9,
// being slow to unpack. From how many tokens on panels win was measured with weights in memory; the numbers
// are where the tables are made.
#include "cpu/avx2/linear.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

const DtypeKernels* find_kernels(DType dtype) {
  if (const DtypeKernels* found = block_kernels(dtype)) return found;
  if (const DtypeKernels* found = wide_block_kernels(dtype)) return found;
  if (const DtypeKernels* found = super_block_kernels(dtype)) return found;
  if (const DtypeKernels* found = grid_kernels(dtype)) return found;
  return float_kernels(dtype);
}

const DtypeKernels& kernels_of(DType dtype) {
  return *find_kernels(dtype);
}

bool has_kernel(DType dtype) {
  return find_kernels(dtype) != nullptr;
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

int64_t encode_granularity(DType, int64_t) {
  return 1;
}

void encode(DType dtype, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0, int64_t token1,
            std::byte* encoded) {
  encode_tokens(format_of(dtype, n), x, ldx, k, token0, token1, encoded);
}

int64_t row_granularity(DType dtype, int64_t n, int64_t, int64_t) {
  const DtypeKernels& kernels = kernels_of(dtype);
  return uses_panels(kernels, n) ? 16 : kernels.dot_rows;
}

size_t scratch_bytes(DType dtype, int64_t n, int64_t) {
  const DtypeKernels& kernels = kernels_of(dtype);
  constexpr size_t partial_bytes = 16 * sizeof(float);  // a strip's sums of a token
  return uses_panels(kernels, n) ? kernels.panel_scratch + static_cast<size_t>(n) * partial_bytes : 0;
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
  static constexpr LinearKernels table{has_kernel, encoded_bytes,   same_encoding, encode_granularity,
                                       encode,     row_granularity, scratch_bytes, multiply};
  return table;
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
