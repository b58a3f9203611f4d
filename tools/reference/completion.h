// Shell completion: scripts with all commands, options and values, written from the options themselves.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace tandem::tools {

// For bash, zsh or fish. Throws Error(usage) for another shell.
std::string completion_script(const CLI::App& root, const std::string& shell);

}  // namespace tandem::tools
