// The manual page tandem(1), written from the options.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace tandem::tools {

std::string man_page(const CLI::App& root);

}  // namespace tandem::tools
