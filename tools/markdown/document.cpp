#include "tools/markdown/document.h"

#include <md4c.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "base/text.h"
#include "tools/markdown/table.h"

namespace tandem::tools {
namespace {

constexpr int kTabColumns = 4;
constexpr int kMinText = 8;  // columns that prefixes leave to the text, in a window that has them

std::string_view text_of(const MD_ATTRIBUTE& a) {
  return a.text == nullptr ? std::string_view() : std::string_view(a.text, a.size);
}

// "&amp;", "&#65;", "&#x41;"; another name stays as it is.
std::string entity_text(std::string_view entity) {
  static const std::map<std::string_view, std::string_view> kNames = {{"&amp;", "&"},
                                                                      {"&lt;", "<"},
                                                                      {"&gt;", ">"},
                                                                      {"&quot;", "\""},
                                                                      {"&apos;", "'"},
                                                                      {"&nbsp;", "\xc2\xa0"},
                                                                      {"&copy;", "\xc2\xa9"},
                                                                      {"&deg;", "\xc2\xb0"},
                                                                      {"&times;", "\xc3\x97"},
                                                                      {"&mdash;", "\xe2\x80\x94"},
                                                                      {"&ndash;", "\xe2\x80\x93"},
                                                                      {"&hellip;", "\xe2\x80\xa6"},
                                                                      {"&rarr;", "\xe2\x86\x92"}};
  if (const auto found = kNames.find(entity); found != kNames.end()) return std::string(found->second);
  if (!entity.starts_with("&#")) return std::string(entity);
  const bool hex = entity.size() > 2 && (entity[2] == 'x' || entity[2] == 'X');
  const std::string digits(entity.substr(hex ? 3 : 2));
  const long code = std::strtol(digits.c_str(), nullptr, hex ? 16 : 10);
  if (code <= 0 || code > 0x10ffff || !utf8proc_codepoint_valid(static_cast<utf8proc_int32_t>(code)))
    return std::string(entity);
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(n)};
}

class Renderer {
 public:
  explicit Renderer(const DocumentStyle& style) : style_(style) {}

  std::vector<Row> render(std::string_view text) {
    MD_PARSER parser{};
    parser.flags = MD_FLAG_TABLES | MD_FLAG_STRIKETHROUGH | MD_FLAG_TASKLISTS | MD_FLAG_NOHTMLBLOCKS |
                   MD_FLAG_NOINDENTEDCODEBLOCKS;
    parser.enter_block = [](MD_BLOCKTYPE type, void* detail, void* user) {
      static_cast<Renderer*>(user)->enter(type, detail);
      return 0;
    };
    parser.leave_block = [](MD_BLOCKTYPE type, void*, void* user) {
      static_cast<Renderer*>(user)->leave(type);
      return 0;
    };
    parser.enter_span = [](MD_SPANTYPE type, void* detail, void* user) {
      static_cast<Renderer*>(user)->enter_span(type, detail);
      return 0;
    };
    parser.leave_span = [](MD_SPANTYPE type, void*, void* user) {
      static_cast<Renderer*>(user)->leave_span(type);
      return 0;
    };
    parser.text = [](MD_TEXTTYPE type, const MD_CHAR* bytes, MD_SIZE size, void* user) {
      static_cast<Renderer*>(user)->text(type, {bytes, size});
      return 0;
    };
    md_parse(text.data(), static_cast<MD_SIZE>(text.size()), &parser, this);
    return std::move(out_);
  }

 private:
  // A block quote or an item of a list: what stands before its first row, and before the others.
  struct Container {
    Row first, rest;
    bool begun = false;
    bool quote = false;
  };
  struct List {
    bool ordered = false, tight = false;
    unsigned next = 1;
    char delimiter = '.';
    bool begun = false;
  };

  // --- Blocks

  void enter(MD_BLOCKTYPE type, void* detail) {
    switch (type) {
      case MD_BLOCK_QUOTE:
        end_loose_text();
        containers_.push_back(
            {glyphs_of("\xe2\x94\x82 ", kDim), glyphs_of("\xe2\x94\x82 ", kDim), false, true});
        break;
      case MD_BLOCK_UL:
        end_loose_text();
        lists_.push_back({false, static_cast<MD_BLOCK_UL_DETAIL*>(detail)->is_tight != 0});
        break;
      case MD_BLOCK_OL: {
        end_loose_text();
        const auto* d = static_cast<MD_BLOCK_OL_DETAIL*>(detail);
        lists_.push_back({true, d->is_tight != 0, d->start, d->mark_delimiter});
        break;
      }
      case MD_BLOCK_LI: enter_item(*static_cast<MD_BLOCK_LI_DETAIL*>(detail)); break;
      case MD_BLOCK_H: {
        end_loose_text();
        const unsigned level = static_cast<MD_BLOCK_H_DETAIL*>(detail)->level;
        heading_ = {.bold = true, .italic = level > 2, .underline = level == 1};
        break;
      }
      case MD_BLOCK_CODE:
        end_loose_text();
        language_ = text_of(static_cast<MD_BLOCK_CODE_DETAIL*>(detail)->lang);
        break;
      case MD_BLOCK_HR:
        end_loose_text();
        rule();
        break;
      case MD_BLOCK_P: end_loose_text(); break;
      case MD_BLOCK_TABLE:
        end_loose_text();
        table_ = {};
        break;
      case MD_BLOCK_TR: table_.rows.emplace_back(); break;
      case MD_BLOCK_TH:
      case MD_BLOCK_TD: {
        const MD_ALIGN align = static_cast<MD_BLOCK_TD_DETAIL*>(detail)->align;
        if (type == MD_BLOCK_TH) {
          heading_ = {.bold = true};
          table_.columns.push_back(align == MD_ALIGN_CENTER  ? Align::center
                                   : align == MD_ALIGN_RIGHT ? Align::right
                                                             : Align::left);
        }
        break;
      }
      default: break;
    }
  }

