#include "base/log.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace tandem {
namespace {

std::atomic<LogLevel> g_level{LogLevel::warning};
std::mutex g_mutex;
std::unique_ptr<FILE, int (*)(FILE*)> g_file{nullptr, fclose};
bool g_status_shown = false;
std::atomic<SettingWriter> g_setting_writer{library_setting_text};
constexpr const char* kEraseLine = "\r\033[K";

void write_line(LogLevel level, const char* prefix, const char* format, va_list args) {
  if (level > log_level()) return;
  char line[4096];
  const int start = snprintf(line, sizeof line, "tandem: %s", prefix);
  vsnprintf(line + start, sizeof line - static_cast<size_t>(start), format, args);
  const std::string text = write_settings(line, g_setting_writer);
  const std::lock_guard lock(g_mutex);
  fprintf(stderr, "%s%s\n", g_status_shown ? kEraseLine : "", text.c_str());
  g_status_shown = false;
  if (g_file) {
    fprintf(g_file.get(), "%s\n", text.c_str());
    fflush(g_file.get());
  }
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
  if (!file) throw_error(ErrorCode::io, "%s: cannot open log file: %s", path.c_str(), strerror(errno));
  const std::lock_guard lock(g_mutex);
  g_file.reset(file);
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

#define TANDEM_LOG_FUNCTION(name, level, prefix) \
  void name(const char* format, ...) {           \
    va_list args;                                \
    va_start(args, format);                      \
    write_line(level, prefix, format, args);     \
    va_end(args);                                \
  }

TANDEM_LOG_FUNCTION(log_error, LogLevel::error, "error: ")
TANDEM_LOG_FUNCTION(log_warning, LogLevel::warning, "warning: ")
TANDEM_LOG_FUNCTION(log_info, LogLevel::info, "")
TANDEM_LOG_FUNCTION(log_verbose, LogLevel::verbose, "")

}  // namespace tandem
