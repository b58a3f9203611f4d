// Asking before something is removed.
#pragma once

#include <string>

namespace tandem::tools {

// Asks on the terminal whether to remove `what`. Without a terminal, throws Error(usage) that asks for --yes.
bool confirmed(const std::string& what);

}  // namespace tandem::tools
