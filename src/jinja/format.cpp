// "%s %d" % x and "{} {name}".format(x): the subset of Python's two format languages that templates use.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "jinja/builtins.h"
#include "jinja/interp.h"

namespace tandem::jinja {
namespace {

constexpr int64_t kMaxWidth = 100000, kMaxPrecision = 400;

struct Spec {
  Text fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false, grouped = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

// Reads a pattern byte by byte.
class Cursor {
 public:
  explicit Cursor(const Text& text) : text_(text) {}
  bool done() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_.bytes()[at_ + ahead] : '\0'; }
  char take() { return done() ? '\0' : text_.bytes()[at_++]; }
  bool skip(char c) { return peek() == c && !done() ? (++at_, true) : false; }
  size_t at() const { return at_; }
  void move_to(size_t at) { at_ = at; }
  const Text& text() const { return text_; }
  std::optional<int64_t> integer(int64_t max) {
    if (peek() < '0' || peek() > '9') return std::nullopt;
    int64_t number = 0;
    while (peek() >= '0' && peek() <= '9') {
      number = number * 10 + (take() - '0');
      if (number > max) fail("a width or precision in a format is larger than {}", static_cast<int>(max));
    }
    return number;
  }

 private:
  const Text& text_;
  size_t at_ = 0;
};

std::string grouped_digits(std::string digits) {
  const size_t end = std::min(digits.find('.'), digits.size());
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

// Returns the digits of |number|, without sign.
std::string digits_of(const Value& value, const Spec& spec) {
  char text[512];
  if (value.is_integral() && !std::strchr("eEfFgG%", spec.type ? spec.type : 'd')) {
    const int64_t number = value.integral();
    const uint64_t size = number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    const auto n = static_cast<unsigned long long>(size);
    switch (spec.type) {
      case 'x': snprintf(text, sizeof text, spec.alternate ? "0x%llx" : "%llx", n); return text;
      case 'X': snprintf(text, sizeof text, spec.alternate ? "0X%llX" : "%llX", n); return text;
      case 'o': snprintf(text, sizeof text, spec.alternate ? "0o%llo" : "%llo", n); return text;
      case 'b': {
        std::string bits;
        for (uint64_t rest = size; rest > 0 || bits.empty(); rest /= 2)
          bits += static_cast<char>('0' + rest % 2);
        return (spec.alternate ? "0b" : "") + std::string(bits.rbegin(), bits.rend());
      }
      default: return std::to_string(size);
    }
  }
  double number = std::fabs(value.number());
  if (!spec.type && spec.precision < 0) return float_text(number);
  const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  const char type = spec.type == '%' ? 'f' : spec.type ? spec.type : 'g';
  if (spec.type == '%') number *= 100;
  const char pattern[] = {'%', '.', '*', type, '\0'};
  std::vector<char> out(static_cast<size_t>(precision) + 400);
  snprintf(out.data(), out.size(), pattern, precision, number);
  return std::string(out.data()) + (spec.type == '%' ? "%" : "");
}

Text format_number(const Value& value, const Spec& spec) {
  const bool negative = value.is(Kind::real) ? std::signbit(value.real()) : value.integral() < 0;
  std::string digits = digits_of(value, spec);
  if (spec.grouped) digits = grouped_digits(digits);
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.align != '=') {
    const Side side = spec.align == '<' ? Side::left : spec.align == '^' ? Side::center : Side::right;
    return justified(Text(sign + digits), spec.width, side, spec.fill);
  }
  Text out(sign);
  out.append(justified(Text(digits), spec.width - static_cast<int64_t>(sign.size()), Side::right, spec.fill));
  return out;
}

Text format_text(const Text& text, const Spec& spec) {
  const size_t n_bytes =
      spec.precision < 0 ? text.size() : char_offset(text.view(), static_cast<size_t>(spec.precision));
  const Side side = spec.align == '>' ? Side::right : spec.align == '^' ? Side::center : Side::left;
  // Unlike str.center, format puts the extra space at the end.
  if (side == Side::center) {
    const int64_t room = spec.width - static_cast<int64_t>(count_chars(text.view().substr(0, n_bytes)));
    const Text left =
        justified(text.substr(0, n_bytes), spec.width - (room > 0 ? room / 2 : 0), Side::left, spec.fill);
    return justified(left, spec.width, Side::right, spec.fill);
  }
  return justified(text.substr(0, n_bytes), spec.width, side, spec.fill);
}

// --- The % operator ---

const Value& keyed_argument(const Args& args, Cursor& pattern) {
  const size_t end = pattern.text().bytes().find(')', pattern.at());
  if (end == std::string::npos) fail("incomplete format key");
  const std::string key = pattern.text().bytes().substr(pattern.at(), end - pattern.at());
  pattern.move_to(end + 1);
  if (args.positional.size() == 1 && args.positional[0].is_dict()) {
    if (const Value* found = args.positional[0].dict()->find_text(key)) return *found;
  }
  for (const auto& [name, value] : args.keyword) {
    if (name == key) return value;
  }
  fail("there is no '{}' to format", key);
}

Text percent_value(const Value& value, Spec spec) {
  if (spec.type != 's' && spec.type != 'r') require_defined(value);
  switch (spec.type) {
    case 's': return format_text(to_text(value), spec);
    case 'r': return format_text(repr(value), spec);
    case 'c': {
      if (value.is_string() && count_chars(value.string()) == 1) return format_text(value.text(), spec);
      if (!value.is_integral() || value.integral() < 0 || value.integral() > 0x10ffff) {
        fail("%c requires int or char");
      }
      std::string one;
      append_utf8(one, static_cast<uint32_t>(value.integral()));
      return format_text(Text(one), spec);
    }
    case 'd':
    case 'i':
    case 'u':
      if (!value.is_number()) fail("%d format: a real number is required, not {}", type_name(value));
      spec.type = 'd';
      if (value.is_integral()) return format_number(value, spec);
      if (!(std::fabs(value.real()) < 9e18)) fail("cannot convert this float to an integer");
      return format_number(Value(static_cast<int64_t>(value.real())), spec);
    case 'x':
    case 'X':
    case 'o':
      if (!value.is_integral())
        fail("%{:c} format: an integer is required, not {}", spec.type, type_name(value));
      return format_number(value, spec);
    default:
      if (!value.is_number()) fail("must be real number, not {}", type_name(value));
      return format_number(value, spec);
  }
}

}  // namespace

Text percent_format(const Text& text, const Args& args) {
  Cursor pattern(text);
  Text out;
  size_t n_used = 0;
  bool keyed = false;
  while (!pattern.done()) {
    const size_t begin = pattern.at();
    while (!pattern.done() && pattern.peek() != '%') pattern.take();
    out.append(text, begin, pattern.at() - begin);
    if (pattern.done()) break;
    pattern.take();
    const Value* value = nullptr;
    if (pattern.skip('(')) {
      value = &keyed_argument(args, pattern);
      keyed = true;
    }
    Spec spec;
    spec.align = '>';
    for (bool flags = true; flags;) {
      switch (pattern.peek()) {
        case '-': spec.align = '<'; break;
        case '+': spec.sign = '+'; break;
        case ' ': spec.sign = spec.sign == '+' ? '+' : ' '; break;
        case '#': spec.alternate = true; break;
        case '0':
          if (spec.align != '<') spec.align = '=';
          break;
        default: flags = false;
      }
      if (flags) pattern.take();
    }
    spec.width = pattern.integer(kMaxWidth).value_or(0);
    if (pattern.skip('.')) spec.precision = pattern.integer(kMaxPrecision).value_or(0);
    spec.type = pattern.take();
    if (spec.type == '%') {
      out.append("%");
      continue;
    }
    if (!spec.type || !std::strchr("srcdiuxXoeEfFgG", spec.type))
      fail("unsupported format character or incomplete format");
    if (spec.align == '=' && spec.type != 's' && spec.type != 'r') spec.fill = "0";
    if (spec.align == '=' && (spec.type == 's' || spec.type == 'r')) spec.align = '>';
    if (!value) {
      if (n_used >= args.positional.size()) fail("not enough arguments for format string");
      value = &args.positional[n_used++];
    }
    out.append(percent_value(*value, spec));
  }
  const bool mapping = args.positional.size() == 1 && args.positional[0].is_dict();
  if (!keyed && !mapping && n_used < args.positional.size()) {
    fail("not all arguments converted during string formatting");
  }
  return out;
}

// --- str.format ---

namespace {

Spec parse_spec(const Text& text) {
  Spec spec;
  Cursor cursor(text);
  const size_t n_fill = text.empty() ? 0 : char_bytes(text.view(), 0);
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (n_fill > 0 && n_fill < text.size() && is_align(text.bytes()[n_fill])) {
    spec.fill = text.substr(0, n_fill);
    cursor.move_to(n_fill);
  }
  if (is_align(cursor.peek())) spec.align = cursor.take();
  if (cursor.peek() == '+' || cursor.peek() == '-' || cursor.peek() == ' ') spec.sign = cursor.take();
  spec.alternate = cursor.skip('#');
  if (cursor.peek() == '0') {
    cursor.take();
    if (!spec.align) {
      spec.align = '=';
      spec.fill = "0";
    }
  }
  spec.width = cursor.integer(kMaxWidth).value_or(0);
  spec.grouped = cursor.skip(',');
  if (cursor.skip('.')) {
    const auto precision = cursor.integer(kMaxPrecision);
    if (!precision) fail("Format specifier missing precision");
    spec.precision = *precision;
  }
  spec.type = cursor.take();
  if (!cursor.done()) fail("Invalid format specifier");
  return spec;
}

Text formatted(const Value& value, const Text& spec_text) {
  if (spec_text.empty()) return to_text(value);
  require_defined(value);
  const Spec spec = parse_spec(spec_text);
  if (value.is_string()) {
    if (spec.type && spec.type != 's') fail("Unknown format code '{:c}' for object of type 'str'", spec.type);
    return format_text(value.text(), spec);
  }
  if (!value.is_number()) fail("unsupported format string passed to {}.__format__", type_name(value));
  const char* types = value.is_integral() ? "dxXobneEfFgG%" : "eEfFgG%";
  if (spec.type && !std::strchr(types, spec.type)) {
    fail("Unknown format code '{:c}' for object of type '{}'", spec.type, type_name(value));
  }
  return format_number(value, spec);
}

// "0", "name", "name.attribute[key]", or empty for the next argument.
Value field_value(Interp& in, const std::string& field, const Args& args, size_t& n_automatic) {
  const size_t name_end = std::min(field.find_first_of(".["), field.size());
  const std::string name = field.substr(0, name_end);
  Value value;
  const bool position = std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (position) {
    const size_t at = name.empty() ? n_automatic++ : std::strtoull(name.c_str(), nullptr, 10);
    if (at >= args.positional.size()) fail("Replacement index {} out of range for positional args tuple", at);
    value = args.positional[at];
  } else {
    const auto found =
        std::find_if(args.keyword.begin(), args.keyword.end(), [&](auto& a) { return a.first == name; });
    if (found == args.keyword.end()) fail("there is no '{}' to format", name);
    value = found->second;
  }
  for (size_t at = name_end; at < field.size();) {
    const bool attribute = field[at] == '.';
    const size_t end =
        attribute ? std::min(field.find_first_of(".[", at + 1), field.size()) : field.find(']', at);
    if (end == std::string::npos) fail("Missing ']' in format string");
    const std::string key = field.substr(at + 1, end - at - 1);
    const bool number = !key.empty() && key.size() < 10 &&
                        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (attribute)
      value = in.attribute(value, key);
    else
      value = in.item(value, number ? Value(int64_t{std::atoll(key.c_str())}) : Value(key));
    at = attribute ? end : end + 1;
  }
  return value;
}

}  // namespace

Text brace_format(Interp& in, const Text& text, const Args& args) {
  Text out;
  size_t n_automatic = 0;
  const std::string& bytes = text.bytes();
  for (size_t at = 0; at < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.append(text, at, brace - at);
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.append(text, brace, 1);
      at = brace + 2;
      continue;
    }
    if (bytes[brace] == '}') fail("Single '}}' encountered in format string");
    const size_t end = bytes.find('}', brace);
    if (end == std::string::npos) fail("expected '}}' before end of string");
    const Text field = text.substr(brace + 1, end - brace - 1);
    if (field.bytes().find('{') != std::string::npos) fail("nested fields in a format are not supported");
    const size_t colon = std::min(field.bytes().find(':'), field.size());
    const size_t bang = std::min(field.bytes().find('!'), colon);
    Value value = field_value(in, field.bytes().substr(0, bang), args, n_automatic);
    const std::string conversion = field.bytes().substr(bang, colon - bang);
    if (conversion == "!r")
      value = Value(repr(value));
    else if (conversion == "!s")
      value = Value(to_text(value));
    else if (!conversion.empty())
      fail("Unknown conversion specifier '{}'", conversion);
    out.append(formatted(value, field.substr(std::min(colon + 1, field.size()))));
    at = end + 1;
  }
  return out;
}

}  // namespace tandem::jinja