  void leave(MD_BLOCKTYPE type) {
    switch (type) {
      case MD_BLOCK_QUOTE:
        end_loose_text();
        containers_.pop_back();
        break;
      case MD_BLOCK_UL:
      case MD_BLOCK_OL: lists_.pop_back(); break;
      case MD_BLOCK_LI:
        end_loose_text();
        if (!containers_.back().begun) put({Row()});  // an empty item has its mark
        containers_.pop_back();
        break;
      case MD_BLOCK_H:
      case MD_BLOCK_P:
        put(wrapped(std::exchange(inline_, {}), text_width()));
        heading_ = {};
        break;
      case MD_BLOCK_CODE: code(); break;
      case MD_BLOCK_TABLE: put(table_rows(table_, text_width())); break;
      case MD_BLOCK_TH:
      case MD_BLOCK_TD:
        table_.rows.back().push_back(std::exchange(inline_, {}));
        heading_ = {};
        break;
      default: break;
    }
  }

  void enter_item(const MD_BLOCK_LI_DETAIL& item) {
    static constexpr const char* kBullets[] = {"\xe2\x80\xa2 ", "\xe2\x97\xa6 ", "\xe2\x80\xa3 "};
    end_loose_text();
    List& list = lists_.back();
    std::string mark;
    if (item.is_task != 0) {
      mark = item.task_mark == ' ' ? "\xe2\x98\x90 " : "\xe2\x98\x91 ";
    } else if (list.ordered) {
      mark = std::to_string(list.next++) + list.delimiter + " ";
    } else {
      mark = kBullets[(lists_.size() - 1) % 3];
    }
    const Row first = glyphs_of(mark);
    containers_.push_back({first, glyphs_of(std::string(static_cast<size_t>(width_of(first)), ' '))});
  }

  // The text of an item of a tight list is in no paragraph.
  void end_loose_text() {
    if (inline_.empty()) return;
    put(wrapped(std::exchange(inline_, {}), text_width()));
  }

  void rule() {
    Row row;
    for (int i = 0; i < text_width(); ++i) append_glyphs(row, "\xe2\x94\x80", kDim);
    put({row});
  }

