#include "gguf/dtype.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"

namespace tandem {
namespace {

constexpr DTypeInfo kTable[] = {
    {DType::F32, "F32", 1, 4, true},
    {DType::F16, "F16", 1, 2, true},
    {DType::Q4_0, "Q4_0", 32, 18, true},
    {DType::Q4_1, "Q4_1", 32, 20, true},
    {DType::Q5_0, "Q5_0", 32, 22, true},
    {DType::Q5_1, "Q5_1", 32, 24, true},
    {DType::Q8_0, "Q8_0", 32, 34, true},
    {DType::Q8_1, "Q8_1", 32, 36, false},
    {DType::Q2_K, "Q2_K", 256, 84, true},
    {DType::Q3_K, "Q3_K", 256, 110, true},
    {DType::Q4_K, "Q4_K", 256, 144, true},
    {DType::Q5_K, "Q5_K", 256, 176, true},
    {DType::Q6_K, "Q6_K", 256, 210, true},
    {DType::Q8_K, "Q8_K", 256, 292, false},
    {DType::IQ2_XXS, "IQ2_XXS", 256, 66, false},
    {DType::IQ2_XS, "IQ2_XS", 256, 74, false},
    {DType::IQ3_XXS, "IQ3_XXS", 256, 98, false},
    {DType::IQ1_S, "IQ1_S", 256, 50, false},
    {DType::IQ4_NL, "IQ4_NL", 32, 18, true},
    {DType::IQ3_S, "IQ3_S", 256, 110, false},
    {DType::IQ2_S, "IQ2_S", 256, 82, false},
    {DType::IQ4_XS, "IQ4_XS", 256, 136, true},
    {DType::I8, "I8", 1, 1, false},
    {DType::I16, "I16", 1, 2, false},
    {DType::I32, "I32", 1, 4, false},
    {DType::I64, "I64", 1, 8, false},
    {DType::F64, "F64", 1, 8, false},
    {DType::IQ1_M, "IQ1_M", 256, 56, false},
    {DType::BF16, "BF16", 1, 2, true},
    {DType::TQ1_0, "TQ1_0", 256, 54, false},
    {DType::TQ2_0, "TQ2_0", 256, 66, false},
    {DType::MXFP4, "MXFP4", 32, 17, true},
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
  const DTypeInfo* info = find_dtype(static_cast<uint32_t>(dtype));
  TANDEM_CHECK(info != nullptr);
  return *info;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto same = [](char a, char b) { return toupper(static_cast<unsigned char>(a)) == b; };
  for (const DTypeInfo& info : kTable) {
    if (std::equal(name.begin(), name.end(), info.name.begin(), info.name.end(), same)) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace tandem
