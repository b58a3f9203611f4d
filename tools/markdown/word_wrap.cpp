#include "tools/markdown/word_wrap.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "tools/markdown/glyphs.h"

namespace tandem::tools {
namespace {

size_t width_of(std::string_view character) {
  utf8proc_int32_t code = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()), static_cast<utf8proc_ssize_t>(character.size()), &code);
  return static_cast<size_t>(columns_of(code));
}

}  // namespace

void WordWrap::resize(size_t columns) {
  if (columns < columns_ && column_ > columns) {
    lost_ = true;
    moves_ = false;
  }
  columns_ = columns;
}

std::string WordWrap::add(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const std::string_view character = text.substr(0, next_utf8(text).n_bytes);
    text.remove_prefix(character.size());
    if (character == "\n" || character == "\r") {
      bytes += character;
      column_ = 0;
      in_word_ = lost_ = broken_ = false;
    } else if (character == "\t") {
      bytes += character;
      column_ = std::max(column_, std::min(column_ / 8 * 8 + 8, columns_ - 1));  // at the last stop a tab does nothing
      in_word_ = false;
    } else {
      add_character(character, width_of(character), bytes);
    }
  }
  return bytes;
}

void WordWrap::add_character(std::string_view character, size_t width, std::string& bytes) {
  if (width == 0) {  // a mark on the character before it
    bytes += character;
    word_ += character;
    return;
  }
  const bool is_word = width == 1 && character != " ";
  if (break_row(width, is_word, character == " ", bytes)) return;
  if (is_word && !in_word_) {
    word_.clear();
    word_width_ = 0;
    moves_ = column_ > 0;
  }
  in_word_ = is_word;
  bytes += character;
  column_ += width;
  if (!is_word) return;
  word_ += character;
  word_width_ += width;
}

// Begins a row where the character wants one, by a line break where that is at a space. Returns whether this was the space.
bool WordWrap::break_row(size_t width, bool is_word, bool is_space, std::string& bytes) {
  if (is_space && broken_ && column_ == 0) return true;  // more of the space that became a line break
  if (!(lost_ && is_space) && column_ + width <= columns_) return false;
  if (is_space || (is_word && !in_word_)) {
    bytes += '\n';
    column_ = 0;
    lost_ = in_word_ = false;
    broken_ = true;
    return is_space;
  }
  if (is_word && moves_) {
    const size_t start = column_ - word_width_;
    bytes += format("\r\x1b[{}C\x1b[K\n{}", start, word_);
    column_ = word_width_;
    moves_ = false;
    broken_ = true;
    return false;
  }
  column_ = 0;  // the terminal begins a row
  broken_ = false;
  return false;
}

}  // namespace tandem::tools
