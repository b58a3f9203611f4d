#include "tools/markdown/table.h"

#include <algorithm>
#include <numeric>

namespace tandem::tools {
namespace {

constexpr int kSeparatorWidth = 3;  // " │ "
constexpr int kMinColumn = 4;
int natural_width(const Row& cell) {
  int widest = 0, width = 0;
  for (const Glyph& g : cell) {
    width = g.text == "\n" ? 0 : width + g.width;
    widest = std::max(widest, width);
  }
  return widest;
}

// Takes width from the widest columns until the table fits; empty if it cannot.
std::vector<int> column_widths(const Table& table, int width) {
  const size_t n = table.columns.size();
  std::vector<int> widths(n, 1);
  for (const auto& row : table.rows) {
    for (size_t c = 0; c < std::min(n, row.size()); ++c)
      widths[c] = std::max(widths[c], natural_width(row[c]));
  }
  int available = width - kSeparatorWidth * (static_cast<int>(n) - 1);
  if (std::accumulate(widths.begin(), widths.end(), 0) <= available) return widths;
  if (available < kMinColumn * static_cast<int>(n)) return {};
  // The narrow columns keep their width; the others share what is left.
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return widths[a] < widths[b]; });
  int n_left = static_cast<int>(n);
  for (const size_t c : order) {
    widths[c] = std::min(widths[c], available / n_left);
    available -= widths[c];
    --n_left;
  }
  return widths;
}

void append_spaces(Row& row, int n) {
  for (int i = 0; i < n; ++i) row.push_back({" ", 1, {}});
}

void append_aligned(Row& row, const Row& text, int width, Align align) {
  const int free = std::max(width - width_of(text), 0);
  const int before = align == Align::left ? 0 : align == Align::right ? free : free / 2;
  append_spaces(row, before);
  row.insert(row.end(), text.begin(), text.end());
  append_spaces(row, free - before);
}

std::vector<Row> side_by_side(const Table& table, const std::vector<int>& widths) {
  std::vector<Row> out;
  for (size_t r = 0; r < table.rows.size(); ++r) {
    std::vector<std::vector<Row>> cells;
    size_t n_lines = 1;
    for (size_t c = 0; c < widths.size(); ++c) {
      cells.push_back(wrapped(c < table.rows[r].size() ? table.rows[r][c] : Row(), widths[c]));
      n_lines = std::max(n_lines, cells.back().size());
    }
    for (size_t line = 0; line < n_lines; ++line) {
      Row row;
      for (size_t c = 0; c < widths.size(); ++c) {
        if (c > 0) append_glyphs(row, " \xe2\x94\x82 ", kDim);
        append_aligned(row, line < cells[c].size() ? cells[c][line] : Row(), widths[c], table.columns[c]);
      }
      trim_end(row);
      out.push_back(std::move(row));
    }
    if (r > 0) continue;
    Row rule;
    for (size_t c = 0; c < widths.size(); ++c) {
      if (c > 0) append_glyphs(rule, "\xe2\x94\x80\xe2\x94\xbc\xe2\x94\x80", kDim);
      for (int i = 0; i < widths[c]; ++i) append_glyphs(rule, "\xe2\x94\x80", kDim);
    }
    out.push_back(std::move(rule));
  }
  return out;
}

std::vector<Row> as_list(const Table& table, int width) {
  std::vector<Row> out;
  const std::vector<Row> header = table.rows.empty() ? std::vector<Row>() : table.rows[0];
  for (size_t r = 1; r < table.rows.size(); ++r) {
    if (r > 1) out.emplace_back();
    for (size_t c = 0; c < table.rows[r].size(); ++c) {
      Row line = c < header.size() ? header[c] : Row();
      append_glyphs(line, ": ");
      line.insert(line.end(), table.rows[r][c].begin(), table.rows[r][c].end());
      for (Row& row : wrapped(line, width)) out.push_back(std::move(row));
    }
  }
  if (table.rows.size() > 1) return out;
  Row names;
  for (const Row& name : header) {
    if (!names.empty()) append_glyphs(names, ", ");
    names.insert(names.end(), name.begin(), name.end());
  }
  return wrapped(names, width);
}

}  // namespace

std::vector<Row> table_rows(const Table& table, int width) {
  const std::vector<int> widths = column_widths(table, width);
  return widths.empty() ? as_list(table, width) : side_by_side(table, widths);
}

}  // namespace tandem::tools
