#include "support/screen.h"

#include <vterm.h>

namespace tandem::test {
namespace {

void append_utf8(std::string& text, uint32_t c) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) return add(c);
  if (c < 0x800) {
    add(0xc0 | c >> 6);
  } else if (c < 0x10000) {
    add(0xe0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3f));
  } else {
    add(0xf0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3f));
    add(0x80 | (c >> 6 & 0x3f));
  }
  add(0x80 | (c & 0x3f));
}

constexpr uint32_t kBehindWide = static_cast<uint32_t>(-1);

std::string text_of(const VTermScreenCell& cell) {
  std::string text;
  for (const uint32_t c : cell.chars) {
    if (c == 0 || c == kBehindWide) break;
    append_utf8(text, c);
  }
  return text;
}

template <class CellAt>
std::string line_of(int columns, CellAt cell_at) {
  std::string line;
  for (int column = 0; column < columns; ++column) {
    const VTermScreenCell cell = cell_at(column);
    if (cell.chars[0] == kBehindWide) continue;
    const std::string text = text_of(cell);
    line += text.empty() ? " " : text;
  }
  line.resize(line.find_last_not_of(' ') + 1);
  return line;
}

// libvterm does not know "dim". Its alternative fonts serve for that: the parameter 2 of an SGR sequence also
// chooses font 3, and 22 the usual one. Sequences may arrive in pieces.
class DimAsFont {
 public:
  std::string translate(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) next(c, out);
    return out;
  }

 private:
  void next(char c, std::string& out) {
    if (!inside_) {
      if (c == '\033') {
        pending_ = c;
        inside_ = true;
      } else {
        out += c;
      }
      return;
    }
    pending_ += c;
    if (pending_.size() == 2 && c == '[') return;
    if (pending_.size() > 2 && (c < 0x40 || c > 0x7e)) return;
    out += c == 'm' ? with_fonts(pending_) : pending_;
    inside_ = false;
  }

  static std::string with_fonts(const std::string& sequence) {
    std::string out = "\033[", number;
    for (const char c : sequence.substr(2)) {
      if (c >= '0' && c <= '9') {
        number += c;
        continue;
      }
      out += number;
      if (number == "2") out += ";13";
      if (number == "22") out += ";10";
      out += c;
      number.clear();
    }
    return out;
  }

  std::string pending_;
  bool inside_ = false;
};

int palette_index(const VTermColor& color, bool is_default) {
  return is_default || !VTERM_COLOR_IS_INDEXED(&color) ? -1 : color.indexed.idx;
}

}  // namespace

struct Screen::Impl {
  Impl(int n_rows, int n_columns) : rows(n_rows), columns(n_columns), terminal(vterm_new(n_rows, n_columns)) {
    vterm_set_utf8(terminal, 1);
    callbacks.sb_pushline = [](int n, const VTermScreenCell* cells, void* user) {
      static_cast<Impl*>(user)->scrolled.push_back(line_of(n, [&](int column) { return cells[column]; }));
      return 1;
    };
    screen = vterm_obtain_screen(terminal);
    vterm_screen_set_callbacks(screen, &callbacks, this);
    vterm_screen_reset(screen, 1);
  }
  ~Impl() { vterm_free(terminal); }

  VTermScreenCell cell(int row, int column) const {
    VTermScreenCell found{};
    vterm_screen_get_cell(screen, {row, column}, &found);
    return found;
  }
  std::string row(int at) const {
    return line_of(columns, [&](int column) { return cell(at, column); });
  }
  VTermPos cursor() const {
    VTermPos at{};
    vterm_state_get_cursorpos(vterm_obtain_state(terminal), &at);
    return at;
  }

  int rows, columns;
  VTerm* terminal;
  VTermScreen* screen = nullptr;
  VTermScreenCallbacks callbacks{};
  DimAsFont filter;
  std::vector<std::string> scrolled;
};

bool Cell::plain() const {
  return !bold && !dim && !italic && !underline && !reverse && !strike && color == -1 && background == -1;
}

Screen::Screen(int rows, int columns) : impl_(std::make_unique<Impl>(rows, columns)) {}
Screen::~Screen() = default;

void Screen::feed(std::string_view bytes) {
  const std::string translated = impl_->filter.translate(bytes);
  vterm_input_write(impl_->terminal, translated.data(), translated.size());
}

void Screen::resize(int rows, int columns) {
  impl_->rows = rows;
  impl_->columns = columns;
  vterm_set_size(impl_->terminal, rows, columns);
}

int Screen::rows() const {
  return impl_->rows;
}
int Screen::columns() const {
  return impl_->columns;
}
std::string Screen::row(int row) const {
  return impl_->row(row);
}
size_t Screen::n_scrolled() const {
  return impl_->scrolled.size();
}

std::vector<std::string> Screen::lines() const {
  std::vector<std::string> all = impl_->scrolled;
  for (int row = 0; row < impl_->rows; ++row) all.push_back(impl_->row(row));
  while (!all.empty() && all.back().empty()) all.pop_back();
  return all;
}

std::string Screen::text() const {
  std::string text;
  for (const std::string& line : lines()) text += line + "\n";
  return text;
}

int Screen::count(std::string_view what) const {
  const std::string all = text();
  int n = 0;
  for (size_t at = all.find(what); at != all.npos; at = all.find(what, at + what.size())) ++n;
  return n;
}

int Screen::row_with(std::string_view what) const {
  for (int row = impl_->rows - 1; row >= 0; --row) {
    if (impl_->row(row).find(what) != std::string::npos) return row;
  }
  return -1;
}

int Screen::cursor_row() const {
  return impl_->cursor().row;
}
int Screen::cursor_column() const {
  return impl_->cursor().col;
}

Cell Screen::cell(int row, int column) const {
  const VTermScreenCell found = impl_->cell(row, column);
  Cell cell;
  cell.text = text_of(found);
  cell.width = found.width;
  cell.bold = found.attrs.bold != 0;
  cell.dim = found.attrs.font == 3;
  cell.italic = found.attrs.italic != 0;
  cell.underline = found.attrs.underline != 0;
  cell.reverse = found.attrs.reverse != 0;
  cell.strike = found.attrs.strike != 0;
  cell.color = palette_index(found.fg, VTERM_COLOR_IS_DEFAULT_FG(&found.fg));
  cell.background = palette_index(found.bg, VTERM_COLOR_IS_DEFAULT_BG(&found.bg));
  return cell;
}

}  // namespace tandem::test
