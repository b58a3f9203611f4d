// The is...() methods of str.
#include "jinja/builtins.h"

namespace tandem::jinja {
namespace {

const Text& tested(const Call& call) {
  return call[0].text();
}

// Whether the text is not empty and the test holds for every character.
template <bool (*Test)(uint32_t)>
Value all_chars(Call& call) {
  bool all = !tested(call).empty();
  for (size_t at = 0; all && at < tested(call).size(); at += char_bytes(tested(call).view(), at)) {
    all = Test(char_code(tested(call).view(), at));
  }
  return Value(all);
}

template <bool (*Wanted)(uint32_t), bool (*Other)(uint32_t)>
Value all_cased(Call& call) {
  bool any = false;
  for (size_t at = 0; at < tested(call).size(); at += char_bytes(tested(call).view(), at)) {
    const uint32_t code = char_code(tested(call).view(), at);
    if (Other(code)) return Value(false);
    any |= Wanted(code);
  }
  return Value(any);
}

bool is_alnum(uint32_t code) {
  return is_alpha(code) || is_digit(code);
}

bool is_ascii(uint32_t code) {
  return code < 0x80;
}

// Whether words start in upper case and continue in lower case, with at least one cased character.
Value is_title(Call& call) {
  bool any = false, within = false;
  for (size_t at = 0; at < tested(call).size(); at += char_bytes(tested(call).view(), at)) {
    const uint32_t code = char_code(tested(call).view(), at);
    if (is_upper(code) ? within : is_lower(code) && !within) return Value(false);
    within = is_upper(code) || is_lower(code);
    any |= within;
  }
  return Value(any);
}

// Like all_chars, but true for an empty text.
template <bool (*Test)(uint32_t)>
Value none_other(Call& call) {
  return tested(call).empty() ? Value(true) : all_chars<Test>(call);
}

constexpr Builtin kStringTests[] = {
    {"isdigit", "self", all_chars<is_digit>},
    {"isdecimal", "self", all_chars<is_digit>},
    {"isnumeric", "self", all_chars<is_digit>},
    {"isalpha", "self", all_chars<is_alpha>},
    {"isalnum", "self", all_chars<is_alnum>},
    {"isspace", "self", all_chars<is_space>},
    {"isascii", "self", none_other<is_ascii>},
    {"isprintable", "self", none_other<is_printable>},
    {"istitle", "self", is_title},
    {"isupper", "self", all_cased<is_upper, is_lower>},
    {"islower", "self", all_cased<is_lower, is_upper>},
};

}  // namespace

Builtins string_tests() {
  return kStringTests;
}

}  // namespace tandem::jinja
