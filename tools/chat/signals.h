// Signals of a chat at a terminal: the window changes, the program is stopped and continued, the window is
// closed or the program is asked to end. Handlers only note what happened; the chat's one thread looks.
#pragma once

#include <functional>

namespace tandem::tools {

// Installs the handlers. From then on SIGTERM and SIGHUP no longer end the program: the chat ends its turn,
// saves, and calls end_by_signal().
void install_chat_signals();

// SIGTERM or SIGHUP once one has come, else 0.
int ending_signal();
// Ends the process as the signal does by default, for the parent's sake.
void end_by_signal(int signal);

// Counts what may have moved the text on the screen: new window sizes, and returns from Ctrl-Z.
unsigned terminal_changes();

// Who stops the program after Ctrl-Z, if it is not this process.
void set_suspender(std::function<void()> suspend);

// While one exists, Ctrl-Z only sets wants_suspend(); suspend() then stops the program until it is continued.
class SuspendLater {
 public:
  SuspendLater();
  ~SuspendLater();
  SuspendLater(const SuspendLater&) = delete;
  SuspendLater& operator=(const SuspendLater&) = delete;
  static bool wants_suspend();
  static void suspend();
};

}  // namespace tandem::tools
