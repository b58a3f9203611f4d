#include "jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "base/utf8.h"

namespace tandem::jinja {

Origin Text::origin_at(size_t position) const {
  const auto after = std::upper_bound(user_.begin(), user_.end(), position,
                                      [](size_t at, const ByteSpan& span) { return at < span.begin; });
  return after != user_.begin() && position < std::prev(after)->end ? Origin::user : Origin::program;
}

void Text::mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!user_.empty() && user_.back().end == begin)
    user_.back().end = end;
  else
    user_.push_back({begin, end});
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.size() > kMaxTextBytes - bytes_.size()) fail("a text grows past {} bytes", kMaxTextBytes);
  if (origin == Origin::user) mark(bytes_.size(), bytes_.size() + bytes.size());
  bytes_.append(bytes);
}

void Text::append(const Text& other, size_t from, size_t n_bytes) {
  n_bytes = std::min(n_bytes, other.size() - from);
  const size_t base = bytes_.size();
  append(std::string_view(other.bytes_).substr(from, n_bytes));
  auto span = std::upper_bound(other.user_.begin(), other.user_.end(), from,
                               [](size_t at, const ByteSpan& s) { return at < s.end; });
  for (; span != other.user_.end() && span->begin < from + n_bytes; ++span) {
    mark(base + std::max(span->begin, from) - from, base + std::min(span->end, from + n_bytes) - from);
  }
}

Text Text::substr(size_t from, size_t n_bytes) const {
  Text part;
  part.append(*this, std::min(from, size()), n_bytes);
  return part;
}

void Text::clear() {
  bytes_.clear();
  user_.clear();
}

size_t char_bytes(std::string_view text, size_t at) {
  if (static_cast<unsigned char>(text[at]) < 0x80) return 1;
  const Utf8Char next = next_utf8(text.substr(at));
  return next.status == Utf8Status::valid ? next.n_bytes : 1;
}

uint32_t char_code(std::string_view text, size_t at) {
  const size_t n = char_bytes(text, at);
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
  if (n == 1) return byte(0);
  uint32_t code = byte(0) & (0xffu >> (n + 1));
  for (size_t i = 1; i < n; ++i) code = code << 6 | (byte(i) & 0x3f);
  return code;
}

size_t find_text(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  text.remove_prefix(from);
  const void* found = memmem(text.data(), text.size(), wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return from + static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_last_text(std::string_view text, std::string_view wanted) {
  const std::string backwards(text.rbegin(), text.rend());
  const size_t found = find_text(backwards, std::string(wanted.rbegin(), wanted.rend()));
  return found == std::string_view::npos ? found : text.size() - found - wanted.size();
}

size_t count_chars(std::string_view text) {
  size_t n = 0;
  for (size_t at = 0; at < text.size(); at += char_bytes(text, at)) ++n;
  return n;
}

size_t char_offset(std::string_view text, size_t n_chars) {
  size_t at = 0;
  for (; n_chars > 0 && at < text.size(); --n_chars) at += char_bytes(text, at);
  return at;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&out](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

bool is_space(uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x1f);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

namespace {

utf8proc_category_t category(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

std::string one(utf8proc_int32_t code) {
  std::string bytes;
  append_utf8(bytes, static_cast<uint32_t>(code));
  return bytes;
}

constexpr uint32_t kSharpS = 0xdf;  // the one common letter whose upper case is two letters

// Maps each character with `change(code, is_first)`. Invalid UTF-8 bytes stay.
template <class Change>
Text map_chars(const Text& text, Change change) {
  Text out;
  const std::string_view bytes = text.view();
  for (size_t at = 0, n = 0; at < bytes.size(); at += n) {
    n = char_bytes(bytes, at);
    const uint32_t code = char_code(bytes, at);
    if (n == 1 && code >= 0x80)
      out.append(text, at, 1);
    else
      out.append(change(code, at == 0), text.origin_at(at));
  }
  return out;
}

}  // namespace

bool is_printable(uint32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return code == ' ';
    default: return true;
  }
}

bool is_alpha(uint32_t code) {
  const auto kind = category(code);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_ND;
}

bool is_upper(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LU;
}

bool is_lower(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL;
}

std::string to_upper(uint32_t code) {
  return code == kSharpS ? "SS" : one(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}

std::string to_lower(uint32_t code) {
  return one(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

std::string to_title(uint32_t code) {
  return code == kSharpS ? "Ss" : one(utf8proc_totitle(static_cast<utf8proc_int32_t>(code)));
}

Text upper(const Text& text) {
  return map_chars(text, [](uint32_t code, bool) { return to_upper(code); });
}

Text lower(const Text& text) {
  return map_chars(text, [](uint32_t code, bool) { return to_lower(code); });
}

Text capitalize(const Text& text) {
  return map_chars(text, [](uint32_t code, bool first) { return first ? to_title(code) : to_lower(code); });
}

}  // namespace tandem::jinja
