// WordWrap: text on a terminal as it comes, without words that are broken at the window's edge.
//
// A word that reaches the last column moves to the next row: spaces take its place, behind which the terminal itself begins a row. So
// what is copied from the window has no line breaks but those of the text. Words that are wider than the window are broken; wide
// characters are words of their own.
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
  // The window has another width.
  void resize(size_t columns) { columns_ = columns; }

 private:
  void add_character(std::string_view character, size_t width, std::string& bytes);

  size_t columns_;
  size_t column_ = 0;      // of the cursor; columns_ where the terminal begins a row before the next character
  bool in_word_ = false;   // the last character is one of a word
  bool moves_ = false;     // which can move
  std::string word_;
  size_t word_width_ = 0;  // columns
};

}  // namespace tandem::tools
