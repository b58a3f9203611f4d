#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace tandem {
namespace {

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, FreeMatchData>;

// Unicode's White_Space. PCRE2's own \s also matches U+180E, which the regex engines used in training do not.
constexpr std::string_view kUnicodeWhiteSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"
    "3000}";

// Replaces \s and \S by that set. In the table \S never occurs inside brackets.
std::string with_white_space_spelled_out(std::string_view pattern) {
  std::string out;
  bool in_brackets = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[') in_brackets = true;
      if (c == ']') in_brackets = false;
      out += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      out += in_brackets ? std::string(kUnicodeWhiteSpace) : "[" + std::string(kUnicodeWhiteSpace) + "]";
    } else if (escaped == 'S') {
      TANDEM_CHECK(!in_brackets);
      out += "[^" + std::string(kUnicodeWhiteSpace) + "]";
    } else {
      out += {c, escaped};
    }
  }
  return out;
}

pcre2_code* compile(const std::string& pattern) {
  const std::string text = with_white_space_spelled_out(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (code == nullptr) {
    if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
    throw_error(ErrorCode::bug, "pre-tokenizer pattern '{}': PCRE2 error {} at offset {}", text, error,
                offset);
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // may fail: matching is slower without it, not wrong
  return code;
}

size_t character_length(std::string_view text) {
  return next_utf8(text).n_bytes;
}

// Appends `match` in groups of three characters, the short group first.
void append_by_three(std::string_view match, std::vector<std::string_view>& out) {
  size_t n_chars = 0;
  for (const char c : match) n_chars += (c & 0xc0) != 0x80;
  size_t left_in_group = n_chars % 3 == 0 ? 3 : n_chars % 3;
  size_t start = 0, i = 0;
  while (i < match.size()) {
    i += character_length(match.substr(i));
    if (--left_in_group > 0) continue;
    out.push_back(match.substr(start, i - start));
    start = i;
    left_in_group = 3;
  }
}

}  // namespace

struct PreTokenizer::CompiledRule {
  SplitBehavior mode;
  std::unique_ptr<pcre2_code, FreeCode> code;

  // Returns the first match at or after `from`; an empty span at the end of the piece if there is none.
  std::pair<size_t, size_t> next_match(std::string_view piece, size_t from, pcre2_match_data* data) const {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(piece.data());
    int rc = pcre2_match(code.get(), subject, piece.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data,
                         nullptr);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter's stack is on the heap
      rc = pcre2_match(code.get(), subject, piece.size(), from,
                       PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | PCRE2_NO_JIT, data, nullptr);
    }
    if (rc < 0) return {piece.size(), piece.size()};  // no match, or a limit reached
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data);
    return {span[0], span[1]};
  }

  void apply(std::string_view piece, pcre2_match_data* data, std::vector<std::string_view>& out) const {
    size_t done = 0;
    while (done < piece.size()) {
      const auto [start, end] = next_match(piece, done, data);
      if (start > done) out.push_back(piece.substr(done, start - done));
      const std::string_view match = piece.substr(start, end - start);
      if (mode == SplitBehavior::group_by_three)
        append_by_three(match, out);
      else if (!match.empty())
        out.push_back(match);
      done = end;
    }
  }
};

PreTokenizer::PreTokenizer(const PreTokenizerSpec& spec) {
  for (const SplitRule& rule : spec.rules) {
    rules_.push_back({rule.mode, std::unique_ptr<pcre2_code, FreeCode>(compile(rule.pattern))});
  }
}

PreTokenizer::~PreTokenizer() = default;

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string_view> pieces, cut;
  if (!text.empty()) pieces.push_back(text);
  const MatchData data(pcre2_match_data_create(1, nullptr));
  if (data == nullptr) throw std::bad_alloc();
  for (const CompiledRule& rule : rules_) {
    cut.clear();
    for (const std::string_view piece : pieces) rule.apply(piece, data.get(), cut);
    std::swap(pieces, cut);
  }
  return pieces;
}

}  // namespace tandem
