// tandem::Error: the one exception for everything that outside input, the machine or the user can cause.
// Bugs of ours are asserts (TANDEM_CHECK), never Errors.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tandem {

// What kind of failure it was. The value is the exit code of the program.
enum class ErrorCode : int {
  usage = 2,          // the command line asks for something that makes no sense
  bad_file = 3,       // an input file is not what it should be
  out_of_memory = 4,  // host or device memory does not suffice
  io = 5,             // reading or writing failed
  numeric = 6,        // NaN or infinity where a number must be
  bug = 70,           // our fault
  interrupted = 130,  // Ctrl-C
};

// Message: one line, no trailing newline; names the file, tensor or offset, what was found and what was
// needed.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// printf-style construction of the message: throw_error(ErrorCode::bad_file, "%s: ...", path).
[[noreturn]] void throw_error(ErrorCode code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// printf-style std::string.
std::string format(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Text of an untrusted string that is safe to print on one line: control characters escaped, cut at `limit`
// bytes.
std::string printable(std::string_view text, size_t limit = 80);

// Prints file, line and the condition and leaves with exit code 70. For broken invariants of our own only.
[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace tandem

// For our bugs only, never for input. Active in every build type.
#define TANDEM_CHECK(condition) \
  ((condition) ? (void)0 : ::tandem::check_failed(__FILE__, __LINE__, #condition))
