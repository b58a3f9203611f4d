#include "tools/chat/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <utility>

namespace tandem::tools {
namespace {

std::atomic<int> g_ending{0};
std::atomic<unsigned> g_changes{0};
std::atomic<bool> g_suspend{false};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

extern "C" void on_ending(int signal) {
  g_ending = signal;
}
extern "C" void on_change(int) {
  ++g_changes;
}
extern "C" void on_suspend(int) {
  g_suspend = true;
}

std::function<void()>& suspender() {
  static std::function<void()> suspend;
  return suspend;
}

// No SA_RESTART: waiting for a key must return.
void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void install_chat_signals() {
  for (const int signal : {SIGTERM, SIGHUP}) {
    struct sigaction found {};
    if (sigaction(signal, nullptr, &found) == 0 && found.sa_handler == SIG_IGN) continue;  // nohup
    handle(signal, on_ending);
  }
  handle(SIGWINCH, on_change);
  handle(SIGCONT, on_change);
}

int ending_signal() {
  return g_ending;
}

void end_by_signal(int signal) {
  handle(signal, SIG_DFL);
  raise(signal);
}

unsigned terminal_changes() {
  return g_changes;
}

void set_suspender(std::function<void()> suspend) {
  suspender() = std::move(suspend);
}

SuspendLater::SuspendLater() {
  handle(SIGTSTP, on_suspend);
}
SuspendLater::~SuspendLater() {
  g_suspend = false;
  handle(SIGTSTP, SIG_DFL);
}

bool SuspendLater::wants_suspend() {
  return g_suspend;
}

void SuspendLater::suspend() {
  g_suspend = false;
  if (suspender()) return suspender()();
  handle(SIGTSTP, SIG_DFL);
  raise(SIGTSTP);  // returns when the program is continued
  handle(SIGTSTP, on_suspend);
}

}  // namespace tandem::tools
