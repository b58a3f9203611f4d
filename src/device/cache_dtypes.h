// What a KV cache can hold. Every device stores and reads all of these.
#pragma once

#include "gguf/dtype.h"

namespace tandem {

// The dtypes that rows of a cache can have.
inline constexpr DType kCacheDTypes[] = {DType::F32,  DType::F16,  DType::BF16, DType::Q8_0,  DType::Q5_1,
                                         DType::Q5_0, DType::Q4_1, DType::Q4_0, DType::IQ4_NL};
// Those of which the newest tokens stay F16, and groups of older ones are quantized together (gguf/kivi.h).
inline constexpr DType kGroupedDTypes[] = {DType::KIVI4, DType::KIVI2};

}  // namespace tandem
