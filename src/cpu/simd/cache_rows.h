// Rows of the cache's dtypes as floats, for the kernels of every vector ISA. Included after the ISA's vec.h.
// Every value is exactly the one of the reference in gguf/quants.h.
#pragma once

#include <cstring>

#include "gguf/blocks.h"
#include "gguf/dtype.h"
#include "gguf/kivi.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// n elements, n a multiple of the dtype's block.
using LoadRows = void (*)(const std::byte* from, float* to, int64_t n);

TANDEM_INLINE void load_f32_rows(const std::byte* from, float* to, int64_t n) {
  memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

void load_f16_rows(const std::byte* from, float* to, int64_t n) {
  const auto* h = reinterpret_cast<const fp16_t*>(from);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load_f16(h + i));
  for (; i < n; ++i) to[i] = fp16_to_fp32(h[i]);
}

void load_bf16_rows(const std::byte* from, float* to, int64_t n) {
  const auto* h = reinterpret_cast<const bf16_t*>(from);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load_bf16(h + i));
  for (; i < n; ++i) to[i] = bf16_to_fp32(h[i]);
}

void load_q8_0_rows(const std::byte* from, float* to, int64_t n) {
  const auto* block = reinterpret_cast<const BlockQ8_0*>(from);
  for (int64_t b = 0; b < n / QK; ++b, to += QK) {
    const Vec d = set1(_cvtsh_ss(block[b].d));
    for (int64_t j = 0; j < QK; j += kLanes) store(to + j, load_i8(block[b].qs + j) * d);
  }
}

void load_q4_0_rows(const std::byte* from, float* to, int64_t n) {
  const auto* block = reinterpret_cast<const BlockQ4_0*>(from);
  const __m128i nibble = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
  for (int64_t b = 0; b < n / QK; ++b, to += QK) {
    const Vec d = set1(_cvtsh_ss(block[b].d));
    const __m128i qs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block[b].qs));
    alignas(16) int8_t q[QK];
    _mm_store_si128(reinterpret_cast<__m128i*>(q), _mm_sub_epi8(_mm_and_si128(qs, nibble), eight));
    _mm_store_si128(reinterpret_cast<__m128i*>(q + 16),
                    _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(qs, 4), nibble), eight));
    for (int64_t j = 0; j < QK; j += kLanes) store(to + j, load_i8(q + j) * d);
  }
}

template <class B>
void load_block_rows(const std::byte* from, float* to, int64_t n) {
  const auto* block = reinterpret_cast<const B*>(from);
  for (int64_t b = 0; b < n / QK; ++b) dequantize_32(block[b], 0, to + b * QK);
}

// Rows first .. first + n - 1 of a group of keys (gguf/kivi.h), to rows of `to` that are ld apart.
template <int kBits>
void load_key_group(const std::byte* group, int64_t first, int64_t n, float* to, int64_t ld,
                    int64_t head_dim) {
  const auto *d = reinterpret_cast<const fp16_t*>(group), *m = d + head_dim;
  const auto* codes = reinterpret_cast<const uint8_t*>(m + head_dim);
  const int64_t n_code_bytes = head_dim / QK * 4 * kBits;  // of a token
  for (int64_t c = 0; c < head_dim; c += QK) {
    Vec scale[QK / kLanes], least[QK / kLanes];
    for (int64_t j = 0; j < QK; j += kLanes) {
      scale[j / kLanes] = load_f16(d + c + j);
      least[j / kLanes] = load_f16(m + c + j);
    }
    for (int64_t i = 0; i < n; ++i) {
      alignas(32) uint8_t levels[QK];
      const uint8_t* from = codes + (first + i) * n_code_bytes + c / QK * 4 * kBits;
      if constexpr (kBits == 4) {
        unpack_nibbles(from, levels);
      } else {
        unpack_pairs(from, levels);
      }
      for (int64_t j = 0; j < QK; j += kLanes) {
        const Vec x = load_i8(reinterpret_cast<const int8_t*>(levels) + j);
        store(to + i * ld + c + j, scale[j / kLanes] * x + least[j / kLanes]);
      }
    }
  }
}

// Returns nullptr for dtypes that a cache cannot have. Of grouped dtypes, for rows of values.
TANDEM_INLINE LoadRows load_rows_fn(DType dtype) {
  switch (dtype) {
    case DType::F32: return load_f32_rows;
    case DType::F16: return load_f16_rows;
    case DType::BF16: return load_bf16_rows;
    case DType::Q8_0: return load_q8_0_rows;
    case DType::Q4_0: return load_q4_0_rows;
    case DType::Q4_1: return load_block_rows<BlockQ4_1>;
    case DType::Q5_0: return load_block_rows<BlockQ5_0>;
    case DType::Q5_1: return load_block_rows<BlockQ5_1>;
    case DType::IQ4_NL: return load_block_rows<BlockIQ4_NL>;
    case DType::KIVI4: return load_block_rows<BlockQ4_1>;
    case DType::KIVI2: return load_block_rows<BlockKivi2>;
    default: return nullptr;
  }
}

// row_bytes() of gguf/dtype.h for the cache's dtypes. Do not compile that inline function here: the linker
// could choose this copy of it for the whole program.
TANDEM_INLINE size_t cache_row_bytes(DType dtype, int64_t n) {
  const size_t size = static_cast<size_t>(n);
  switch (dtype) {
    case DType::F32: return size * sizeof(float);
    case DType::Q8_0: return size / QK * sizeof(BlockQ8_0);
    case DType::Q4_0: return size / QK * sizeof(BlockQ4_0);
    case DType::Q4_1: return size / QK * sizeof(BlockQ4_1);
    case DType::Q5_0: return size / QK * sizeof(BlockQ5_0);
    case DType::Q5_1: return size / QK * sizeof(BlockQ5_1);
    case DType::IQ4_NL: return size / QK * sizeof(BlockIQ4_NL);
    case DType::KIVI4: return size / QK * sizeof(BlockQ4_1);
    case DType::KIVI2: return size / QK * sizeof(BlockKivi2);
    default: return size * sizeof(fp16_t);
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
