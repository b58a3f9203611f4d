// Which dtype each tensor gets, by name: rules PATTERN=TYPE from the command line or from a recipe, a text file with one
// rule a line or a model whose mix is taken over. Throws Error(usage) with the option or line at fault.
#pragma once

#include <string>
#include <vector>

#include "tools/quantize/quantize.h"

namespace tandem::tools {

// A dtype that can be written, by its name. `where` starts the message of an error.
DType parse_dtype(const std::string& where, const std::string& text);
DTypeRule parse_rule(const std::string& where, const std::string& text);

// The rules of a file, in its order. Empty lines and those that start with # say nothing. A GGUF file stands for a rule
// for each of its quantized tensors.
std::vector<DTypeRule> read_recipe(const std::string& path);

}  // namespace tandem::tools
