// Products of activations with weight matrices: most of the work of a step.
//
// The weight dtype decides how activations are encoded: for F32 unchanged; for 16-bit floats as the ISA
// prefers; for block-quantized types as 8-bit integers with float scales and integer sums per block. An op
// encodes its input once (encode), no matter how many matrices read it. The encoded format is private to the
// ISA.
//
// multiply() computes a range of weight rows for all tokens of a step. It chooses the method by n: dot
// products while weights stream from memory (decode, small batches), or unpacking a strip of weight rows into
// interleaved panels in cache, then a blocked product over all tokens (prefill). The result of a row and a token does not
// depend on the range it is computed in, so results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/dtype.h"

namespace tandem::cpu {

inline constexpr int64_t kDividedTokens = 64;

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
  // The tokens to compute, if not all n: multiples of encode_granularity(dtype, n), or the end. A product of fewer than
  // kDividedTokens computes all at once: its kernels may sum in another order for another number of them.
  int64_t token0 = 0, token1 = INT64_MAX;

  int64_t end_token() const { return token1 < n ? token1 : n; }
};

struct LinearKernels {
  // Whether this instruction set has its own kernel for weights of the dtype. Other dtypes take the generic
  // path (linear_generic.h), which uses the F32 kernels.
  bool (*has_kernel)(DType dtype);
  // Bytes of the encoded activations of n tokens with k columns, for a weight of this dtype. Weights whose
  // encodings are equal can share one; same_encoding tells.
  size_t (*encoded_bytes)(DType dtype, int64_t n, int64_t k);
  bool (*same_encoding)(DType a, DType b, int64_t n);
  // Encodes tokens [token0, token1) of n; x is [n, ldx] F32. Tokens are independent and may be encoded by
  // different threads; token0 is a multiple of encode_granularity(dtype, n), token1 too or n. `encoded` is
  // 64-byte aligned.
  //
  // All ISAs use the same 8-bit encoding: q = round_to_even(x * (127 / max|x|)) with scale max|x| / 127. A
  // block with NaN or infinity gets a NaN scale, so its products are NaN; one with max|x| < 1e-30 is all
  // zero.
  int64_t (*encode_granularity)(DType dtype, int64_t n);
  void (*encode)(DType dtype, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0,
                 int64_t token1, std::byte* encoded);

  // Rows to give a thread at a time: multiply's row0 is a multiple of it, and row1 is one too or equals m.
  int64_t (*row_granularity)(DType dtype, int64_t n, int64_t m, int64_t k);
  // Scratch bytes per thread for multiply.
  size_t (*scratch_bytes)(DType dtype, int64_t n, int64_t k);
  // Computes rows [row0, row1) of W for the call's tokens. scratch is 64-byte aligned.
  void (*multiply)(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch);
};

// Whether the kernels of AVX-512 take few tokens as is best where vectors of 64 bytes take two cycles: on a Zen 4.
bool narrow_avx512();
// Whether weights for a few tokens, and caches for a few queries, are read from several places at a time: on Intel. A Zen 5 reads one
// stream of quantized weights faster, and of one token any (avx512/linear_rows.h and linear_float.cpp say when weights are read so elsewhere).
bool reads_in_streams();
// Bytes of a core's first cache of data.
size_t near_cache_bytes();
// Let a test see both ways on one machine. All of a product must be done in one, and all of an
// attention from its compiling on.
void set_narrow_avx512(bool narrow);
void set_reads_in_streams(bool reads);

// Each instruction set's own kernels. Ops use the tables of kernels.h, which cover every readable dtype.
namespace scalar {
const LinearKernels& linear_kernels();
}
namespace avx2 {
const LinearKernels& linear_kernels();
}
namespace avx_vnni {
const LinearKernels& linear_kernels();
}
namespace avx512 {
const LinearKernels& linear_kernels();
}
namespace avx512_vnni {
const LinearKernels& linear_kernels();
}
namespace avx512_vbmi {
const LinearKernels& linear_kernels();  // of IQ1, IQ2 and IQ3 only
}
namespace avx512_amx {
const LinearKernels& linear_kernels();       // for many tokens only
bool takes(DType dtype, int64_t n);          // whether they are the fastest with n tokens
const LinearKernels& byte_linear_kernels();  // for some tokens, in 8-bit integers
bool takes_bytes(DType dtype, int64_t n);    // whether they are the fastest of those in integers
}  // namespace avx512_amx

}  // namespace tandem::cpu
