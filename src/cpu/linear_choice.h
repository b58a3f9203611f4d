// Products of an instruction set that has kernels of its own for some numbers of tokens only; others take those below.
#pragma once

#include "cpu/linear_kernels.h"

namespace tandem::cpu {

// `own` where it has kernels of the dtype and takes(dtype, n), `below` elsewhere.
template <const LinearKernels& (*own)(), bool (*takes)(DType, int64_t n), const LinearKernels& (*below)()>
class WithKernelsFor {
 public:
  static LinearKernels table() {
    return {has_kernel, encoded_bytes,   same_encoding, encode_granularity,
            encode,     row_granularity, scratch_bytes, multiply};
  }

 private:
  static const LinearKernels& use(DType dtype, int64_t n) {
    return own().has_kernel(dtype) && takes(dtype, n) ? own() : below();
  }

  static bool has_kernel(DType dtype) { return below().has_kernel(dtype); }
  static size_t encoded_bytes(DType dtype, int64_t n, int64_t k) { return use(dtype, n).encoded_bytes(dtype, n, k); }
  static bool same_encoding(DType a, DType b, int64_t n) {
    const LinearKernels &u = use(a, n), &v = use(b, n);
    return &u == &v && u.same_encoding(a, b, n);
  }
  static int64_t encode_granularity(DType dtype, int64_t n) { return use(dtype, n).encode_granularity(dtype, n); }
  static void encode(DType dtype, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0,
                     int64_t token1, std::byte* encoded) {
    use(dtype, n).encode(dtype, x, ldx, n, k, token0, token1, encoded);
  }
  static int64_t row_granularity(DType dtype, int64_t n, int64_t m, int64_t k) { return use(dtype, n).row_granularity(dtype, n, m, k); }
  static size_t scratch_bytes(DType dtype, int64_t n, int64_t k) { return use(dtype, n).scratch_bytes(dtype, n, k); }
  static void multiply(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
    use(call.dtype, call.n).multiply(call, row0, row1, scratch);
  }
};

}  // namespace tandem::cpu
