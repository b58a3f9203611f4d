#include "tools/status_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

namespace tandem::tools {
namespace {

// A line that wrapped could not be wiped away.
size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}

}  // namespace

StatusLine::StatusLine(bool shown) : shown_(shown && isatty(STDERR_FILENO) == 1) {}

void StatusLine::show(const std::string& text) {
  if (!shown_) return;
  fprintf(stderr, "\r\033[K%s", text.substr(0, terminal_columns() - 1).c_str());
  dirty_ = true;
}

void StatusLine::clear() {
  if (!dirty_) return;
  fputs("\r\033[K", stderr);
  dirty_ = false;
}

}  // namespace tandem::tools
