// Products of activations with weight matrices, the greater part of all work.
//
// A weight dtype decides how activations are encoded for it: F32 as they are; 16-bit floats as the ISA likes;
// block quantized types as 8-bit integers with float scales and integer sums a block. The encoding happens
// once per input of an op (encode), whatever the number of matrices that read it; its format is the ISA's
// own affair.
//
// multiply() computes a range of weight rows for all tokens of a step. It picks by n what is best: dot
// products while the weights stream from memory (decode, small batches), or unpacking a strip of weight rows
// into interleaved panels in cache, then a blocked product over all tokens (prefill). Results of a row do not
// depend on the range it is computed in, so they do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/dtype.h"

namespace tandem::cpu {

// One product y[n, m] = x[n, k] W[m, k]^T (+ bias[m]) (+ residual[n, m]).
struct LinearCall {
  DType dtype;                   // of W
  const std::byte* w = nullptr;  // [m, k], rows of row_bytes(dtype, k)
  int64_t n = 0, m = 0, k = 0;   // k is a multiple of the dtype's block
  const std::byte* x = nullptr;  // encoded activations of n tokens
  float* y = nullptr;            // [n, ldy]
  int64_t ldy = 0;
  const float* bias = nullptr;      // [m] or null
  const float* residual = nullptr;  // [n, ld_residual] or null; may be y itself
  int64_t ld_residual = 0;
};

struct LinearKernels {
  // Whether this instruction set multiplies weights of the dtype itself. The others go the generic way
  // (linear_generic.h), which its F32 kernels are for.
  bool (*has_kernel)(DType dtype);
  // Bytes of the encoded activations of n tokens with k columns, for a weight of this dtype. Weights whose
  // formats are equal can share one encoding: same_encoding says which.
  size_t (*encoded_bytes)(DType dtype, int64_t n, int64_t k);
  bool (*same_encoding)(DType a, DType b, int64_t n);
  // Encodes tokens [token0, token1) of n; x is [n, ldx] F32. Tokens are independent and may be encoded by
  // different threads; token0 is a multiple of encode_granularity(n), token1 too or n. `encoded` is 64-byte
  // aligned.
  //
  // 8-bit encodings agree in every ISA: q = round_to_even(x * (127 / max|x|)) with scale max|x| / 127; a
  // block with NaN or infinity gets a NaN scale (so its products are NaN), one with max|x| < 1e-30 is all
  // zero.
  int64_t (*encode_granularity)(int64_t n);
  void (*encode)(DType dtype, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0,
                 int64_t token1, std::byte* encoded);

  // Rows to hand out to a thread at a time: multiply's row0 is a multiple of it, row1 too or m.
  int64_t (*row_granularity)(DType dtype, int64_t n, int64_t m, int64_t k);
  // Scratch of a thread inside multiply.
  size_t (*scratch_bytes)(DType dtype, int64_t n, int64_t k);
  // Rows [row0, row1) of W for all n tokens. scratch is 64-byte aligned.
  void (*multiply)(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch);
};

// Each instruction set's own kernels. Ops use the tables of kernels.h, which take every dtype that can be read.
namespace scalar {
const LinearKernels& linear_kernels();
}
namespace avx2 {
const LinearKernels& linear_kernels();
}
namespace avx512 {
const LinearKernels& linear_kernels();
}
namespace avx512_vnni {
const LinearKernels& linear_kernels();
}

}  // namespace tandem::cpu
