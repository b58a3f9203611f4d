// Capabilities of the terminal, and what may be sent to it. Reads the environment; any thread.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// TERM is "dumb" or says nothing: no escape sequences.
bool is_dumb_terminal();
// Whether stdout takes colors: a terminal that is not dumb, unless the user has set NO_COLOR.
bool stdout_has_colors();

// Replaces control characters except line breaks and tabs, and what is not UTF-8, with U+FFFD, so that a text
// cannot control a terminal.
std::string harmless(std::string_view text);

}  // namespace tandem
