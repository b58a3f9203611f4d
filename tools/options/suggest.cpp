#include "tools/options/suggest.h"
#include "base/text.h"

#include <algorithm>

namespace tandem::tools {
namespace {

constexpr size_t kMaxWord = 64;  // nobody mistypes a longer one

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the usual table: rows[0] for a's first i letters, rows[1] and rows[2] for one and two less.
  std::vector<size_t> rows[3];
  for (auto& row : rows) row.assign(b.size() + 1, 0);
  for (size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(rows[2], rows[1]);
    std::swap(rows[1], rows[0]);
    rows[0][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = rows[1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[0][j] = std::min({change, rows[1][j] + 1, rows[0][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) rows[0][j] = std::min(rows[0][j], rows[2][j - 2] + 1);
    }
  }
  return rows[0][b.size()];
}

std::string closest(std::string_view word, const std::vector<std::string>& known) {
  if (word.empty() || word.size() > kMaxWord) return "";
  const std::string typed = lower_case(word);
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : known) {
    const std::string name = lower_case(candidate);
    size_t distance = edit_distance(typed, name);
    // A word that was left off early is as near as one wrong letter.
    if (typed.size() >= 2 && name.compare(0, typed.size(), typed) == 0)
      distance = std::min<size_t>(distance, 1);
    const size_t allowed = std::min<size_t>(3, (std::max(typed.size(), name.size()) + 1) / 3);
    if (distance > allowed || distance >= std::max(typed.size(), name.size())) continue;
    distance = 2 * distance + (name[0] != typed[0]);  // the first letter is seldom the wrong one
    if (distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known,
                         std::string_view before) {
  const std::string meant = closest(word, known);
  return meant.empty() ? "" : "; did you mean '" + std::string(before) + meant + "'?";
}

}  // namespace tandem::tools
