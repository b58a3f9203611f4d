// Lists of dtypes to go over.
#pragma once

#include <vector>

#include "gguf/dtype.h"

namespace tandem::test {

// The dtypes that the format library reads and writes.
inline std::vector<DType> quantizable_dtypes() {
  std::vector<DType> dtypes;
  for (const DTypeInfo& info : all_dtypes()) {
    if (info.to_float && info.from_float) dtypes.push_back(info.dtype);
  }
  return dtypes;
}

}  // namespace tandem::test