  void code() {
    DocumentStyle inner = style_;
    inner.width = text_width();
    std::vector<Row> rows = code_head(language_, inner);
    const auto append = [&](std::vector<Row> more) {
      std::move(more.begin(), more.end(), std::back_inserter(rows));
    };
    for (std::string_view rest = code_; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      append(code_line(rest.substr(0, end), inner));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    append(code_foot(inner));
    code_.clear();
    put(std::move(rows));
  }

  // --- Rows

  int prefix_width() const {
    int width = 0;
    for (const Container& c : containers_) width += width_of(c.rest);
    return width;
  }
  int text_width() const {
    return std::max({style_.width - prefix_width(), std::min(style_.width, kMinText), 2});
  }

  // An empty row comes before a block, but not in a tight list. What comes before a list is not in it.
  bool takes_gap() {
    const bool first = !lists_.empty() && !std::exchange(lists_.back().begun, true);
    if (out_.empty()) return false;
    return lists_.empty() || !lists_.back().tight || (first && lists_.size() == 1);
  }

  void put(std::vector<Row> rows) {
    if (takes_gap()) {
      Row gap;
      for (const Container& c : containers_) {
        if (!c.begun) break;
        gap.insert(gap.end(), c.rest.begin(), c.rest.end());
      }
      trim_end(gap);
      out_.push_back(std::move(gap));
    }
    const auto room = static_cast<size_t>(std::max(style_.width - text_width(), 0));
    for (Row& row : rows) {
      Row line;
      for (Container& c : containers_) {
        const Row& prefix = c.begun ? c.rest : c.first;
        line.insert(line.end(), prefix.begin(), prefix.end());
        c.begun = true;
      }
      while (width_of(line) > static_cast<int>(room)) line.pop_back();
      line.insert(line.end(), std::make_move_iterator(row.begin()), std::make_move_iterator(row.end()));
      trim_end(line);
      out_.push_back(std::move(line));
    }
  }

  // --- Text

  Style now() const {
    Style s = heading_;
    s.bold |= n_strong_ > 0;
    s.italic |= n_em_ > 0;
    s.strike |= n_strike_ > 0;
    s.underline |= n_link_ > 0;
    return s;
  }

  void enter_span(MD_SPANTYPE type, void* detail) {
    switch (type) {
      case MD_SPAN_EM: ++n_em_; break;
      case MD_SPAN_STRONG: ++n_strong_; break;
      case MD_SPAN_DEL: ++n_strike_; break;
      case MD_SPAN_CODE:
        in_code_ = true;
        if (!style_.color) append_glyphs(inline_, "`", now());
        break;
      case MD_SPAN_A:
        ++n_link_;
        target_ = text_of(static_cast<MD_SPAN_A_DETAIL*>(detail)->href);
        link_begin_ = inline_.size();
        break;
      case MD_SPAN_IMG:
        target_ = text_of(static_cast<MD_SPAN_IMG_DETAIL*>(detail)->src);
        append_glyphs(inline_, "[image: ", now());
        break;
      default: break;
    }
  }

  void leave_span(MD_SPANTYPE type) {
    switch (type) {
      case MD_SPAN_EM: --n_em_; break;
      case MD_SPAN_STRONG: --n_strong_; break;
      case MD_SPAN_DEL: --n_strike_; break;
      case MD_SPAN_CODE:
        in_code_ = false;
        if (!style_.color) append_glyphs(inline_, "`", now());
        break;
      case MD_SPAN_A: {
        --n_link_;
        std::string shown;
        for (size_t i = std::min(link_begin_, inline_.size()); i < inline_.size(); ++i)
          shown += inline_[i].text;
        if (target_ != shown && target_ != "mailto:" + shown)
          append_glyphs(inline_, " (" + target_ + ")", kDim);
        break;
      }
      case MD_SPAN_IMG: append_glyphs(inline_, "] (" + target_ + ")", now()); break;
      default: break;
    }
  }

  void text(MD_TEXTTYPE type, std::string_view text) {
    switch (type) {
      case MD_TEXT_BR:
      case MD_TEXT_SOFTBR: append_glyphs(inline_, "\n"); return;
      case MD_TEXT_ENTITY: append_glyphs(inline_, entity_text(text), now()); return;
      case MD_TEXT_NULLCHAR: append_glyphs(inline_, std::string_view("\0", 1), now()); return;
      case MD_TEXT_HTML:
        if (text == "<br>" || text == "<br/>" || text == "<br />") {
          append_glyphs(inline_, "\n");
        } else {
          append_glyphs(inline_, text, now());
        }
        return;
      case MD_TEXT_CODE:
        if (!in_code_) {
          code_ += text;
          return;
        }
        break;
      default: break;
    }
    Style style = now();
    if (in_code_ && style_.color) style.color = Color::cyan;
    append_glyphs(inline_, text, style);
  }

  DocumentStyle style_;
  std::vector<Row> out_;
  std::vector<Container> containers_;
  std::vector<List> lists_;
  Row inline_;  // text of the block that is read
  std::string code_, language_, target_;
  size_t link_begin_ = 0;
  Table table_;
  Style heading_;
  int n_em_ = 0, n_strong_ = 0, n_strike_ = 0, n_link_ = 0;
  bool in_code_ = false;
};

std::vector<Row> one_row(std::string_view text, const DocumentStyle& style) {
  Row row = glyphs_of(text, kDim);
  while (width_of(row) > std::max(style.width, 2)) row.pop_back();
  trim_end(row);
  return {row};
}

}  // namespace

std::vector<Row> markdown_rows(std::string_view text, const DocumentStyle& style) {
  // An empty line at the end would make md4c think that the items of a list are apart.
  return Renderer(style).render(trimmed_end(text));
}

std::vector<Row> code_head(std::string_view language, const DocumentStyle& style) {
  return one_row("\xe2\x95\xad\xe2\x94\x80 " + std::string(language), style);
}

std::vector<Row> code_line(std::string_view line, const DocumentStyle& style) {
  std::string text;
  for (const char c : line) {
    if (c == '\t') {
      text.append(kTabColumns - text.size() % kTabColumns, ' ');
    } else {
      text += c;
    }
  }
  std::vector<Row> rows = cut_to_width(glyphs_of(text), std::max(style.width - 2, 2));
  for (Row& row : rows) {
    Row gutter = glyphs_of("\xe2\x94\x82 ", kDim);
    row.insert(row.begin(), gutter.begin(), gutter.end());
    trim_end(row);
  }
  return rows;
}

std::vector<Row> code_foot(const DocumentStyle& style) {
  return one_row("\xe2\x95\xb0\xe2\x94\x80", style);
}

}  // namespace tandem::tools
