// The generic path: products with weights that an instruction set has no kernels for. Dequantizes a strip of
// rows at a time to floats in the worker's scratch, with the format's reference code, and multiplies them
// with the instruction set's F32 kernels. So every dtype that can be read works on every instruction set.
//
// Cost: dequantizing the strip (a few operations per element, no hand vectorization), then the F32 product
// from L2.
#pragma once

#include "cpu/linear_kernels.h"

namespace tandem::cpu {

// LinearKernels::multiply for weights of any readable dtype, with the F32 kernels of `own`.
void multiply_as_floats(const LinearKernels& own, const LinearCall& call, int64_t row0, int64_t row1,
                        std::byte* scratch);
// Scratch for the strip's floats and for the F32 kernels.
size_t as_floats_scratch_bytes(const LinearKernels& own, int64_t n, int64_t k);

// The products of an instruction set (`own` is its linear_kernels(), which have F32). For dtypes without kernels of
// its own it takes those of the first of `others` that has them, then the generic path.
template <const LinearKernels& (*own)(), const LinearKernels& (*... others)()>
class WithGenericPath {
 public:
  static LinearKernels table() {
    return {has_kernel, encoded_bytes,   same_encoding, encode_granularity,
            encode,     row_granularity, scratch_bytes, multiply};
  }

 private:
  // Kernels that have the dtype; else null.
  static const LinearKernels* find(DType dtype) {
    const LinearKernels* found = own().has_kernel(dtype) ? &own() : nullptr;
    ((found || !others().has_kernel(dtype) ? void() : void(found = &others())), ...);
    return found;
  }
  struct Use {
    const LinearKernels& kernels;
    DType dtype;  // F32 for the generic path
  };
  static Use use(DType dtype) {
    const LinearKernels* found = find(dtype);
    return {found ? *found : own(), found ? dtype : DType::F32};
  }

  static bool has_kernel(DType dtype) { return find(dtype) != nullptr; }
  static size_t encoded_bytes(DType dtype, int64_t n, int64_t k) {
    const Use u = use(dtype);
    return u.kernels.encoded_bytes(u.dtype, n, k);
  }
  static bool same_encoding(DType a, DType b, int64_t n) {
    const Use u = use(a), v = use(b);
    return &u.kernels == &v.kernels && u.kernels.same_encoding(u.dtype, v.dtype, n);
  }
  static int64_t encode_granularity(DType dtype, int64_t n) {
    const Use u = use(dtype);
    return u.kernels.encode_granularity(u.dtype, n);
  }
  static void encode(DType dtype, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0,
                     int64_t token1, std::byte* encoded) {
    const Use u = use(dtype);
    u.kernels.encode(u.dtype, x, ldx, n, k, token0, token1, encoded);
  }
  static int64_t row_granularity(DType dtype, int64_t n, int64_t m, int64_t k) {
    const Use u = use(dtype);
    return u.kernels.row_granularity(u.dtype, n, m, k);
  }
  static size_t scratch_bytes(DType dtype, int64_t n, int64_t k) {
    const LinearKernels* found = find(dtype);
    return found ? found->scratch_bytes(dtype, n, k) : as_floats_scratch_bytes(own(), n, k);
  }
  static void multiply(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
    if (const LinearKernels* found = find(call.dtype)) return found->multiply(call, row0, row1, scratch);
    multiply_as_floats(own(), call, row0, row1, scratch);
  }
};

}  // namespace tandem::cpu
