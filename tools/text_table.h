// A table for people: every column is as wide as its widest cell, two spaces apart.
#pragma once

#include <string>
#include <vector>

namespace tandem::tools {

class TextTable {
 public:
  enum class Side { left, right };
  struct Column {
    std::string name;  // "GPU\nrows": of several lines
    Side side = Side::right;
  };

  explicit TextTable(std::vector<Column> columns);
  // Adds a row; cells left out at its end are empty.
  void add(std::vector<std::string> cells);
  // The lines of the header, then the rows; no line ends in spaces.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // those of the header first
};

}  // namespace tandem::tools
