#include "gguf/sigbus.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "base/error.h"

namespace tandem {

// A node of a list that only grows, so that the handler can walk it at any time without a lock. Closed ranges
// stay in the list, empty, for reuse. begin is written last and cleared first: a range with a begin has a
// name.
struct SigbusRange {
  std::atomic<uintptr_t> begin{0};
  std::atomic<size_t> n_bytes{0};
  char path[512] = {};
  SigbusRange* next = nullptr;
  bool used = false;  // guarded by g_mutex
};

namespace {

std::mutex g_mutex;  // of writers
std::atomic<SigbusRange*> g_ranges{nullptr};
struct sigaction g_before;

static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<SigbusRange*>::is_always_lock_free);

// Builds a line of text; async-signal-safe.
struct Line {
  char text[1024];
  size_t n = 0;
  void add(const char* more) {
    while (*more && n < sizeof text) text[n++] = *more++;
  }
  void add(uintptr_t number) {
    char digits[24];
    size_t i = sizeof digits;
    digits[--i] = 0;
    do digits[--i] = static_cast<char>('0' + number % 10);
    while (number /= 10);
    add(digits + i);
  }
};

void on_sigbus(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool fault = info->si_code > 0;  // not sent by kill()
  for (SigbusRange* range = g_ranges.load(); fault && range; range = range->next) {
    const uintptr_t begin = range->begin.load();
    if (begin == 0 || address < begin || address - begin >= range->n_bytes.load()) continue;
    Line line;
    line.add("tandem: error: ");
    line.add(range->path);
    line.add(": reading failed at offset ");
    line.add(address - begin);
    line.add(": the file was truncated or its disk is gone\n");
    const ssize_t ignored = write(STDERR_FILENO, line.text, line.n);
    (void)ignored;
    _exit(static_cast<int>(ErrorCode::io));
  }
  sigaction(SIGBUS, &g_before, nullptr);  // on return the fault repeats and reaches the previous handler
  if (!fault) raise(SIGBUS);
}

void install_handler() {
  struct sigaction action = {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &g_before);
}

SigbusRange* free_node() {
  for (SigbusRange* range = g_ranges.load(); range; range = range->next) {
    if (!range->used) return range;
  }
  auto* range = new SigbusRange;  // never freed: the handler may be walking the list
  range->next = g_ranges.load();
  g_ranges.store(range);
  return range;
}

}  // namespace

SigbusRange* guard_range(const void* begin, size_t n_bytes, const std::string& path) {
  const std::lock_guard lock(g_mutex);
  static const bool installed = (install_handler(), true);
  (void)installed;
  SigbusRange* range = free_node();
  range->used = true;
  const std::string text = printable(path, sizeof range->path / 5);  // an escaped byte is four characters
  std::strncpy(range->path, text.c_str(), sizeof range->path - 1);
  range->n_bytes.store(n_bytes);
  range->begin.store(reinterpret_cast<uintptr_t>(begin));
  return range;
}

void unguard_range(SigbusRange* range) {
  const std::lock_guard lock(g_mutex);
  range->begin.store(0);
  range->used = false;
}

}  // namespace tandem
