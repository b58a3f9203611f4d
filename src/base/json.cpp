#include "base/json.h"

namespace tandem {
namespace {

// A list, an object or a key has memory of its own, as much as this many plain values take.
constexpr size_t kOwnMemory = 4;

}  // namespace

std::string json_excess(std::string_view text, const JsonLimits& limits) {
  size_t depth = 0, n_values = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == ']' || c == '}') depth -= depth > 0;
    if (c == ',') ++n_values;
    if (c == '[' || c == '{' || c == ':') n_values += kOwnMemory;
    if ((c == '[' || c == '{') && ++depth > limits.max_depth) {
      return format("JSON nested more than {} deep", limits.max_depth);
    }
    if (n_values > limits.max_values) return format("JSON with more than {} values", limits.max_values);
  }
  return "";
}

std::string json_error_text(const std::exception& error, std::string_view text) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..."
  std::string what = error.what();
  if (const size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
  for (const std::string_view prefix : {"parse error at ", "parse error: "}) {
    if (what.starts_with(prefix)) what.erase(0, prefix.size());
  }
  const std::string_view first_line = "line 1, ";
  if (text.find('\n') == text.npos && what.starts_with(first_line)) what.erase(0, first_line.size());
  return printable(what, 200);
}

}  // namespace tandem
