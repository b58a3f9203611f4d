#include "gguf/dtype.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "gguf/blocks.h"
#include "gguf/kivi.h"
#include "gguf/quants_impl.h"

namespace tandem {
namespace {

struct Functions {
  DequantizeFn to_float = nullptr;
  QuantizeFn from_float = nullptr;
};

template <class Block>
void dequantize_blocks(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const Block*>(src);
  for (int64_t b = 0; b < n / Block::kElements; ++b) {
    for (int s = 0; s < Block::kElements / 32; ++s, dst += 32) dequantize_32(blocks[b], s, dst);
  }
}

template <class Block>
void quantize_blocks(const float* src, void* dst, int64_t n, const float* importance) {
  quants::quantize(src, static_cast<Block*>(dst), n, importance);
}

template <class Block>
constexpr Functions functions_of() {
  if constexpr (requires(Block * to) { quants::quantize(nullptr, to, 0, nullptr); }) {
    return {dequantize_blocks<Block>, quantize_blocks<Block>};
  } else {
    return {dequantize_blocks<Block>, nullptr};
  }
}

// With what the format library can do with the dtype. Blocks must be what the table says.
constexpr DTypeInfo row(DType dtype, std::string_view name, uint32_t block_elements, uint32_t block_bytes) {
  Functions can;
  BlockFormats::visit(dtype, [&]<class Block>() {
    if (Block::kElements != block_elements || sizeof(Block) != block_bytes) throw "not the format's geometry";
    can = functions_of<Block>();
  });
  if (dtype == DType::F32) can = {quants::dequantize_f32, quants::quantize_f32};
  if (dtype == DType::F16) can = {quants::dequantize_f16, quants::quantize_f16};
  if (dtype == DType::BF16) can = {quants::dequantize_bf16, quants::quantize_bf16};
  return {dtype, name, block_elements, block_bytes, can.to_float, can.from_float};
}

constexpr DTypeInfo kTable[] = {
    row(DType::F32, "F32", 1, 4),
    row(DType::F16, "F16", 1, 2),
    row(DType::Q4_0, "Q4_0", 32, 18),
    row(DType::Q4_1, "Q4_1", 32, 20),
    row(DType::Q5_0, "Q5_0", 32, 22),
    row(DType::Q5_1, "Q5_1", 32, 24),
    row(DType::Q8_0, "Q8_0", 32, 34),
    row(DType::Q8_1, "Q8_1", 32, 36),
    row(DType::Q2_K, "Q2_K", 256, 84),
    row(DType::Q3_K, "Q3_K", 256, 110),
    row(DType::Q4_K, "Q4_K", 256, 144),
    row(DType::Q5_K, "Q5_K", 256, 176),
    row(DType::Q6_K, "Q6_K", 256, 210),
    row(DType::Q8_K, "Q8_K", 256, 292),
    row(DType::IQ2_XXS, "IQ2_XXS", 256, 66),
    row(DType::IQ2_XS, "IQ2_XS", 256, 74),
    row(DType::IQ3_XXS, "IQ3_XXS", 256, 98),
    row(DType::IQ1_S, "IQ1_S", 256, 50),
    row(DType::IQ4_NL, "IQ4_NL", 32, 18),
    row(DType::IQ3_S, "IQ3_S", 256, 110),
    row(DType::IQ2_S, "IQ2_S", 256, 82),
    row(DType::IQ4_XS, "IQ4_XS", 256, 136),
    row(DType::I8, "I8", 1, 1),
    row(DType::I16, "I16", 1, 2),
    row(DType::I32, "I32", 1, 4),
    row(DType::I64, "I64", 1, 8),
    row(DType::F64, "F64", 1, 8),
    row(DType::IQ1_M, "IQ1_M", 256, 56),
    row(DType::BF16, "BF16", 1, 2),
    row(DType::TQ1_0, "TQ1_0", 256, 54),
    row(DType::TQ2_0, "TQ2_0", 256, 66),
    row(DType::MXFP4, "MXFP4", 32, 17),
    row(DType::NVFP4, "NVFP4", 64, 36),
    row(DType::Q1_0, "Q1_0", 128, 18),
};

constexpr DTypeInfo kCacheOnly[] = {
    {DType::KIVI4, "KIVI4", 32, sizeof(BlockQ4_1), dequantize_kivi4, quantize_kivi4},
    {DType::KIVI2, "KIVI2", 32, sizeof(BlockKivi2), dequantize_kivi2, quantize_kivi2},
};

// kIndex[id] is the row of the table, or -1.
constexpr size_t kIds = 64;
constexpr auto kIndex = [] {
  std::array<int8_t, kIds> index{};
  index.fill(-1);
  int8_t row = 0;
  for (const DTypeInfo& info : kTable) index[static_cast<size_t>(info.dtype)] = row++;
  return index;
}();

}  // namespace

std::span<const DTypeInfo> all_dtypes() {
  return kTable;
}

const DTypeInfo* find_dtype(uint32_t id) {
  return id < kIds && kIndex[id] >= 0 ? &kTable[kIndex[id]] : nullptr;
}

const DTypeInfo& dtype_info(DType dtype) {
  if (const DTypeInfo* info = find_dtype(static_cast<uint32_t>(dtype))) return *info;
  const auto found = std::ranges::find(kCacheOnly, dtype, &DTypeInfo::dtype);
  TANDEM_CHECK(found != std::end(kCacheOnly));
  return *found;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto same = [](char a, char b) { return toupper(static_cast<unsigned char>(a)) == b; };
  for (const DTypeInfo& info : kTable) {
    if (std::equal(name.begin(), name.end(), info.name.begin(), info.name.end(), same)) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace tandem
