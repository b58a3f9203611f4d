// What a KV cache can hold. Every device stores and reads all of these.
#pragma once

#include "gguf/dtype.h"

namespace tandem {

// The dtypes that rows of a cache can have.
inline constexpr DType kCacheDTypes[] = {DType::F32,  DType::F16,  DType::BF16, DType::Q8_0,  DType::Q5_1,
                                         DType::Q5_0, DType::Q4_1, DType::Q4_0, DType::IQ4_NL};

}  // namespace tandem
