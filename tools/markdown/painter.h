// Painter: keeps the rows of a block that still changes on the screen as they should be, and sends a terminal
// as little as possible for that.
//
// It only touches rows that it has drawn itself since the last keep(), and of these none that has scrolled
// away. The cursor stays at the end of the last row. It never writes into the last column, so that the
// terminal has no reason to break a line. One thread; nothing is thrown.
#pragma once

#include <string>
#include <vector>

#include "tools/markdown/glyphs.h"

namespace tandem::tools {

class Painter {
 public:
  explicit Painter(int screen_rows) : screen_rows_(screen_rows) {}

  // Returns the bytes that make the block look like `rows`, each narrower than the window.
  std::string draw(const std::vector<Row>& rows);
  // What is drawn stays: the next block begins on a new row.
  void keep();
  // Whether something was drawn since the last keep().
  bool drawn() const { return !shown_.empty(); }
  // Returns the bytes that put the cursor at the start of a row below all that was drawn.
  std::string finish();
  void set_screen_rows(int n) { screen_rows_ = n; }

 private:
  std::string go_to(size_t row, size_t n_glyphs);

  int screen_rows_;
  std::vector<Row> shown_;
  size_t n_gone_ = 0;     // rows of the block that may have scrolled away
  bool new_row_ = false;  // the cursor stands at the end of a row that stays
};

}  // namespace tandem::tools
