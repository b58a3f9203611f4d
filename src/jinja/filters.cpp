// Filters of strings and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "jinja/builtins.h"
#include "jinja/interp.h"

namespace tandem::jinja {
namespace {

Value tojson(Call& call) {
  return Value(json_text(call[0], call[2], call[3], call.flag(1), call.flag(4)));
}

Value trim(Call& call) {
  return Value(stripped(to_text(call[0]), call[1], true, true));
}

Value replace(Call& call) {
  return replaced(to_text(call[0]), to_text(call[1]), to_text(call[2]), call.integer_or(3, -1));
}

// Words start after white space and some brackets, as in Jinja2; str.title differs.
Value title(Call& call) {
  static constexpr std::string_view kBreaks = "-({[<";
  const Text text = to_text(call[0]);
  Text out;
  bool begins = true;
  for (size_t at = 0, n = 0; at < text.size(); at += n) {
    n = char_bytes(text.view(), at);
    const uint32_t code = char_code(text.view(), at);
    if (n == 1 && code >= 0x80)
      out.append(text, at, n);
    else
      out.append(begins ? to_upper(code) : to_lower(code), text.origin_at(at));
    begins = is_space(code) || (code < 0x80 && kBreaks.find(static_cast<char>(code)) != kBreaks.npos);
  }
  return Value(std::move(out));
}

Value indent(Call& call) {
  const Text& text = call.text(0);
  const Text prefix = !call.given(1)        ? Text("    ")
                      : call[1].is_string() ? call[1].text()
                                            : justified("", call.integer(1), Side::left, " ");
  const bool blank = call.flag(3);
  Text whole = text;
  whole.append("\n");
  const std::vector<Text> lines = split_lines(whole, false);
  Text out;
  if (call.flag(2)) out.append(prefix);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n");
    if (i > 0 && (blank || !lines[i].empty())) out.append(prefix);
    out.append(lines[i]);
  }
  return Value(std::move(out));
}

Value escape(Call& call) {
  const Text text = to_text(call[0]);
  Text out;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text.bytes()[at];
    const char* escaped = c == '&'    ? "&amp;"
                          : c == '<'  ? "&lt;"
                          : c == '>'  ? "&gt;"
                          : c == '\'' ? "&#39;"
                          : c == '"'  ? "&#34;"
                                      : nullptr;
    if (escaped)
      out.append(std::string_view(escaped), text.origin_at(at));
    else
      out.append(text, at, 1);
  }
  return Value(std::move(out));
}

Value center(Call& call) {
  return Value(justified(to_text(call[0]), call.integer_or(1, 80), Side::center, " "));
}

Value truncate(Call& call) {
  const Text& text = call.text(0);
  const int64_t length = call.integer_or(1, 255), leeway = call.integer_or(4, 5);
  const Text end = call.text_or(3, "...");
  const int64_t kept = length - static_cast<int64_t>(count_chars(end.view()));
  if (kept < 0 || leeway < 0)
    fail("truncate() needs a length of at least that of its end, and a leeway >= 0");
  if (static_cast<int64_t>(count_chars(text.view())) <= length + leeway) return call[0];
  Text out = text.substr(0, char_offset(text.view(), static_cast<size_t>(kept)));
  const size_t space = out.bytes().rfind(' ');
  if (!call.flag(2) && space != std::string::npos) out = out.substr(0, space);
  out.append(end);
  return Value(std::move(out));
}

Value wordcount(Call& call) {
  const Text text = to_text(call[0]);
  int64_t n_words = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size(); at += char_bytes(text.view(), at)) {
    const uint32_t code = char_code(text.view(), at);
    const bool word = is_alpha(code) || is_digit(code) || code == '_';
    n_words += word && !in_word;
    in_word = word;
  }
  return Value(n_words);
}

Value format(Call& call) {
  if (!call.rest.positional.empty() && !call.rest.keyword.empty()) {
    fail("can't handle positional and keyword arguments at the same time");
  }
  return Value(percent_format(to_text(call[0]), call.rest));
}

Value default_value(Call& call) {
  const bool absent = call[0].is_undefined() || (call.flag(2) && !truth(call[0]));
  return !absent ? call[0] : call[1].is_missing() ? Value("") : call[1];
}

constexpr Builtin kTextFilters[] = {
    {"tojson", "value ensure_ascii? indent? separators? sort_keys?", tojson},
    {"trim", "value chars?", trim},
    {"replace", "s old new count?", replace},
    {"upper", "s", [](Call& c) { return Value(upper(to_text(c[0]))); }},
    {"lower", "s", [](Call& c) { return Value(lower(to_text(c[0]))); }},
    {"capitalize", "s", [](Call& c) { return Value(capitalize(to_text(c[0]))); }},
    {"title", "s", title},
    {"indent", "s width? first? blank?", indent},
    {"escape", "s", escape},
    {"e", "s", escape},
    {"forceescape", "s", escape},
    {"safe", "s", [](Call& c) { return Value(to_text(c[0])); }},
    {"string", "s", [](Call& c) { return Value(to_text(c[0])); }},
    {"center", "s width?", center},
    {"truncate", "s length? killwords? end? leeway?", truncate},
    {"wordcount", "s", wordcount},
    {"format", "s *", format},
    {"default", "value default_value? boolean?", default_value},
    {"d", "value default_value? boolean?", default_value},
};

