#include "tools/text_table.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::tools {
namespace {

// On a terminal: the bytes that continue a UTF-8 character take no column.
size_t width_of_cell(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

}  // namespace

// Names stand on the last line of the header.
TextTable::TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {
  size_t n_lines = 0;
  for (const Column& column : columns_) n_lines = std::max(n_lines, lines_of(column.name).size());
  rows_.resize(n_lines, std::vector<std::string>(columns_.size()));
  for (size_t c = 0; c < columns_.size(); ++c) {
    const std::vector<std::string> lines = lines_of(columns_[c].name);
    for (size_t i = 0; i < lines.size(); ++i) rows_[n_lines - lines.size() + i][c] = lines[i];
  }
}

void TextTable::add(std::vector<std::string> cells) {
  TANDEM_CHECK(cells.size() <= columns_.size());
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::text() const {
  std::vector<size_t> widths(columns_.size());
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of_cell(row[c]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - width_of_cell(row[c]), ' ');
      line += (c > 0 ? "  " : "") + (columns_[c].side == Side::left ? row[c] + space : space + row[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace tandem::tools
