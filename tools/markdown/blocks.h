// Where Markdown that still grows can be cut: what is complete, and what cannot be judged yet. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::tools {

// A line that opens or closes a fenced code block.
struct Fence {
  char mark = '`';
  size_t n_marks = 3, indent = 0;
  std::string language;
};
std::optional<Fence> fence_of(std::string_view line);
// Whether the line closes the block that `fence` opened.
bool closes(const Fence& fence, std::string_view line);
// Whether the beginning of a line may still become one that closes the block.
bool may_close(const Fence& fence, std::string_view begin);

// Bytes at the start of `text`, which ends anywhere, that are whole top-level blocks whatever follows; 0 if
// there are none. A list goes on over empty lines as long as items or indented lines follow.
size_t complete_blocks(std::string_view text);

// The length of `text` without what would look wrong until more comes: a last line of nothing but marks, the
// marks at its end, and a row of a table that is not complete.
size_t presentable(std::string_view text);

// The length of a text that came to its end without a last line of nothing but "-": the mark of an item that was cut
// off, which would make a heading of the line before it.
size_t without_cut_item(std::string_view text);

}  // namespace tandem::tools
