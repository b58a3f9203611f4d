// WordWrap: text on a terminal as it comes, without words that are broken at the window's edge.
//
// A word that passes the last column moves to the next row, and the space before it becomes a line break, behind which the cursor is
// where it is thought to be, whatever happened in the row: a window that became narrower, a key that was typed, a character whose width
// the terminal sees in another way. Words that are wider than the window are broken by the terminal; wide characters are words.
//
// Nothing is written here: add() returns the bytes to send. One thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::tools {

class WordWrap {
 public:
  // The cursor is at the start of a row.
  explicit WordWrap(size_t columns) : columns_(columns) {}

  // Complete characters, and none that controls a terminal but line breaks and tabs: harmless() text.
  std::string add(std::string_view text);
  // What was added so far stays where it is, for instance because what follows has another color.
  void keep() { moves_ = false; }
  // The window has another width. If it became too narrow for the row, the next word begins a new one.
  void resize(size_t columns);

 private:
  void add_character(std::string_view character, size_t width, std::string& bytes);
  bool break_row(size_t width, bool is_word, bool is_space, std::string& bytes);

  size_t columns_;
  size_t column_ = 0;      // of the cursor; columns_ where the terminal begins a row before the next character
  bool lost_ = false;      // the terminal has broken the row anew
  bool broken_ = false;    // the row begins where a space was
  bool in_word_ = false;   // the last character is one of a word
  bool moves_ = false;     // which can move
  std::string word_;
  size_t word_width_ = 0;  // columns
};

}  // namespace tandem::tools
