// Markdown as rows for a terminal. Parses with md4c (CommonMark with tables, strikethrough and task lists).
//
// A single line break in a paragraph stays one: models break lines where they mean it. HTML is shown as it
// is, except <br>. Pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "tools/markdown/glyphs.h"

namespace tandem::tools {

struct DocumentStyle {
  int width = 80;
  bool color = true;  // false: only bold and the like; inline code keeps its backticks
};

// Blocks are separated by an empty row.
std::vector<Row> markdown_rows(std::string_view text, const DocumentStyle& style);

// The parts of a code block: its head with the language, one line of code, its foot.
std::vector<Row> code_head(std::string_view language, const DocumentStyle& style);
std::vector<Row> code_line(std::string_view line, const DocumentStyle& style);
std::vector<Row> code_foot(const DocumentStyle& style);

}  // namespace tandem::tools