// --- Numbers ---

// Parses as Python's float(); nullopt where that would fail.
std::optional<double> parse_real(const std::string& text) {
  const Text bare = stripped(Text(text), {}, true, true);
  std::string digits = bare.bytes();
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.erase(0, 1);
  if (digits.find("__") == std::string::npos) std::erase(digits, '_');
  double number = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (result.ptr != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range)
    return digits.find("e-") == std::string::npos ? HUGE_VAL : 0;
  return result.ec == std::errc() ? std::optional<double>(number) : std::nullopt;
}

std::optional<int64_t> parse_integer(const std::string& text, int64_t base) {
  std::string digits = stripped(Text(text), {}, true, true).bytes();
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  const char marker = digits.size() > 2 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : '\0';
  const int64_t marked = marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 0;
  if (marked != 0 && (base == marked || base == 0)) {
    digits.erase(0, 2);
    base = marked;
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) fail("int() base must be >= 2 and <= 36, or 0");
  if (digits.find("__") == std::string::npos && !digits.starts_with('_') && !digits.ends_with('_')) {
    std::erase(digits, '_');
  }
  if (negative) digits.insert(digits.begin(), '-');
  int64_t number = 0;
  const auto result =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, static_cast<int>(base));
  const bool all = result.ec == std::errc() && result.ptr == digits.data() + digits.size();
  return all ? std::optional<int64_t>(number) : std::nullopt;
}

std::optional<int64_t> truncated(double number) {
  if (!(std::fabs(number) < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(number);
}

Value to_int(Call& call) {
  require_defined(call[0]);
  const Value otherwise = call[1].is_missing() ? Value(int64_t{0}) : call[1];
  if (call[0].is_integral()) return Value(call[0].integral());
  std::optional<int64_t> number;
  if (call[0].is_string()) {
    number = parse_integer(call[0].string(), call.integer_or(2, 10));
    if (!number) {
      const auto real = parse_real(call[0].string());
      number = real ? truncated(*real) : std::nullopt;
    }
  } else if (call[0].is(Kind::real)) {
    number = truncated(call[0].real());
  }
  return number ? Value(*number) : otherwise;
}

Value to_float(Call& call) {
  require_defined(call[0]);
  const Value otherwise = call[1].is_missing() ? Value(0.0) : call[1];
  if (call[0].is_number()) return Value(call[0].number());
  if (!call[0].is_string()) return otherwise;
  const auto number = parse_real(call[0].string());
  return number ? Value(*number) : otherwise;
}

Value absolute(Call& call) {
  require_defined(call[0]);
  if (call[0].is(Kind::real)) return Value(std::fabs(call[0].real()));
  if (!call[0].is_integral()) fail("bad operand type for abs(): '{}'", type_name(call[0]));
  return call[0].integral() < 0 ? negated(call[0]) : Value(call[0].integral());
}

// Rounds half to even in decimal, as Python does; printf rounds the exact binary value.
double round_decimal(double number, int64_t precision) {
  if (!std::isfinite(number)) return number;
  if (precision >= 0) {
    char text[800];
    snprintf(text, sizeof text, "%.*f", static_cast<int>(std::min<int64_t>(precision, 330)), number);
    return std::strtod(text, nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(-std::max<int64_t>(precision, -308)));
  return std::nearbyint(number / scale) * scale;
}

Value round_number(Call& call) {
  require_defined(call[0]);
  if (!call[0].is_number()) fail("type {} doesn't define __round__ method", type_name(call[0]));
  const int64_t precision = call.integer_or(1, 0);
  const std::string method = call.text_or(2, "common").bytes();
  if (method == "common") {
    if (call[0].is_integral() && precision >= 0) return Value(call[0].integral());
    const double rounded = round_decimal(call[0].number(), precision);
    return call[0].is_integral() ? Value(truncated(rounded).value_or(0)) : Value(rounded);
  }
  if (method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(precision, -300, 300)));
  const double scaled = call[0].number() * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

constexpr Builtin kNumberFilters[] = {
    {"int", "value default? base?", to_int},
    {"float", "value default?", to_float},
    {"abs", "value", absolute},
    {"round", "value precision? method?", round_number},
};

}  // namespace

Builtins text_filters() {
  return kTextFilters;
}

Builtins number_filters() {
  return kNumberFilters;
}

}  // namespace tandem::jinja
