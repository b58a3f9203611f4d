#include "base/error.h"

#include <cstdio>
#include <cstdlib>

#include "base/setting.h"

namespace tandem {
Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(write_settings(message, library_setting_text)), code_(code), message_(message) {}

std::string format_text(fmt::string_view text, fmt::format_args arguments) {
  return fmt::vformat(text, arguments);
}

// Returns the length of the UTF-8 character at the start of `text`; 0 for invalid bytes and control
// characters.
static size_t printable_character(std::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  const size_t n = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < n) return 0;
  uint32_t code = byte(0) & (0xffu >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0xa0, 0x800, 0x10000};  // two bytes: from behind the C1 controls
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code >= kSmallest[n] && code <= 0x10ffff && !surrogate ? n : 0;
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  size_t i = 0;
  while (i < text.size() && i < limit) {
    const size_t n = printable_character(text.substr(i));
    if (i + n > limit) break;
    if (n == 0) {
      out += format("\\x{:02x}", static_cast<unsigned char>(text[i++]));
    } else {
      out += text.substr(i, n);
      i += n;
    }
  }
  if (i < text.size()) out += "...";
  return out;
}

void check_failed(const char* file, int line, const char* condition) {
  fprintf(stderr, "tandem: internal error at %s:%d: %s\n", file, line, condition);
  fflush(stderr);
  _Exit(static_cast<int>(ErrorCode::bug));
}

}  // namespace tandem
