#include "tools/word_wrap.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace tandem::tools {
namespace {

size_t width_of(std::string_view character) {
  utf8proc_int32_t code = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()), static_cast<utf8proc_ssize_t>(character.size()), &code);
  return static_cast<size_t>(std::max(utf8proc_charwidth(code), 0));
}

}  // namespace

std::string WordWrap::add(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const std::string_view character = text.substr(0, next_utf8(text).n_bytes);
    text.remove_prefix(character.size());
    if (character == "\n" || character == "\r") {
      bytes += character;
      column_ = 0;
      in_word_ = false;
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
  if (column_ + width > columns_) column_ = 0, moves_ = false;  // the terminal begins a row
  const bool is_word = width == 1 && character != " ";
  if (is_word && !in_word_) {
    word_.clear();
    word_width_ = 0;
    moves_ = column_ > 0;
  }
  in_word_ = is_word;
  // The last column is for the space behind a word.
  if (is_word && moves_ && column_ + width >= columns_) {
    if (word_width_ > 0) bytes += format("\x1b[{}D", word_width_);
    bytes += std::string(columns_ - column_ + word_width_, ' ') + word_;
    column_ = word_width_;
    moves_ = false;
  }
  bytes += character;
  column_ += width;
  if (!is_word) return;
  word_ += character;
  word_width_ += width;
}

}  // namespace tandem::tools
