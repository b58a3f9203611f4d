// Messages for people, on stderr, one line each. stdout belongs to the product's output.
// Any thread may log. The log (level, file, status line) is one of the two globals of the program.
#pragma once

#include <string>

namespace tandem {

enum class LogLevel { quiet = 0, error = 1, warning = 2, info = 3, verbose = 4 };

void set_log_level(LogLevel level);
LogLevel log_level();

// Also appends every message (of any level up to the set one) to this file. Throws Error(io) if it cannot be
// opened.
void set_log_file(const std::string& path);

// Shows a line on the terminal that every message, and the next call, wipes away and an empty text only
// wipes. For progress.h, which knows whether there is a terminal.
void show_status(const std::string& text);

void log_error(const char* format, ...) __attribute__((format(printf, 1, 2)));    // "tandem: error: ..."
void log_warning(const char* format, ...) __attribute__((format(printf, 1, 2)));  // "tandem: warning: ..."
void log_info(const char* format, ...) __attribute__((format(printf, 1, 2)));     // "tandem: ..."
void log_verbose(const char* format, ...) __attribute__((format(printf, 1, 2)));  // "tandem: ..."

}  // namespace tandem
