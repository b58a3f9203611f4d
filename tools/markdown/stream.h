// TextStream: the text of a model on a terminal, while it comes. Words are wrapped at the window's width, and
// Markdown is rendered: what is not complete is shown as far as it can be understood, and drawn again as more
// comes. Only the last block changes, and only as far as it is still on the screen.
//
// The result does not depend on how the text is cut into pieces, nor does what scrolled away. Costs time
// in proportion to the text times the length of a block; a block that is far too long is cut.
//
// Nothing is written here: each member returns the bytes to send. The cursor must be at the start of a row
// before the first text and is again after finish(). One thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tools/markdown/blocks.h"
#include "tools/markdown/document.h"
#include "tools/markdown/painter.h"

namespace tandem::tools {

struct TextStreamOptions {
  int rows = 24, columns = 80;  // of the window
  bool markdown = true;         // false: only wrap words
  bool color = true;
  Style style = {};       // of text without Markdown
  std::string_view mark;  // before each row of text without Markdown
};

class TextStream {
 public:
  explicit TextStream(const TextStreamOptions& options);

  std::string add(std::string_view text);
  // The text is complete. The next one begins anew.
  std::string finish();
  // The window has another size, or something else was written: what was drawn stays as it is, the rest goes
  // on below it.
  std::string resize(int rows, int columns);

 private:
  size_t next_step(std::string_view text) const;
  void step(std::string_view piece);
  bool take_block();
  bool take_code_line();
  bool take_line();
  bool cut_long_block();
  size_t shown_size() const;
  std::vector<Row> rows_of(std::string_view text) const;
  std::vector<Row> with_gap(std::vector<Row> rows) const;
  void draw(const std::vector<Row>& rows);
  void keep(size_t n_bytes);

  TextStreamOptions options_;
  Painter painter_;
  std::string bytes_;           // to be sent
  std::string open_;            // text that may still change how it looks
  std::string part_;            // of a character
  std::optional<Fence> fence_;  // the text is inside a code block
  bool begun_ = false;          // a block was drawn
  bool gap_ = false;            // an empty row is due before the next block
};

}  // namespace tandem::tools
