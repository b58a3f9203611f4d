#include "tools/closest_name.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "tools/options/suggest.h"

namespace tandem::tools {
namespace {

std::string letters_of(std::string_view name) {
  std::string letters;
  for (const char c : name.substr(0, 100)) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u)) letters += static_cast<char>(std::tolower(u));
  }
  return letters;
}

std::string joined(std::span<const std::string_view> names, const char* last) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? last : ", ") + std::string(names[i]);
  return text;
}

}  // namespace

bool is_same_name(std::string_view a, std::string_view b) {
  return letters_of(a) == letters_of(b);
}

std::vector<std::string_view> closest_names(std::string_view name, std::span<const std::string_view> known,
                                            size_t limit) {
  const std::string wanted = letters_of(name);
  if (wanted.empty()) return {};
  std::vector<std::pair<size_t, std::string_view>> near;
  for (const std::string_view candidate : known) {
    const std::string letters = letters_of(candidate);
    const size_t distance = edit_distance(wanted, letters);
    const bool contains =
        wanted.size() > 2 && letters.size() > 2 &&
        (letters.find(wanted) != std::string::npos || wanted.find(letters) != std::string::npos);
    if (distance <= std::max<size_t>(1, wanted.size() / 4)) {
      near.emplace_back(distance, candidate);
    } else if (contains) {
      near.emplace_back(100 + distance, candidate);
    }
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string_view> names;
  for (const auto& [distance, candidate] : near) {
    if (names.size() < limit) names.push_back(candidate);
  }
  return names;
}

void throw_unknown_name(const char* what, std::string_view name, std::span<const std::string_view> known,
                        const std::string& more) {
  const std::vector<std::string_view> near = closest_names(name, known);
  const std::string help =
      near.empty() ? "needed one of " + joined(known, ", ") : "did you mean " + joined(near, " or ") + "?";
  throw_error(ErrorCode::usage, "{}: found '{}', {}{}", what, printable(name), help,
              more.empty() ? "" : "; " + more);
}

}  // namespace tandem::tools
