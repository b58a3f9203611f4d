// The script for each shell.
#pragma once

#include <string>
#include <vector>

#include "tools/reference/describe.h"

namespace tandem::tools {

// `program` has the options that come before a command.
std::string bash_completion(const DescribedCommand& program, const std::vector<DescribedCommand>& commands);
std::string zsh_completion(const DescribedCommand& program, const std::vector<DescribedCommand>& commands);
std::string fish_completion(const DescribedCommand& program, const std::vector<DescribedCommand>& commands);

}  // namespace tandem::tools
