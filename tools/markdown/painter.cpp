#include "tools/markdown/painter.h"

#include <algorithm>
#include <utility>

namespace tandem::tools {
namespace {

// The glyphs that two rows begin with alike.
size_t common_glyphs(const Row& a, const Row& b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first - a.begin());
}

// Terminals disagree about the width of some characters. Up to here the column is certain.
size_t certain_glyphs(const Row& row, size_t n) {
  size_t i = 0;
  while (i < n && row[i].text.size() == 1) ++i;
  return i;
}

}  // namespace

// Moves from the end of the last row to a glyph of a row above or of this one.
std::string Painter::go_to(size_t row, size_t n_glyphs) {
  std::string out;
  const size_t up = shown_.size() - 1 - row;
  if (up > 0) out += "\033[" + std::to_string(up) + "A";
  out += "\r";
  int column = 0;
  for (size_t i = 0; i < n_glyphs; ++i) column += shown_[row][i].width;
  if (column > 0) out += "\033[" + std::to_string(column) + "C";
  return out;
}

std::string Painter::draw(const std::vector<Row>& rows) {
  std::string out;
  if (shown_.empty()) {
    if (rows.empty()) return out;
    if (new_row_) out += "\r\n";
    new_row_ = false;
    shown_.emplace_back();
  }
  std::vector<Row> wanted = rows;
  if (wanted.size() <= n_gone_) wanted.resize(n_gone_ + 1);
  if (wanted.empty()) wanted.emplace_back();
  size_t row = n_gone_;
  while (row < wanted.size() && row < shown_.size() && wanted[row] == shown_[row]) ++row;
  const bool same = row == wanted.size() && row == shown_.size();
  if (!same && row == wanted.size()) {  // only fewer rows
    out += go_to(row - 1, 0) + "\033[J" + as_bytes(wanted[row - 1]);
  } else if (!same) {
    size_t from = 0;
    if (row < shown_.size()) {
      from = common_glyphs(shown_[row], wanted[row]);
      const bool appended = row + 1 == shown_.size() && from == shown_[row].size();
      if (!appended) {
        from = certain_glyphs(wanted[row], from);
        out += go_to(row, from);
        if (shown_[row].size() > from) out += "\033[K";
      }
    } else {
      out += "\r\n";
    }
    out += as_bytes(wanted[row], from);
    for (size_t r = row + 1; r < wanted.size(); ++r) {
      out += "\r\n";
      if (r < shown_.size()) out += "\033[K";
      out += as_bytes(wanted[r]);
    }
    if (shown_.size() > wanted.size()) out += "\033[J";
  }
  shown_ = std::move(wanted);
  if (static_cast<int>(shown_.size()) > screen_rows_)
    n_gone_ = std::max(n_gone_, shown_.size() - static_cast<size_t>(screen_rows_));
  return out;
}

void Painter::keep() {
  new_row_ = new_row_ || !shown_.empty();
  shown_.clear();
  n_gone_ = 0;
}

std::string Painter::finish() {
  keep();
  return std::exchange(new_row_, false) ? "\r\n" : "";
}

}  // namespace tandem::tools
