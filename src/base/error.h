// tandem::Error: the one exception, for all failures that input, the machine or the user can cause.
// Our own bugs are assertions (TANDEM_CHECK), never Errors.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace tandem {

// The kind of failure. The value is the program's exit code.
enum class ErrorCode : int {
  usage = 2,          // the command line is wrong
  bad_file = 3,       // an input file is malformed or not supported
  out_of_memory = 4,  // not enough host or device memory
  io = 5,             // reading or writing failed
  numeric = 6,        // NaN or infinity in a result
  bug = 70,           // our fault
  interrupted = 130,  // Ctrl-C
};

// Message: one line, no trailing newline; says what is wrong, where (file, tensor or offset), what was found
// and what was needed. It marks settings (see base/setting.h); what() has the library's names for them.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ErrorCode code() const { return code_; }
  // With marks: to print the settings under other names, or to include this in another message.
  const std::string& message() const { return message_; }

 private:
  ErrorCode code_;
  std::string message_;
};

// Replaces the {} of a text by the rules of the fmt library; the compiler checks them against the arguments.
std::string format_text(fmt::string_view text, fmt::format_args arguments);
template <class... T>
std::string format(fmt::format_string<T...> text, T&&... arguments) {
  return format_text(text, fmt::make_format_args(arguments...));
}

// Throws an Error with a formatted message: throw_error(ErrorCode::bad_file, "{}: ...", path).
template <class... T>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<T...> text, T&&... arguments) {
  throw Error(code, format_text(text, fmt::make_format_args(arguments...)));
}

// Escapes control characters of an untrusted string and cuts it at `limit` bytes, so that it prints safely on
// one line.
std::string printable(std::string_view text, size_t limit = 80);

// Prints file, line and condition and exits with code 70. Only for broken invariants of our own.
[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace tandem

// For our bugs only, never for input. Active in every build type.
#define TANDEM_CHECK(condition) \
  ((condition) ? (void)0 : ::tandem::check_failed(__FILE__, __LINE__, #condition))
