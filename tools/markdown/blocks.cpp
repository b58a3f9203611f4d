#include "tools/markdown/blocks.h"

#include <algorithm>

#include "base/text.h"

namespace tandem::tools {
namespace {

enum class Answer { no, yes, unknown };

size_t indent_of(std::string_view line) {
  return std::min(line.find_first_not_of(" \t"), line.size());
}

bool is_blank(std::string_view line) {
  return trimmed(line).empty();
}

// Whether a line, of which only the beginning may be there, is an item of a list.
Answer is_item(std::string_view line, bool whole) {
  line.remove_prefix(indent_of(line));
  const Answer rest = whole ? Answer::no : Answer::unknown;
  if (line.empty()) return rest;
  size_t mark = 1;
  if (line[0] != '-' && line[0] != '*' && line[0] != '+') {
    mark = std::min(line.find_first_not_of("0123456789"), line.size());
    if (mark == 0 || mark > 9) return Answer::no;
    if (mark == line.size()) return rest;
    if (line[mark] != '.' && line[mark] != ')') return Answer::no;
    ++mark;
  }
  if (mark == line.size()) return whole ? Answer::yes : Answer::unknown;
  return line[mark] == ' ' || line[mark] == '\t' ? Answer::yes : Answer::no;
}

bool is_heading(std::string_view line) {
  const size_t n = std::min(line.find_first_not_of('#'), line.size());
  return n >= 1 && n <= 6 && (n == line.size() || line[n] == ' ');
}

// "12" and "3." may begin an item.
bool is_number_mark(std::string_view text) {
  const size_t n = std::min(text.find_first_not_of("0123456789"), text.size());
  return n >= 1 && n <= 9 &&
         (n == text.size() || (n + 1 == text.size() && (text[n] == '.' || text[n] == ')')));
}

}  // namespace

std::optional<Fence> fence_of(std::string_view line) {
  Fence fence;
  fence.indent = indent_of(line);
  if (fence.indent > 3 || fence.indent == line.size()) return std::nullopt;
  line.remove_prefix(fence.indent);
  fence.mark = line[0];
  if (fence.mark != '`' && fence.mark != '~') return std::nullopt;
  fence.n_marks = std::min(line.find_first_not_of(fence.mark), line.size());
  const std::string_view info = trimmed(line.substr(fence.n_marks));
  if (fence.n_marks < 3 || (fence.mark == '`' && info.find('`') != info.npos)) return std::nullopt;
  fence.language = info.substr(0, info.find_first_of(" \t"));
  return fence;
}

bool closes(const Fence& fence, std::string_view line) {
  const auto found = fence_of(line);
  return found && found->mark == fence.mark && found->n_marks >= fence.n_marks &&
         trimmed(line).find_first_not_of(fence.mark) == line.npos;
}

bool may_close(const Fence& fence, std::string_view begin) {
  const std::string_view marks = trimmed(begin);
  return indent_of(begin) <= 3 && marks.find_first_not_of(fence.mark) == marks.npos;
}

size_t complete_blocks(std::string_view text) {
  bool in_list = false, blank_before = false, first = true;
  for (size_t at = 0; at < text.size();) {
    const size_t newline = text.find('\n', at);
    const bool whole = newline != text.npos;
    const std::string_view line = text.substr(at, (whole ? newline : text.size()) - at);
    const size_t next = whole ? newline + 1 : text.size();
    if (is_blank(line)) {
      if (first && whole) return next;  // nothing to show
      blank_before = true;
      at = next;
      continue;
    }
    if (first) {
      if (whole && is_heading(line)) return next;
      const Answer item = is_item(line, whole);
      if (item == Answer::unknown) return 0;
      in_list = item == Answer::yes;
    } else if (indent_of(line) == 0) {
      if (fence_of(line)) return at;
      const Answer item = in_list && blank_before ? is_item(line, whole) : Answer::no;
      if (blank_before && item == Answer::unknown) return 0;
      if (blank_before && item == Answer::no) return at;
    }
    first = false;
    blank_before = false;
    at = next;
  }
  return 0;
}

size_t presentable(std::string_view text) {
  const size_t newline = text.rfind('\n');
  const size_t begin = newline == text.npos ? 0 : newline + 1;
  const std::string_view line = text.substr(begin);
  if (line.empty()) return text.size();
  constexpr size_t kMaxHeld = 200;
  const std::string_view marks = trimmed(line);
  const bool only_marks = marks.find_first_not_of("-=*+#_`~>|: \t") == marks.npos || is_number_mark(marks);
  if (only_marks && line.size() <= kMaxHeld) return begin;
  if (marks.starts_with('|') && begin > 1) {  // after another row
    const size_t before = text.rfind('\n', begin - 2);
    const std::string_view last = trimmed(text.substr(before == text.npos ? 0 : before + 1, begin - 1));
    if (last.starts_with('|')) return begin;
  }
  const size_t end = text.find_last_not_of("*_`~[!<&\\");
  return std::max(end == text.npos ? 0 : end + 1, begin);
}

size_t without_cut_item(std::string_view text) {
  const size_t newline = text.rfind('\n');
  return newline != text.npos && trimmed(text.substr(newline)) == "-" ? newline + 1 : text.size();
}

}  // namespace tandem::tools
