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
// Functions and lambdas that get arrays by reference: inlined in any case, or the arrays are in memory instead of registers.
#define TANDEM_FLAT __attribute__((always_inline))

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

// Brings the line of an address to the L2 cache, ahead of its use.
TANDEM_HD inline void prefetch_to_l2([[maybe_unused]] const void* at) {
#if defined(__CUDA_ARCH__) || defined(TANDEM_EMULATED_CUDA)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

// Byte i of the result is byte (selector >> 4i & 7) of the eight bytes b:a. Bit 3 of a selector must be 0.
TANDEM_HD inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef __CUDA_ARCH__
  return __byte_perm(a, b, selector);
#else
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
#endif
}

// Every byte 0xff whose highest bit is set, else 0.
TANDEM_HD inline uint32_t spread_high_bits(uint32_t word) {
#ifdef __CUDA_ARCH__
  uint32_t mask;
  asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(mask) : "r"(word));
  return mask;
#else
  return (word >> 7 & 0x01010101u) * 0xffu;
#endif
}

}  // namespace tandem::cuda
