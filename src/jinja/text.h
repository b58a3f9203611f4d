// Text: a string of the template language that tracks which of its bytes came from the conversation.
//
// Every operation that cuts, joins or changes text preserves the marks, so that the rendered prompt shows
// byte for byte what a user may have written; a tokenizer must find no control tokens there. Positions are
// bytes; the functions below convert to characters, which the template language counts. Each invalid UTF-8
// byte counts as one character. A plain value type. Throws Failure when it would grow past kMaxTextBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tandem::jinja {

// A runtime error of a template; the caller adds name and line and throws an Error.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... T>
[[noreturn]] void fail(fmt::format_string<T...> text, T&&... arguments) {
  throw Failure(format_text(text, fmt::make_format_args(arguments...)));
}

inline constexpr size_t kMaxTextBytes = size_t{64} << 20;

struct ByteSpan {
  size_t begin, end;
  bool operator==(const ByteSpan&) const = default;
};

enum class Origin { program, user };

class Text {
 public:
  Text() = default;
  explicit Text(std::string_view bytes, Origin origin = Origin::program) { append(bytes, origin); }
  Text(const char* bytes) : Text(std::string_view(bytes)) {}

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<ByteSpan>& user_spans() const { return user_; }  // ascending, disjoint
  Origin origin_at(size_t position) const;

  void append(std::string_view bytes, Origin origin = Origin::program);
  void append(const char* bytes) { append(std::string_view(bytes)); }
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, size_t from, size_t n_bytes);
  Text substr(size_t from, size_t n_bytes = std::string::npos) const;
  void clear();

 private:
  void mark(size_t begin, size_t end);

  std::string bytes_;
  std::vector<ByteSpan> user_;
};

// --- Characters ---

size_t char_bytes(std::string_view text, size_t at);   // length of the character at byte `at`
uint32_t char_code(std::string_view text, size_t at);  // its code point; the byte itself if not valid UTF-8
size_t count_chars(std::string_view text);
size_t char_offset(std::string_view text, size_t n_chars);  // bytes of the first n_chars characters
void append_utf8(std::string& out, uint32_t code);
// The first or last place of `wanted` at or after `from`, in time linear in both texts (std::string's search is
// not); npos if there is none.
size_t find_text(std::string_view text, std::string_view wanted, size_t from = 0);
size_t find_last_text(std::string_view text, std::string_view wanted);

// Character classes as in Python's str methods.
bool is_space(uint32_t code);
bool is_printable(uint32_t code);
bool is_alpha(uint32_t code);
bool is_digit(uint32_t code);
bool is_upper(uint32_t code);
bool is_lower(uint32_t code);
std::string to_upper(uint32_t code);
std::string to_lower(uint32_t code);
std::string to_title(uint32_t code);

Text upper(const Text& text);
Text lower(const Text& text);
// Title-cases the first character, lower-cases the others.
Text capitalize(const Text& text);

}  // namespace tandem::jinja
