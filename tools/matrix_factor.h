// Which matrices of a GGUF file may have a factor in a tensor of its own, as those of NVFP4 do ("blk.0.ffn_up.scale").
#pragma once

#include <string>
#include <string_view>

namespace tandem::tools {

// Returns the name of the factor's tensor, or "" for tensors that llama.cpp reads none for: it refuses files with tensors that it does not
// know. This program takes one for any matrix.
std::string factor_name(std::string_view tensor);

}  // namespace tandem::tools
