// Quantized weights of tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "gguf/dtype.h"
#include "gguf/quants.h"

namespace tandem::test {

// Whether the quantizer searches a grid for every few values, which is slow.
inline bool searches_a_grid(DType dtype) {
  switch (dtype) {
    case DType::IQ1_S:
    case DType::IQ1_M:
    case DType::IQ2_XXS:
    case DType::IQ2_XS:
    case DType::IQ2_S:
    case DType::IQ3_XXS:
    case DType::IQ3_S: return true;
    default: return false;
  }
}

// Random values, a whole number of blocks, as `dtype`. Of the formats above only the first 64 blocks are quantized; the others are some of those, so that
// the bytes are no longer those of `values`: read them back.
inline std::vector<std::byte> quantized(DType dtype, std::span<const float> values) {
  const auto n = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes(row_bytes(dtype, n));
  const DTypeInfo& info = dtype_info(dtype);
  constexpr size_t kDistinct = 64;
  const size_t n_distinct = kDistinct * info.block_bytes;
  if (!searches_a_grid(dtype) || bytes.size() <= n_distinct) {
    quantize_row(dtype, values.data(), bytes.data(), n);
    return bytes;
  }
  quantize_row(dtype, values.data(), bytes.data(), static_cast<int64_t>(kDistinct) * info.block_elements);
  std::mt19937 random(static_cast<uint32_t>(n));
  for (size_t at = n_distinct; at < bytes.size(); at += info.block_bytes)
    std::memcpy(&bytes[at], &bytes[random() % kDistinct * info.block_bytes], info.block_bytes);
  return bytes;
}

}  // namespace tandem::test
