// Lists of dtypes to go over.
#pragma once

#include <vector>

#include "gguf/dtype.h"

namespace tandem::test {

// Of caches, in groups of tokens.
inline constexpr DType kGroupedTypes[] = {DType::KIVI4, DType::KIVI2};

// The dtypes that the format library reads and writes.
inline std::vector<DType> quantizable_dtypes() {
  std::vector<DType> dtypes;
  for (const DTypeInfo& info : all_dtypes()) {
    if (info.to_float && info.from_float) dtypes.push_back(info.dtype);
  }
  return dtypes;
}

}  // namespace tandem::test
