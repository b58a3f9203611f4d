// Svg: a picture as SVG 1.1 text. Colours are classes of one style sheet with a light and a dark variant, so that a
// picture is readable on either page.
//
// Coordinates are pixels from the top left. Single-threaded; nothing is thrown.
#pragma once

#include <string>
#include <string_view>

namespace tandem::tools {

enum class Anchor { start, middle, end };

class Svg {
 public:
  static constexpr int kColours = 8;  // of series: 0 to kColours - 1, then again from 0

  // `title` is what screen readers read and browsers show.
  Svg(double width, double height, std::string_view title);

  // `tip` is shown while the pointer is on the shape; empty: nothing.
  void bar(double x, double y, double width, double height, int colour, std::string_view tip = {});
  // The part of a bar that is not used: an outline.
  void outline(double x, double y, double width, double height, std::string_view tip = {});
  void dot(double x, double y, int colour, std::string_view tip = {});
  // Connects points: "x,y x,y".
  void curve(std::string_view points, int colour);
  // An error bar from y0 to y1.
  void error_bar(double x, double y0, double y1, int colour);
  enum class Line { axis, grid, limit };
  void line(double x0, double y0, double x1, double y1, Line kind);
  enum class Text { title, note, label };
  void text(double x, double y, Anchor anchor, Text kind, std::string_view text);
  // A label that reads upwards.
  void vertical_text(double x, double y, std::string_view text);

  // Returns the picture; the object is done.
  std::string finish();

 private:
  void close(std::string_view element, std::string_view tip);
  std::string out_;
};

// Replaces what has a meaning in XML, and what XML cannot contain at all (control characters, invalid UTF-8), by
// entities and U+FFFD.
std::string xml_text(std::string_view text);

// The width of a label in pixels, a little generous, because the font is the reader's.
double label_width(std::string_view text);

}  // namespace tandem::tools
