// Small things about text.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

inline constexpr std::string_view kWhiteSpace = " \t\r\n";

// Without the white space at its end, or at both.
inline std::string_view trimmed_end(std::string_view text) {
  const size_t last = text.find_last_not_of(kWhiteSpace);
  return text.substr(0, last == text.npos ? 0 : last + 1);
}
inline std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
  return trimmed_end(text);
}

// With a to z for A to Z.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// "a, b, c" with the separator ", ".
inline std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += separator;
    text += words[i];
  }
  return text;
}

// Whether `name` is one of the words of `names`, between which are single spaces.
inline bool lists_name(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

}  // namespace tandem
