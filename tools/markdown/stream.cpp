#include "tools/markdown/stream.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace tandem::tools {
namespace {

constexpr size_t kMaxBlock = 16 * 1024;  // bytes of a block, of which each step renders all
constexpr size_t kMaxLine = 2 * 1024;    // the same of a line of code or of plain text

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Not inside a character.
size_t character_start(std::string_view text, size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

// Where to cut a block that is too long: before an item, at the end of a line, behind a word.
size_t cut_of(std::string_view text, size_t limit) {
  const std::string_view head = text.substr(0, limit);
  for (size_t at = head.rfind('\n'); at != head.npos && at > limit / 2; at = head.rfind('\n', at - 1)) {
    if (at + 1 < head.size() && head[at + 1] != ' ' && head[at + 1] != '\t') return at + 1;
  }
  for (const char c : {'\n', ' '}) {
    const size_t at = head.rfind(c);
    if (at != head.npos && at > limit / 2) return at + 1;
  }
  return std::max<size_t>(character_start(text, limit), 1);
}

}  // namespace

TextStream::TextStream(const TextStreamOptions& options) : options_(options), painter_(options.rows) {
  options_.columns = std::max(options_.columns, 3);
}

// The bytes of the next step. Each character is one, but for letters and digits, which change nothing but the
// last word.
size_t TextStream::next_step(std::string_view text) const {
  size_t n = 0;
  while (n < text.size() && is_word(text[n])) ++n;
  return n > 0 ? n : next_utf8(text).n_bytes;
}

std::string TextStream::add(std::string_view text) {
  const std::string all = std::exchange(part_, "") + std::string(text);
  for (std::string_view rest = all; !rest.empty();) {
    const Utf8Char c = next_utf8(rest);
    if (c.status == Utf8Status::incomplete) {
      part_ = rest;
      break;
    }
    const size_t n = next_step(rest);
    step(rest.substr(0, n));
    rest.remove_prefix(n);
  }
  return std::exchange(bytes_, "");
}

void TextStream::step(std::string_view piece) {
  if (piece == "\r") return;
  open_ += piece;
  for (bool more = true; more;) {
    more = !options_.markdown ? take_line() : fence_ ? take_code_line() : take_block();
    more = more || cut_long_block();
  }
  draw(rows_of(std::string_view(open_).substr(0, shown_size())));
}

// How much of the open text can be shown.
size_t TextStream::shown_size() const {
  if (!options_.markdown) return open_.size();
  if (fence_) return may_close(*fence_, open_) ? 0 : open_.size();
  return presentable(open_);
}

bool TextStream::take_block() {
  const size_t n = complete_blocks(open_);
  if (n > 0) {
    draw(rows_of(std::string_view(open_).substr(0, n)));
    keep(n);
    gap_ = begun_;
    return true;
  }
  const size_t end = open_.find('\n');
  if (end == open_.npos) return false;
  fence_ = fence_of(std::string_view(open_).substr(0, end));
  if (!fence_) return false;
  draw(with_gap(code_head(fence_->language, {options_.columns - 1, options_.color})));
  keep(end + 1);
  return true;
}

bool TextStream::take_code_line() {
  const size_t end = open_.find('\n');
  if (end == open_.npos) return false;
  const std::string_view line = std::string_view(open_).substr(0, end);
  if (closes(*fence_, line)) {
    draw(code_foot({options_.columns - 1, options_.color}));
    fence_.reset();
    keep(end + 1);
    gap_ = true;
    return true;
  }
  draw(rows_of(line));
  keep(end + 1);
  return true;
}

bool TextStream::take_line() {
  const size_t end = open_.find('\n');
  if (end == open_.npos) return false;
  std::vector<Row> rows = rows_of(std::string_view(open_).substr(0, end));
  if (rows.empty()) rows.emplace_back();
  draw(rows);
  keep(end + 1);
  return true;
}

bool TextStream::cut_long_block() {
  const bool lines = fence_ || !options_.markdown;
  const size_t limit = lines ? kMaxLine : kMaxBlock;
  if (open_.size() <= limit) return false;
  const size_t n = lines ? std::max<size_t>(character_start(open_, limit), 1) : cut_of(open_, limit);
  draw(rows_of(std::string_view(open_).substr(0, n)));
  keep(n);
  return true;
}

// Rows of open text, in the state of the moment.
std::vector<Row> TextStream::rows_of(std::string_view text) const {
  const DocumentStyle style{options_.columns - 1, options_.color};
  if (!options_.markdown) {
    if (text.empty()) return {};
    const Row mark = glyphs_of(options_.mark, options_.style);
    std::vector<Row> rows =
        wrapped(glyphs_of(text, options_.style), std::max(style.width - width_of(mark), 2));
    for (Row& row : rows) row.insert(row.begin(), mark.begin(), mark.end());
    return rows;
  }
  if (!fence_) return with_gap(markdown_rows(text, style));
  std::string_view code = text;
  for (size_t i = 0; i < fence_->indent && code.starts_with(' '); ++i) code.remove_prefix(1);
  return code_line(code, style);
}

std::vector<Row> TextStream::with_gap(std::vector<Row> rows) const {
  if (gap_ && !rows.empty()) rows.insert(rows.begin(), Row());
  return rows;
}

void TextStream::draw(const std::vector<Row>& rows) {
  if (rows.empty() && !painter_.drawn()) return;
  bytes_ += painter_.draw(rows);
  begun_ = true;
}

void TextStream::keep(size_t n_bytes) {
  if (painter_.drawn()) gap_ = false;
  painter_.keep();
  open_.erase(0, n_bytes);
}

std::string TextStream::finish() {
  if (!part_.empty()) step(kReplacementCharacter);
  part_.clear();
  if (fence_) {
    const bool closed = closes(*fence_, open_);
    if (!closed && !open_.empty()) {
      draw(rows_of(open_));
      keep(open_.size());
    }
    draw(code_foot({options_.columns - 1, options_.color}));
  } else {
    const size_t n = options_.markdown ? without_cut_item(open_) : open_.size();
    draw(rows_of(std::string_view(open_).substr(0, n)));
  }
  keep(open_.size());
  bytes_ += painter_.finish();
  fence_.reset();
  begun_ = gap_ = false;
  return std::exchange(bytes_, "");
}

std::string TextStream::resize(int rows, int columns) {
  options_.rows = rows;
  options_.columns = std::max(columns, 3);
  const size_t n = painter_.drawn() ? shown_size() : 0;
  painter_.set_screen_rows(rows);
  keep(n);
  bytes_ += painter_.finish();
  return std::exchange(bytes_, "");
}

}  // namespace tandem::tools
