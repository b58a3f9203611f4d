#include "base/error.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace tandem {
namespace {

std::string vformat(const char* format, va_list args) {
  va_list again;
  va_copy(again, args);
  const int n = vsnprintf(nullptr, 0, format, args);
  std::string text(n > 0 ? static_cast<size_t>(n) : 0, '\0');
  if (n > 0) vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

}  // namespace

void throw_error(ErrorCode code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  const std::string message = vformat(format, args);
  va_end(args);
  throw Error(code, message);
}

std::string format(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string text = vformat(format, args);
  va_end(args);
  return text;
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (size_t i = 0; i < text.size() && i < limit; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f) {
      out += format("\\x%02x", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  if (text.size() > limit) out += "...";
  return out;
}

void check_failed(const char* file, int line, const char* condition) {
  fprintf(stderr, "tandem: internal error at %s:%d: %s\n", file, line, condition);
  fflush(stderr);
  _Exit(static_cast<int>(ErrorCode::bug));
}

}  // namespace tandem
