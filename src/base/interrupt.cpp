#include "base/interrupt.h"

#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "base/terminal.h"

namespace tandem {
namespace {

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "used in a signal handler");

std::atomic<const char*> g_notice{nullptr};
static_assert(std::atomic<const char*>::is_always_lock_free, "used in a signal handler");

// Written once before the handler is installed, then only read.
struct Terminal {
  bool saved = false;
  termios settings{};
  bool shown = false, color = false;  // stdout
} g_terminal;

// Async-signal-safe.
void restore_terminal() {
  if (g_terminal.saved) tcsetattr(STDIN_FILENO, TCSANOW, &g_terminal.settings);
  static constexpr char kResetColor[] = "\033[0m";
  if (g_terminal.color && write(STDOUT_FILENO, kResetColor, sizeof kResetColor - 1) < 0) return;
  if (g_terminal.shown && write(STDOUT_FILENO, "\n", 1) < 0) return;
}

extern "C" void on_interrupt(int) {
  const int saved_errno = errno;
  if (g_interrupted.exchange(true)) {
    restore_terminal();
    _exit(static_cast<int>(ErrorCode::interrupted));
  }
  const char* notice = g_notice;
  if (notice != nullptr && write(STDERR_FILENO, notice, strlen(notice)) < 0) errno = saved_errno;
  errno = saved_errno;
}

}  // namespace

void install_interrupt_handler() {
  static const bool installed = [] {
    g_terminal.saved = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &g_terminal.settings) == 0;
    g_terminal.shown = isatty(STDOUT_FILENO);
    g_terminal.color = stdout_has_colors();
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    sigemptyset(&action.sa_mask);
    action.sa_flags = 0;  // no SA_RESTART: a read from the terminal must return
    return sigaction(SIGINT, &action, nullptr) == 0;
  }();
  (void)installed;
}

void set_interrupt_notice(const char* text) {
  g_notice = text;
}

bool interrupted() {
  return g_interrupted.load(std::memory_order_relaxed);
}
void clear_interrupt() {
  g_interrupted = false;
}

}  // namespace tandem
