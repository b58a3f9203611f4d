#include "tools/markdown/glyphs.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace tandem::tools {
namespace {

bool is_space(const Glyph& g) {
  return g.text == " ";
}
bool is_break(const Glyph& g) {
  return g.text == "\n";
}

// The symbol for a control character: U+2400 and up for those of ASCII.
std::string symbol_of(int code) {
  if (code > 0x7f) return std::string(kReplacementCharacter);
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(code == 0x7f ? 0x2421 : 0x2400 + code, bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(n)};
}

void append_character(Row& row, std::string_view bytes, Style style) {
  utf8proc_int32_t code = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()),
                   static_cast<utf8proc_ssize_t>(bytes.size()), &code);
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) {
    row.push_back({symbol_of(code), 1, style});
    return;
  }
  const int width = columns_of(code);
  const bool is_mark = width == 0 || utf8proc_category(code) == UTF8PROC_CATEGORY_MC;
  if (!is_mark) {
    row.push_back({std::string(bytes), width, style});
  } else if (!row.empty() && !is_break(row.back())) {
    row.back().text += bytes;
    row.back().width += width;
  } else {
    row.push_back({" " + std::string(bytes), 1 + width, style});  // a mark needs something to stand on
  }
}

}  // namespace

// As wcwidth() says, which terminals follow: vowel signs that stand beside their consonant, as in Hindi, have a column.
int columns_of(int32_t code) {
  return utf8proc_category(code) == UTF8PROC_CATEGORY_MC ? 1 : std::max(utf8proc_charwidth(code), 0);
}

void append_glyphs(Row& row, std::string_view text, Style style) {
  while (!text.empty()) {
    const Utf8Char c = next_utf8(text);
    const std::string_view bytes = text.substr(0, c.n_bytes);
    text.remove_prefix(c.n_bytes);
    if (c.status != Utf8Status::valid) {
      row.push_back({std::string(kReplacementCharacter), 1, style});
    } else if (bytes == "\n") {
      row.push_back({"\n", 0, style});
    } else if (bytes == "\t") {
      row.push_back({" ", 1, style});
    } else if (bytes.size() == 1 && bytes[0] >= ' ' && bytes[0] != 0x7f) {
      row.push_back({std::string(bytes), 1, style});
    } else {
      append_character(row, bytes, style);
    }
  }
}

Row glyphs_of(std::string_view text, Style style) {
  Row row;
  append_glyphs(row, text, style);
  return row;
}

int width_of(const Row& row) {
  int width = 0;
  for (const Glyph& g : row) width += g.width;
  return width;
}

void trim_end(Row& row) {
  while (!row.empty() && is_space(row.back())) row.pop_back();
}

std::string style_sequence(Style style) {
  std::string out = "\033[0";
  if (style.bold) out += ";1";
  if (style.dim) out += ";2";
  if (style.italic) out += ";3";
  if (style.underline) out += ";4";
  if (style.strike) out += ";9";
  if (style.color != Color::none) out += ";" + std::to_string(static_cast<int>(style.color));
  return out + "m";
}

std::string as_bytes(const Row& row, size_t begin) {
  std::string out;
  Style now;
  for (size_t i = begin; i < row.size(); ++i) {
    if (row[i].style != now) out += style_sequence(now = row[i].style);
    out += row[i].text;
  }
  if (now != Style{}) out += style_sequence({});
  return out;
}

std::vector<Row> wrapped(const Row& text, int width) {
  std::vector<Row> rows;
  size_t begin = 0, can_break = 0;  // of the row; where the next may begin, if that is behind `begin`
  int used = 0;
  bool continued = false;  // the row begins where the one before was full: it has no spaces there
  const auto end_row = [&](size_t end, size_t next, bool full) {
    rows.emplace_back(text.begin() + static_cast<std::ptrdiff_t>(begin),
                      text.begin() + static_cast<std::ptrdiff_t>(end));
    trim_end(rows.back());
    begin = next;
    used = 0;
    continued = full;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const Glyph& g = text[i];
    const bool space = is_space(g);
    if (is_break(g)) {
      end_row(i, i + 1, false);
      continue;
    }
    if (space && continued && i == begin) {
      ++begin;
      continue;
    }
    if (used + g.width > width && i > begin) {
      if (space) {  // the end of the row replaces it
        end_row(i, i + 1, true);
        continue;
      }
      if (g.width > 1) can_break = i;
      const size_t cut = can_break > begin ? can_break : i;
      end_row(cut, cut, true);
      for (size_t k = begin; k < i; ++k) used += text[k].width;
    }
    used += g.width;
    if (space || g.width > 1) can_break = i + 1;
  }
  end_row(text.size(), text.size(), false);
  return rows;
}

std::vector<Row> cut_to_width(const Row& text, int width) {
  std::vector<Row> rows(1);
  int used = 0;
  for (const Glyph& g : text) {
    if (is_break(g) || used + g.width > width) {
      rows.emplace_back();
      used = 0;
      if (is_break(g)) continue;
    }
    rows.back().push_back(g);
    used += g.width;
  }
  return rows;
}

}  // namespace tandem::tools
