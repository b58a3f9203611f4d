// Text as a terminal shows it: glyphs with a width and a style, and rows of them.
//
// A glyph is a character with the combining marks behind it. Its width is what terminals take: the sum over
// its code points, 2 for a wide one. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

enum class Color : uint8_t {
  none = 0,
  red = 31,
  green = 32,
  yellow = 33,
  blue = 34,
  magenta = 35,
  cyan = 36
};

struct Style {
  bool bold = false, dim = false, italic = false, underline = false, strike = false;
  Color color = Color::none;
  bool operator==(const Style&) const = default;
};
inline constexpr Style kDim{.dim = true};

struct Glyph {
  std::string text;  // UTF-8; "\n" is a line break, of width 0
  int width = 1;
  Style style;
  bool operator==(const Glyph&) const = default;
};

using Row = std::vector<Glyph>;

// The columns that terminals take for a code point: 0 for a mark that is drawn over the character before it.
int columns_of(int32_t code);

// Appends the glyphs of a text. Control characters become visible symbols, so that a text cannot control the
// terminal; "\n" stays, a tab becomes a space; what is not UTF-8 becomes U+FFFD.
void append_glyphs(Row& row, std::string_view text, Style style = {});
Row glyphs_of(std::string_view text, Style style = {});

int width_of(const Row& row);
void trim_end(Row& row);  // spaces
// The sequence that sets this style on a terminal, after a reset.
std::string style_sequence(Style style);
// The glyphs from `begin` on with their styles; ends without any.
std::string as_bytes(const Row& row, size_t begin = 0);

// Rows of at most `width` columns, broken at spaces and beside wide characters; a word that is longer than a
// row is cut. Always at least one row.
std::vector<Row> wrapped(const Row& text, int width);
// The same, cut at the width alone, with every space kept.
std::vector<Row> cut_to_width(const Row& text, int width);

}  // namespace tandem::tools
