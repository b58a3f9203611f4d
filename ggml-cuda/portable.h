// Functions written once for device and host, so that index arithmetic, unpacking and rounding can be tested
// without a GPU: mark them `TANDEM_HD inline` and include no CUDA headers. nvcc compiles them for both sides,
// any other compiler for the host alone.
//
// The differences between the two sides are here. nvcc contracts a * b + c into one rounding; mul_rn and
// add_rn keep two where results must equal the host's bit for bit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/fp16.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define TANDEM_HD __host__ __device__
#else
#define TANDEM_HD
#endif

namespace tandem::cuda {

TANDEM_HD inline float half_to_float(fp16_t h) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(h));
#else
  return fp16_to_fp32(h);
#endif
}

TANDEM_HD inline fp16_t float_to_half(float f) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(f));
#else
  return fp32_to_fp16(f);
#endif
}

TANDEM_HD inline float bfloat_to_float(bf16_t h) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(static_cast<uint32_t>(h) << 16);
#else
  return bf16_to_fp32(h);
#endif
}

TANDEM_HD inline bf16_t float_to_bfloat(float f) {
#ifdef __CUDA_ARCH__
  return __bfloat16_as_ushort(__float2bfloat16_rn(f));
#else
  return fp32_to_bf16(f);
#endif
}

TANDEM_HD inline float mul_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

TANDEM_HD inline float add_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

}  // namespace tandem::cuda
