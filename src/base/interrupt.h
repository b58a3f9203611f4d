// Ctrl-C. The first one sets a flag that long work checks between tokens, so that it can end in good order;
// the second one leaves at once with exit code 130 and gives the terminal back as it was found. Any thread
// may ask. The flag is one of the two globals of the program.
#pragma once

namespace tandem {

// Installs the handler and remembers the terminal's settings. Call it when there is something to interrupt;
// calling it again changes nothing.
void install_interrupt_handler();

// True after a Ctrl-C, until clear_interrupt().
bool interrupted();
void clear_interrupt();

}  // namespace tandem
