// The mixes of dtypes that a GGUF file can be of, by the number in general.file_type.
#pragma once

#include <cstdint>
#include <string_view>

namespace tandem {

// "Q4_K_M" for 15; "" for a number that is not known.
std::string_view file_type_name(uint32_t number);

}  // namespace tandem
