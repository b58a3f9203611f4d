#include "tools/options/types.h"

#include <cctype>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdlib>

#include "base/text.h"

namespace tandem::tools {

void throw_none_of(const std::string& option, const std::string& text,
                   const std::vector<std::string>& known) {
  throw_error(ErrorCode::usage, "{}: '{}' is none of {}{}", option, printable(text), joined(known, ", "),
              did_you_mean(text, known));
}

int64_t parse_integer(const std::string& option, const std::string& text, int64_t min, int64_t max) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || std::isspace(static_cast<unsigned char>(text[0]))) {
    throw_error(ErrorCode::usage, "{}: '{}' is not a whole number", option, printable(text));
  }
  if (errno == ERANGE || value < min || value > max) {
    const bool too_small = value < min || value == LLONG_MIN;
    throw_error(ErrorCode::usage, "{}: {} is too {}, it must be {} or {}", option, printable(text),
                too_small ? "small" : "large", too_small ? min : max, too_small ? "more" : "less");
  }
  return value;
}

double parse_real(const std::string& option, const std::string& text, double min) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || std::isnan(value) ||
      std::isspace(static_cast<unsigned char>(text[0]))) {
    throw_error(ErrorCode::usage, "{}: '{}' is not a number", option, printable(text));
  }
  if (value < min) {
    throw_error(ErrorCode::usage, "{}: {} is out of range, it must be {}", option, text,
                min == 0 ? "0 or more" : "above 0");
  }
  return value;
}

Toggle parse_toggle(const std::string& option, const std::string& text) {
  const std::string word = lower_case(text);
  if (word == "on" || word == "1" || word == "true" || word == "enabled") return Toggle::on;
  if (word == "off" || word == "0" || word == "false" || word == "disabled") return Toggle::off;
  if (word == "auto" || word == "-1") return Toggle::automatic;
  throw_none_of(option, text, {"on", "off", "auto"});
}

}  // namespace tandem::tools
