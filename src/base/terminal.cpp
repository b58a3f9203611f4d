#include "base/terminal.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/utf8.h"

namespace tandem {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_control(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return (byte(0) < 0x20 && byte(0) != '\n' && byte(0) != '\t') || byte(0) == 0x7f;
  return character.size() == 2 && byte(0) == 0xc2 && byte(1) < 0xa0;  // C1: U+0080 to U+009F
}

}  // namespace

bool is_dumb_terminal() {
  const std::string_view term = variable("TERM");
  return term.empty() || term == "dumb";
}

bool stdout_has_colors() {
  return isatty(STDOUT_FILENO) == 1 && !is_dumb_terminal() && variable("NO_COLOR").empty();
}

bool is_pipe(int descriptor) {
  struct stat info {};
  return fstat(descriptor, &info) == 0 && S_ISFIFO(info.st_mode);
}

size_t terminal_columns(int descriptor) {
  winsize size{};
  const bool known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}

std::string wrapped_words(std::string_view text, size_t columns) {
  std::string out;
  size_t line = 0, after_space = 0;  // characters of the line, and behind its last space
  size_t last_space = std::string::npos;
  for (const char byte : text) {
    const bool begins_character = (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
    if (begins_character) ++line, ++after_space;
    if (byte == ' ' || byte == '\n') {
      last_space = byte == ' ' ? out.size() : std::string::npos;
      after_space = 0;
      if (byte == '\n') line = 0;
    } else if (begins_character && line > columns && last_space != std::string::npos) {
      out[last_space] = '\n';
      last_space = std::string::npos;
      line = after_space;
    }
    out += byte;
  }
  return out;
}

std::string wrapped_for_stderr(std::string text) {
  return isatty(STDERR_FILENO) == 1 ? wrapped_words(text, terminal_columns(STDERR_FILENO)) : text;
}

std::string harmless(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char step = next_utf8(text);
    const std::string_view character = text.substr(0, step.n_bytes);
    const bool ends_line = text.starts_with("\r\n");
    const bool shown = step.status == Utf8Status::valid && (ends_line || !is_control(character));
    out += shown ? character : kReplacementCharacter;
    text.remove_prefix(step.n_bytes);
  }
  return out;
}

}  // namespace tandem
