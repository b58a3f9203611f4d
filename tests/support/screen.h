// The screen of a terminal: takes the bytes that a program writes and answers what a person sees (libvterm).
//
// Rows and columns count from 0. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::test {

struct Cell {
  std::string text;  // UTF-8 with combining marks; "" where nothing was written, and behind a wide character
  int width = 1;     // 2 for a wide character
  bool bold = false, dim = false, italic = false, underline = false, reverse = false, strike = false;
  int color = -1;       // palette index of the foreground, -1: the terminal's own
  int background = -1;  // the same of the background
  // No attribute and no color.
  bool plain() const;
};

class Screen {
 public:
  explicit Screen(int rows = 24, int columns = 80);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void feed(std::string_view bytes);
  void resize(int rows, int columns);  // does not reflow lines, like xterm

  int rows() const;
  int columns() const;
  std::string row(int row) const;  // without the blanks at its end
  // What scrolled away, then the screen, without the empty rows at its end.
  std::vector<std::string> lines() const;
  std::string text() const;                   // the same, each line followed by "\n"
  size_t n_scrolled() const;                  // lines that scrolled away
  int count(std::string_view what) const;     // how often it is in text()
  int row_with(std::string_view what) const;  // last row of the screen that contains it, -1 for none

  int cursor_row() const;
  int cursor_column() const;
  Cell cell(int row, int column) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::test
