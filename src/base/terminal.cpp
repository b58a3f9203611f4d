#include "base/terminal.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace tandem {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

bool is_dumb_terminal() {
  const std::string_view term = variable("TERM");
  return term.empty() || term == "dumb";
}

bool stdout_has_colors() {
  return isatty(STDOUT_FILENO) == 1 && !is_dumb_terminal() && variable("NO_COLOR").empty();
}

}  // namespace tandem
