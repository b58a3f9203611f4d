// Capabilities of the terminal. Reads the environment; any thread.
#pragma once

namespace tandem {

// TERM is "dumb" or says nothing: no escape sequences.
bool is_dumb_terminal();
// Whether stdout takes colors: a terminal that is not dumb, unless the user has set NO_COLOR.
bool stdout_has_colors();

}  // namespace tandem
