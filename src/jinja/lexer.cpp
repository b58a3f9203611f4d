#include "jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"

namespace tandem::jinja {
namespace {

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

bool is_decimal(char c) {
  return c >= '0' && c <= '9';
}

// Converts "\r\n" and "\r" to "\n" and drops one newline at the end.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (at_ < rest_.size()) lex_data();
    add(TokenKind::eof, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(const std::string& message) const { throw SyntaxError(line_, message); }
  void add(TokenKind kind, std::string text, Value value = {}) {
    tokens_.push_back({kind, line_, std::move(text), std::move(value)});
  }
  bool looking_at(std::string_view text) const { return rest_.substr(at_).starts_with(text); }
  // Advances, counting lines.
  void advance(size_t n_bytes) {
    line_ += static_cast<int>(std::count(rest_.begin() + at_, rest_.begin() + (at_ + n_bytes), '\n'));
    if (n_bytes > 0) line_starting_ = rest_[at_ + n_bytes - 1] == '\n';
    at_ += n_bytes;
  }
  size_t space_bytes(size_t at) const {
    size_t n = 0;
    while (at + n < rest_.size() && is_space(char_code(rest_, at + n))) n += char_bytes(rest_, at + n);
    return n;
  }
  size_t without_trailing_space(std::string_view text) const;

  void lex_data();
  void add_data(size_t end, char sign, bool may_lstrip);
  void skip_comment();
  void lex_raw(size_t tag_bytes);
  std::optional<size_t> match_raw_begin() const;
  void lex_tag(TokenKind begin);
  std::optional<size_t> match_tag_end(TokenKind begin) const;
  void lex_token();
  void lex_string();
  void lex_number();
  void lex_operator();

  const std::string source_;
  std::string_view rest_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::string open_;  // closing brackets of the brackets that are open
  std::vector<Token> tokens_;
};

size_t Lexer::without_trailing_space(std::string_view text) const {
  size_t end = 0;
  for (size_t at = 0, n = 0; at < text.size(); at += n) {
    n = char_bytes(text, at);
    if (!is_space(char_code(text, at))) end = at + n;
  }
  return end;
}

// Adds the text from here to `end`, where a tag with `sign` starts.
void Lexer::add_data(size_t end, char sign, bool may_lstrip) {
  std::string_view text = rest_.substr(at_, end - at_);
  if (sign == '-') {
    text = text.substr(0, without_trailing_space(text));
  } else if (sign != '+' && may_lstrip) {
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    const bool starts_line = line_begin > 0 || line_starting_;
    if (starts_line && without_trailing_space(text.substr(line_begin)) == 0)
      text = text.substr(0, line_begin);
  }
  if (!text.empty()) add(TokenKind::data, std::string(text));
  advance(end - at_);
}

void Lexer::lex_data() {
  size_t tag = at_;
  for (;; ++tag) {
    tag = rest_.find('{', tag);
    if (tag == std::string_view::npos || tag + 1 >= rest_.size()) {
      add(TokenKind::data, std::string(rest_.substr(at_)));
      return advance(rest_.size() - at_);
    }
    if (rest_[tag + 1] == '%' || rest_[tag + 1] == '{' || rest_[tag + 1] == '#') break;
  }
  const char kind = rest_[tag + 1];
  const char after = tag + 2 < rest_.size() ? rest_[tag + 2] : '\0';
  const char sign = after == '-' || after == '+' ? after : '\0';
  add_data(tag, sign, kind != '{');
  if (kind == '%') {
    if (const auto n = match_raw_begin()) return lex_raw(*n);
  }
  const size_t n_begin = sign ? 3 : 2;
  if (kind == '#') {
    advance(n_begin);
    skip_comment();
  } else {
    const auto begin = kind == '%' ? TokenKind::block_begin : TokenKind::print_begin;
    add(begin, "");
    advance(n_begin);
    lex_tag(begin);
  }
}

void Lexer::skip_comment() {
  const size_t end = rest_.find("#}", at_);
  if (end == std::string_view::npos) error("Missing end of comment tag");
  const char sign = end > at_ ? rest_[end - 1] : '\0';
  size_t next = end + 2;
  if (sign == '-')
    next += space_bytes(next);
  else if (sign != '+' && next < rest_.size() && rest_[next] == '\n')
    ++next;
  advance(next - at_);
}

// Returns the length of a "{% raw %}" here; nullopt if there is none.
std::optional<size_t> Lexer::match_raw_begin() const {
  size_t at = at_ + 2;
  if (at < rest_.size() && (rest_[at] == '-' || rest_[at] == '+')) ++at;
  at += space_bytes(at);
  if (!rest_.substr(at).starts_with("raw")) return std::nullopt;
  at += 3;
  at += space_bytes(at);
  if (rest_.substr(at).starts_with("%}")) return at + 2 - at_;
  if (!rest_.substr(at).starts_with("-%}")) return std::nullopt;
  at += 3;
  return at + space_bytes(at) - at_;
}

void Lexer::lex_raw(size_t tag_bytes) {
  advance(tag_bytes);
  for (size_t tag = rest_.find("{%", at_); tag != std::string_view::npos; tag = rest_.find("{%", tag + 1)) {
    size_t at = tag + 2;
    const char sign = at < rest_.size() && (rest_[at] == '-' || rest_[at] == '+') ? rest_[at] : '\0';
    if (sign) ++at;
    at += space_bytes(at);
    if (!rest_.substr(at).starts_with("endraw")) continue;
    at += 6;
    at += space_bytes(at);
    const char end_sign = at < rest_.size() && (rest_[at] == '-' || rest_[at] == '+') ? rest_[at] : '\0';
    if (end_sign) ++at;
    if (!rest_.substr(at).starts_with("%}")) continue;
    at += 2;
    if (end_sign == '-')
      at += space_bytes(at);
    else if (!end_sign && at < rest_.size() && rest_[at] == '\n')
      ++at;
    add_data(tag, sign, true);
    return advance(at - at_);
  }
  error("Missing end of raw directive");
}

std::optional<size_t> Lexer::match_tag_end(TokenKind begin) const {
  if (!open_.empty()) return std::nullopt;
  const std::string_view end = begin == TokenKind::block_begin ? "%}" : "}}";
  const bool block = begin == TokenKind::block_begin;
  if (looking_at(end)) {
    const bool trim = block && at_ + 2 < rest_.size() && rest_[at_ + 2] == '\n';
    return trim ? 3 : 2;
  }
  if (at_ + 1 >= rest_.size() || !rest_.substr(at_ + 1).starts_with(end)) return std::nullopt;
  if (rest_[at_] == '-') return 3 + space_bytes(at_ + 3);
  return block && rest_[at_] == '+' ? std::optional<size_t>(3) : std::nullopt;
}

void Lexer::lex_tag(TokenKind begin) {
  const int begin_line = line_;
  while (true) {
    if (const auto n = match_tag_end(begin)) {
      add(begin == TokenKind::block_begin ? TokenKind::block_end : TokenKind::print_end, "");
      return advance(*n);
    }
    if (at_ >= rest_.size()) throw SyntaxError(begin_line, "the tag that starts here is not closed");
    if (const size_t n = space_bytes(at_))
      advance(n);
    else
      lex_token();
  }
}

void Lexer::lex_token() {
  const char c = rest_[at_];
  if (is_decimal(c)) return lex_number();
  if (c == '\'' || c == '"') return lex_string();
  if (!is_name_byte(c)) return lex_operator();
  size_t n = 0;
  while (at_ + n < rest_.size() && is_name_byte(rest_[at_ + n])) ++n;
  add(TokenKind::name, std::string(rest_.substr(at_, n)));
  advance(n);
}

void Lexer::lex_operator() {
  static constexpr std::array<std::string_view, 26> kOperators = {
      "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
  const auto op =
      std::find_if(kOperators.begin(), kOperators.end(), [this](auto o) { return looking_at(o); });
  if (op == kOperators.end())
    error("unexpected char '" + printable(rest_.substr(at_, char_bytes(rest_, at_))) + "'");
  const char c = (*op)[0];
  if (c == '(' || c == '[' || c == '{') {
    open_ += c == '(' ? ')' : c == '[' ? ']' : '}';
  } else if (c == ')' || c == ']' || c == '}') {
    if (open_.empty()) error("unexpected '" + std::string(*op) + "'");
    if (open_.back() != c) error("unexpected '" + std::string(*op) + "', expected '" + open_.back() + "'");
    open_.pop_back();
  }
  add(TokenKind::op, std::string(*op));
  advance(op->size());
}

uint64_t parse_base(std::string_view digits, int base) {
  uint64_t number = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  const bool all = result.ec == std::errc() && result.ptr == digits.data() + digits.size();
  return all && number <= INT64_MAX ? number : UINT64_MAX;
}

// Counts decimal digits; a "_" may stand between two.
size_t digit_bytes(std::string_view text, size_t at) {
  size_t n = 0;
  while (at + n < text.size() &&
         (is_decimal(text[at + n]) ||
          (n > 0 && text[at + n] == '_' && at + n + 1 < text.size() && is_decimal(text[at + n + 1])))) {
    ++n;
  }
  return n;
}

void Lexer::lex_number() {
  const bool attribute = at_ > 0 && rest_[at_ - 1] == '.';  // "x.0.1" contains no float
  size_t n = 0;
  int base = 10;
  if (rest_[at_] == '0' && at_ + 2 < rest_.size()) {
    const char c = static_cast<char>(rest_[at_ + 1] | 0x20);
    base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
  }
  bool real = false;
  if (base != 10) {
    for (n = 2; at_ + n < rest_.size() && is_name_byte(rest_[at_ + n]);) ++n;
  } else {
    n = digit_bytes(rest_, at_);
    if (!attribute && at_ + n < rest_.size() && rest_[at_ + n] == '.') {
      if (const size_t fraction = digit_bytes(rest_, at_ + n + 1)) {
        n += 1 + fraction;
        real = true;
      }
    }
    if (!attribute && at_ + n < rest_.size() && (rest_[at_ + n] | 0x20) == 'e') {
      const size_t sign =
          at_ + n + 1 < rest_.size() && (rest_[at_ + n + 1] == '+' || rest_[at_ + n + 1] == '-');
      if (const size_t exponent = digit_bytes(rest_, at_ + n + 1 + sign)) {
        n += 1 + sign + exponent;
        real = true;
      }
    }
  }
  std::string digits(rest_.substr(at_, n));
  std::erase(digits, '_');
  if (real) {
    double number = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    // Out of range: infinity or zero, as in Python.
    if (result.ec != std::errc())
      number = digits.find("e-") != std::string_view::npos || digits.find("E-") != std::string_view::npos
                   ? 0
                   : HUGE_VAL;
    add(TokenKind::literal, "", Value(number));
  } else {
    const uint64_t number = parse_base(std::string_view(digits).substr(base == 10 ? 0 : 2), base);
    if (number == UINT64_MAX) error("the integer " + printable(digits, 40) + " is malformed or too large");
    add(TokenKind::literal, "", Value(static_cast<int64_t>(number)));
  }
  advance(n);
}

// Decodes the escape at `at`, appends the result and returns the escape's length; 0 if it is malformed.
size_t unescape(std::string_view body, size_t at, std::string& out) {
  if (at + 1 >= body.size()) return out += '\\', 1;
  static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
  const char c = body[at + 1];
  if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) return out += kTo[simple], 2;
  if (c == '\n') return 2;
  if (c >= '0' && c <= '7') {
    size_t n = 1;
    while (n < 3 && at + 1 + n < body.size() && body[at + 1 + n] >= '0' && body[at + 1 + n] <= '7') ++n;
    append_utf8(out, static_cast<uint32_t>(parse_base(body.substr(at + 1, n), 8)));
    return 1 + n;
  }
  const size_t n_hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (n_hex == 0) return out += '\\', 1;
  const std::string_view digits = body.substr(at + 2, n_hex);
  const uint64_t code = digits.size() == n_hex ? parse_base(digits, 16) : UINT64_MAX;
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
  append_utf8(out, static_cast<uint32_t>(code));
  return 2 + n_hex;
}

void Lexer::lex_string() {
  const char quote = rest_[at_];
  size_t end = at_ + 1;
  while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
  if (end >= rest_.size()) error("a string is not closed");
  const std::string_view body = rest_.substr(at_ + 1, end - at_ - 1);
  std::string text;
  for (size_t at = 0; at < body.size();) {
    if (body[at] != '\\') {
      text += body[at++];
      continue;
    }
    const size_t n = unescape(body, at, text);
    if (n == 0) error("malformed escape in a string: " + printable(body.substr(at, 10)));
    at += n;
  }
  add(TokenKind::literal, "", Value(text));
  advance(end + 1 - at_);
}

}  // namespace

std::vector<Token> tokenize_template(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace tandem::jinja
