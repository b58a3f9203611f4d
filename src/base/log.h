// Messages to the user, on stderr, one line each (on a terminal, wrapped at spaces); stdout is only for the product's output.
// Any thread may log. The log (level, file, status line, setting names) is one of the program's two globals.
#pragma once

#include <string>

#include <fmt/core.h>

#include "base/setting.h"

namespace tandem {

enum class LogLevel { quiet = 0, error = 1, warning = 2, info = 3, verbose = 4 };

void set_log_level(LogLevel level);
LogLevel log_level();

// Also appends every message, up to the set level, to this file. Throws Error(io) if it cannot be opened.
void set_log_file(const std::string& path);

// Sets how messages name settings; by default as the library does.
void set_log_setting_writer(SettingWriter writer);

// Shows a status line on the terminal until the next message or call erases it; an empty text only erases.
// For progress.h, which checks that there is a terminal.
void show_status(const std::string& text);

// Formats as format() does, if the level is logged: "tandem: error: ...", "tandem: ...".
void log_text(LogLevel level, fmt::string_view text, fmt::format_args arguments);
template <class... T>
void log_error(fmt::format_string<T...> text, T&&... arguments) {
  log_text(LogLevel::error, text, fmt::make_format_args(arguments...));
}
template <class... T>
void log_warning(fmt::format_string<T...> text, T&&... arguments) {
  log_text(LogLevel::warning, text, fmt::make_format_args(arguments...));
}
template <class... T>
void log_info(fmt::format_string<T...> text, T&&... arguments) {
  log_text(LogLevel::info, text, fmt::make_format_args(arguments...));
}
template <class... T>
void log_verbose(fmt::format_string<T...> text, T&&... arguments) {
  log_text(LogLevel::verbose, text, fmt::make_format_args(arguments...));
}

}  // namespace tandem
