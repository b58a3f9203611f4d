// Capabilities of the terminal, and what may be sent to it. Reads the environment; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem {

// TERM is "dumb" or says nothing: no escape sequences.
bool is_dumb_terminal();
// Whether stdout takes colors: a terminal that is not dumb, unless the user has set NO_COLOR.
bool stdout_has_colors();

// Whether what is written there is read by another program, which may show it on the same terminal later.
bool is_pipe(int descriptor);

// The width of the terminal behind a descriptor, in columns; 80 if it does not tell.
size_t terminal_columns(int descriptor);

// Breaks lines of more than `columns` characters at spaces, so that a terminal does not break them inside words. A word
// that is longer stays whole. Wide characters count as one.
std::string wrapped_words(std::string_view text, size_t columns);

// The same at the width of the terminal that is stderr; the text itself where it is none.
std::string wrapped_for_stderr(std::string text);

// Replaces control characters except line breaks and tabs, and what is not UTF-8, with U+FFFD, so that a text
// cannot control a terminal.
std::string harmless(std::string_view text);

}  // namespace tandem
