#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/log_sink.h"
#include "base/terminal.h"

namespace tandem {
namespace {

std::atomic<LogLevel> g_level{LogLevel::warning};
std::mutex g_mutex;
LogSink g_sink;
std::unique_ptr<FILE, int (*)(FILE*)> g_file{nullptr, fclose};
bool g_status_shown = false;
std::atomic<SettingWriter> g_setting_writer{library_setting_text};
constexpr const char* kEraseLine = "\r\033[K";

const char* prefix_of(LogLevel level) {
  return level == LogLevel::error ? "error: " : level == LogLevel::warning ? "warning: " : "";
}

}  // namespace

void set_log_level(LogLevel level) {
  g_level = level;
}
LogLevel log_level() {
  return g_level;
}

void set_log_file(const std::string& path) {
  FILE* file = fopen(path.c_str(), "a");
  if (!file) throw_error(ErrorCode::io, "{}: cannot open log file: {}", path, strerror(errno));
  const std::lock_guard lock(g_mutex);
  g_file.reset(file);
}

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(g_mutex);
  g_sink = std::move(sink);
}

void set_log_setting_writer(SettingWriter writer) {
  g_setting_writer = writer;
}

void show_status(const std::string& text) {
  const std::lock_guard lock(g_mutex);
  if (!g_status_shown && text.empty()) return;
  fprintf(stderr, "%s%s", kEraseLine, text.c_str());
  g_status_shown = !text.empty();
}

void log_text(LogLevel level, fmt::string_view text, fmt::format_args arguments) {
  if (level > log_level()) return;
  const std::string message = write_settings(format_text(text, arguments), g_setting_writer);
  const std::string line = format("tandem: {}{}", prefix_of(level), message);
  const std::lock_guard lock(g_mutex);
  if (g_sink) return g_sink(level, message);
  const bool terminal = isatty(STDERR_FILENO) == 1;
  fprintf(stderr, "%s%s\n", g_status_shown ? kEraseLine : "",
          wrapped_for_stderr(terminal ? harmless(line) : line).c_str());
  g_status_shown = false;
  if (g_file) {
    if (fprintf(g_file.get(), "%s\n", line.c_str()) < 0 || fflush(g_file.get()) != 0) {
      fprintf(stderr, "tandem: warning: the log file cannot be written, and is left as it is: %s\n", strerror(errno));
      g_file.reset();
    }
  }
}

}  // namespace tandem
