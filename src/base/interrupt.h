// Ctrl-C. The first sets a flag that long work checks between tokens, so that it can stop cleanly; the second
// restores the terminal and exits at once with code 130. Any thread may check. The flag is one of the
// program's two globals.
#pragma once

namespace tandem {

// Installs the handler and saves the terminal's settings. Call it when there is something to interrupt; later
// calls do nothing.
void install_interrupt_handler();

// Text that the first Ctrl-C writes to stderr at once; it lives until it is replaced. nullptr for none.
void set_interrupt_notice(const char* text);

// True after a Ctrl-C, until clear_interrupt().
bool interrupted();
void clear_interrupt();

}  // namespace tandem
