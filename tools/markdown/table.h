// The layout of a table in a given width.
#pragma once

#include <vector>

#include "tools/markdown/glyphs.h"

namespace tandem::tools {

enum class Align { left, center, right };

struct Table {
  std::vector<Align> columns;
  std::vector<std::vector<Row>> rows;  // cells; the first row is the header
};

// Columns side by side, with the text of cells wrapped where they do not fit as they are. In a window too
// narrow for that, each row becomes a list of "header: cell".
std::vector<Row> table_rows(const Table& table, int width);

}  // namespace tandem::tools
