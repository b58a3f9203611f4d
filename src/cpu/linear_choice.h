// Products of an instruction set that has kernels of its own for some numbers of tokens only; others take those below.
#pragma once

#include "cpu/linear_generic.h"

namespace tandem::cpu {

// `own` where it takes(dtype, n), `below` elsewhere. Weights that `own` has no kernel for are dequantized to floats for
// its F32 kernel, as on the generic path.
template <const LinearKernels& (*own)(), bool (*takes)(DType, int64_t n), const LinearKernels& (*below)()>
class WithKernelsFor {
 public:
  static LinearKernels table() {
    return {has_kernel, encoded_bytes,   same_encoding, encode_granularity,
            encode,     row_granularity, scratch_bytes, multiply};
  }

 private:
  struct Use {
    const LinearKernels& kernels;
    DType dtype;
  };
  static Use use(DType dtype, int64_t n) {
    if (!takes(dtype, n)) return {below(), dtype};
    return {own(), own().has_kernel(dtype) ? dtype : DType::F32};
  }

  static bool has_kernel(DType dtype) { return below().has_kernel(dtype); }
  static size_t encoded_bytes(DType dtype, int64_t n, int64_t k) {
    const Use u = use(dtype, n);
    return u.kernels.encoded_bytes(u.dtype, n, k);
  }
  static bool same_encoding(DType a, DType b, int64_t n) {
    const Use u = use(a, n), v = use(b, n);
    return &u.kernels == &v.kernels && u.kernels.same_encoding(u.dtype, v.dtype, n);
  }
  static int64_t encode_granularity(DType dtype, int64_t n) {
    const Use u = use(dtype, n);
    return u.kernels.encode_granularity(u.dtype, n);
  }
  static void encode(DType dtype, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0,
                     int64_t token1, std::byte* encoded) {
    const Use u = use(dtype, n);
    u.kernels.encode(u.dtype, x, ldx, n, k, token0, token1, encoded);
  }
  static int64_t row_granularity(DType dtype, int64_t n, int64_t m, int64_t k) {
    const Use u = use(dtype, n);
    return u.kernels.row_granularity(u.dtype, n, m, k);
  }
  static size_t scratch_bytes(DType dtype, int64_t n, int64_t k) {
    const Use u = use(dtype, n);
    return u.dtype == dtype ? u.kernels.scratch_bytes(dtype, n, k) : as_floats_scratch_bytes(u.kernels, n, k);
  }
  static void multiply(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
    const Use u = use(call.dtype, call.n);
    u.dtype == call.dtype ? u.kernels.multiply(call, row0, row1, scratch)
                          : multiply_as_floats(u.kernels, call, row0, row1, scratch);
  }
};

}  // namespace tandem::cpu
