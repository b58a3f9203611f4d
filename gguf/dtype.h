// The dtype table of the GGUF format: every tensor type the format names, with its block geometry and with what
// the format library can do with it. What a device can do with it, the device says (device/device.h).
// A tensor row of k elements is k / block_elements blocks of block_bytes bytes, without padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tandem {

// The numbers are the ones in the file, but for those that no file has.
enum class DType : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q8_1 = 9,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  Q8_K = 15,
  IQ2_XXS = 16,
  IQ2_XS = 17,
  IQ3_XXS = 18,
  IQ1_S = 19,
  IQ4_NL = 20,
  IQ3_S = 21,
  IQ2_S = 22,
  IQ4_XS = 23,
  I8 = 24,
  I16 = 25,
  I32 = 26,
  I64 = 27,
  F64 = 28,
  IQ1_M = 29,
  BF16 = 30,
  TQ1_0 = 34,
  TQ2_0 = 35,
  MXFP4 = 39,
  NVFP4 = 40,
  Q1_0 = 41,
  // Of caches only, and of no file (kivi.h).
  KIVI4 = 0x10004,
  KIVI2 = 0x10002,
};

// src: [n / block_elements] blocks, dst: [n]; n is a multiple of the dtype's block_elements.
using DequantizeFn = void (*)(const void* src, float* dst, int64_t n);
// src: [n], dst: [n / block_elements] blocks, importance: [n] weights >= 0 of the squared errors, or null.
using QuantizeFn = void (*)(const float* src, void* dst, int64_t n, const float* importance);

struct DTypeInfo {
  DType dtype;
  std::string_view name;    // "Q4_K", as users type it
  uint32_t block_elements;  // elements in one block; rows are a multiple of it
  uint32_t block_bytes;
  DequantizeFn to_float;  // the reference (quants.h); null: its rows cannot be read
  QuantizeFn from_float;  // null: it cannot be written
};

// nullptr when the number is not one of the format's.
const DTypeInfo* find_dtype(uint32_t id);
// Case-insensitive name; nullopt when unknown.
std::optional<DType> dtype_from_name(std::string_view name);
// The whole table, in the order of the numbers.
std::span<const DTypeInfo> all_dtypes();

// For dtypes that are known to be in the table, and for those of caches only.
const DTypeInfo& dtype_info(DType dtype);
inline std::string_view dtype_name(DType dtype) {
  return dtype_info(dtype).name;
}

// Bytes of a row of `n` elements; `n` must be a multiple of block_elements. Trusted sizes only.
inline size_t row_bytes(DType dtype, int64_t n) {
  const DTypeInfo& info = dtype_info(dtype);
  return static_cast<size_t>(n) / info.block_elements * info.block_bytes;
}

}  // namespace tandem
