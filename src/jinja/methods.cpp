// Methods of str. All of them preserve the marks of the text.
#include <algorithm>
#include <optional>

#include "jinja/builtins.h"
#include "jinja/interp.h"

namespace tandem::jinja {

namespace {

constexpr size_t npos = std::string::npos;

// Number of bytes to strip at the start or end: white space, or the characters in `set`.
size_t strip_from_left(std::string_view text, const std::string* set) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t n = char_bytes(text, at);
    const bool strip = set ? set->find(text.substr(at, n)) != npos : is_space(char_code(text, at));
    if (!strip) break;
    at += n;
  }
  return at;
}

size_t last_char(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && text.size() - at < 4 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return char_bytes(text, at) == text.size() - at ? at : text.size() - 1;
}

size_t end_after_strip(std::string_view text, const std::string* set) {
  while (!text.empty()) {
    const size_t at = last_char(text);
    const bool strip = set ? set->find(text.substr(at)) != npos : is_space(char_code(text, at));
    if (!strip) break;
    text = text.substr(0, at);
  }
  return text.size();
}

}  // namespace

Text stripped(const Text& text, const Value& characters, bool left, bool right) {
  const bool given = !characters.is_missing() && !characters.is_none();
  if (given && !characters.is_string()) fail("strip arg must be None or str");
  const std::string* set = given ? &characters.string() : nullptr;
  const size_t begin = left ? strip_from_left(text.view(), set) : 0;
  const size_t end = right ? begin + end_after_strip(text.view().substr(begin), set) : text.size();
  return text.substr(begin, end - begin);
}

Value replaced(const Text& text, const Text& from, const Text& to, int64_t n_max) {
  size_t left = n_max < 0 ? npos : static_cast<size_t>(n_max);
  Text out;
  size_t at = 0;
  if (from.empty()) {  // matches before each character and at the end
    for (; at < text.size() && left > 0; --left) {
      const size_t n = char_bytes(text.view(), at);
      out.append(to);
      out.append(text, at, n);
      at += n;
    }
    out.append(text, at, npos);
    if (left > 0) out.append(to);
    return Value(std::move(out));
  }
  for (; left > 0; --left) {
    const size_t found = find_text(text.view(), from.view(), at);
    if (found == npos) break;
    out.append(text, at, found - at);
    out.append(to);
    at = found + from.size();
  }
  out.append(text, at, npos);
  return Value(std::move(out));
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  const std::string_view bytes = text.view();
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const uint32_t code = char_code(bytes, at);
    size_t next = at + char_bytes(bytes, at);
    const bool ends = (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
                      code == 0x2028 || code == 0x2029;
    if (ends) {
      if (code == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      lines.push_back(text.substr(begin, (keep_ends ? next : at) - begin));
      begin = next;
      if (lines.size() > kMaxPieces) fail("a text has more than {} lines", kMaxPieces);
    }
    at = next;
  }
  if (begin < bytes.size()) lines.push_back(text.substr(begin));
  return lines;
}

Text justified(const Text& text, int64_t width, Side side, const Text& fill) {
  const int64_t room = width - static_cast<int64_t>(count_chars(text.view()));
  if (room <= 0) return text;
  if (static_cast<uint64_t>(room) > kMaxTextBytes / 4) fail("a width of {} is too large", width);
  // Python puts the extra space on the left if the width is odd.
  const int64_t centered = room / 2 + (room & width & 1);
  const int64_t before = side == Side::left ? 0 : side == Side::right ? room : centered;
  Text out;
  for (int64_t i = 0; i < before; ++i) out.append(fill);
  out.append(text);
  for (int64_t i = before; i < room; ++i) out.append(fill);
  return out;
}

namespace {

const Text& self(const Call& call) {
  return call[0].text();
}

Value list_of(std::vector<Text> parts) {
  std::vector<Value> items;
  for (Text& part : parts) items.emplace_back(std::move(part));
  return Value::list(std::move(items));
}

// Splits at white space, from the left.
std::vector<Text> split_space(const Text& text, size_t n_max) {
  std::vector<Text> parts;
  const std::string_view bytes = text.view();
  size_t at = 0;
  while (true) {
    at += strip_from_left(bytes.substr(at), nullptr);
    if (at >= bytes.size()) return parts;
    if (parts.size() >= n_max) break;
    size_t end = at;
    while (end < bytes.size() && !is_space(char_code(bytes, end))) end += char_bytes(bytes, end);
    parts.push_back(text.substr(at, end - at));
    at = end;
    if (parts.size() > kMaxPieces) fail("a text splits into more than {} pieces", kMaxPieces);
  }
  parts.push_back(text.substr(at));
  return parts;
}

std::vector<Text> rsplit_space(const Text& text, size_t n_max) {
  std::vector<Text> parts = split_space(text, npos);
  if (parts.size() <= n_max) return parts;
  // The last n_max words, preceded by all the text before them.
  std::vector<Text> kept(parts.end() - n_max, parts.end());
  size_t end = end_after_strip(text.view(), nullptr);
  for (size_t i = 0; i < n_max; ++i) {
    end -= parts[parts.size() - 1 - i].size();
    end = end_after_strip(text.view().substr(0, end), nullptr);
  }
  kept.insert(kept.begin(), text.substr(0, end));
  return kept;
}

std::vector<Text> split_at(const Text& text, const std::string& separator, size_t n_max) {
  std::vector<Text> parts;
  size_t at = 0;
  while (parts.size() < n_max) {
    const size_t found = find_text(text.view(), separator, at);
    if (found == npos) break;
    parts.push_back(text.substr(at, found - at));
    at = found + separator.size();
    if (parts.size() > kMaxPieces) fail("a text splits into more than {} pieces", kMaxPieces);
  }
  parts.push_back(text.substr(at));
  return parts;
}

std::vector<Text> rsplit_at(const Text& text, const std::string& separator, size_t n_max) {
  std::vector<Text> parts;
  const std::string backwards(text.bytes().rbegin(), text.bytes().rend());
  const std::string wanted(separator.rbegin(), separator.rend());
  size_t end = text.size();
  while (parts.size() < n_max) {
    const size_t found = find_text(backwards, wanted, text.size() - end);
    if (found == npos) break;
    const size_t begin = text.size() - found;  // of the part
    parts.push_back(text.substr(begin, end - begin));
    end = begin - separator.size();
    if (parts.size() > kMaxPieces) fail("a text splits into more than {} pieces", kMaxPieces);
  }
  parts.push_back(text.substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool FromRight>
Value split(Call& call) {
  const int64_t max = call.integer_or(2, -1);
  const size_t n_max = max < 0 ? npos : static_cast<size_t>(max);
  if (!call.given(1))
    return list_of(FromRight ? rsplit_space(self(call), n_max) : split_space(self(call), n_max));
  const std::string& separator = call.text(1).bytes();
  if (separator.empty()) fail("empty separator");
  return list_of(FromRight ? rsplit_at(self(call), separator, n_max)
                           : split_at(self(call), separator, n_max));
}

template <bool Left, bool Right>
Value strip(Call& call) {
  return Value(stripped(self(call), call[1], Left, Right));
}

// The bytes [begin, end) of self selected by the start and end arguments of find() and others; nullopt if
// start is past the end.
std::optional<ByteSpan> searched(const Call& call, size_t i_start) {
  const Text& text = self(call);
  if (!call.given(i_start) && !call.given(i_start + 1)) return ByteSpan{0, text.size()};
  const int64_t n = static_cast<int64_t>(count_chars(text.view()));
  const auto clamp = [n](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + n : at, 0, n); };
  const int64_t start = call.integer_or(i_start, 0), end = clamp(call.integer_or(i_start + 1, n));
  if (start > n || clamp(start) > end) return std::nullopt;
  return ByteSpan{char_offset(text.view(), static_cast<size_t>(clamp(start))),
                  char_offset(text.view(), static_cast<size_t>(end))};
}

template <bool AtEnd>
Value starts_or_ends(Call& call) {
  const auto span = searched(call, 2);
  if (!span) return Value(false);
  const std::string_view text = self(call).view().substr(span->begin, span->end - span->begin);
  const auto matches = [&](const Value& affix) {
    require_defined(affix);
    if (!affix.is_string()) {
      fail("{} first arg must be str or a tuple of str, not {}", AtEnd ? "endswith" : "startswith",
           type_name(affix));
    }
    return AtEnd ? text.ends_with(affix.string()) : text.starts_with(affix.string());
  };
  if (!call[1].is_list(Flavor::tuple)) return Value(matches(call[1]));
  return Value(std::any_of(call[1].items().begin(), call[1].items().end(), matches));
}

// Returns the position of the match in characters; -1 if there is none.
template <bool FromRight>
int64_t find_position(const Call& call) {
  const std::string& wanted = call.text(1).bytes();
  const auto span = searched(call, 2);
  if (!span) return -1;
  const std::string_view text = self(call).view().substr(span->begin, span->end - span->begin);
  const size_t found = FromRight ? find_last_text(text, wanted) : find_text(text, wanted);
  return found == npos ? -1
                       : static_cast<int64_t>(count_chars(self(call).view().substr(0, span->begin + found)));
}

template <bool FromRight>
Value find(Call& call) {
  return Value(find_position<FromRight>(call));
}

template <bool FromRight>
Value index(Call& call) {
  const int64_t at = find_position<FromRight>(call);
  if (at < 0) fail("substring not found");
  return Value(at);
}

Value str_count(Call& call) {
  const std::string& wanted = call.text(1).bytes();
  const auto span = searched(call, 2);
  if (!span) return Value(int64_t{0});
  const std::string_view text = self(call).view().substr(span->begin, span->end - span->begin);
  if (wanted.empty()) return Value(static_cast<int64_t>(count_chars(text)) + 1);
  int64_t n = 0;
  for (size_t at = find_text(text, wanted); at != npos; at = find_text(text, wanted, at + wanted.size())) {
    ++n;
  }
  return Value(n);
}

Value str_replace(Call& call) {
  return replaced(self(call), call.text(1), call.text(2), call.integer_or(3, -1));
}

Value str_join(Call& call) {
  Text out;
  const std::vector<Value> items = iterate(call[1]);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) {
      fail("sequence item {}: expected str instance, {} found", i, type_name(items[i]));
    }
    if (i > 0) out.append(self(call));
    out.append(items[i].text());
  }
  return Value(std::move(out));
}

// Lower-cases letters that follow a letter, title-cases the others.
Value str_title(Call& call) {
  Text out;
  bool in_word = false;
  for (size_t at = 0, n = 0; at < self(call).size(); at += n) {
    n = char_bytes(self(call).view(), at);
    const uint32_t code = char_code(self(call).view(), at);
    if (!is_alpha(code))
      out.append(self(call), at, n);
    else
      out.append(in_word ? to_lower(code) : to_title(code), self(call).origin_at(at));
    in_word = is_alpha(code);
  }
  return Value(std::move(out));
}

Value swapcase(Call& call) {
  Text out;
  for (size_t at = 0, n = 0; at < self(call).size(); at += n) {
    n = char_bytes(self(call).view(), at);
    const uint32_t code = char_code(self(call).view(), at);
    if (is_upper(code) || is_lower(code))
      out.append(is_upper(code) ? to_lower(code) : to_upper(code), self(call).origin_at(at));
    else
      out.append(self(call), at, n);
  }
  return Value(std::move(out));
}

Value splitlines(Call& call) {
  return list_of(split_lines(self(call), call.flag(1)));
}

Value removeprefix(Call& call) {
  const bool has = self(call).view().starts_with(call.text(1).view());
  return has ? Value(self(call).substr(call.text(1).size())) : call[0];
}

Value removesuffix(Call& call) {
  const bool has = self(call).view().ends_with(call.text(1).view());
  return has ? Value(self(call).substr(0, self(call).size() - call.text(1).size())) : call[0];
}

template <bool FromRight>
Value partition(Call& call) {
  const std::string& separator = call.text(1).bytes();
  if (separator.empty()) fail("empty separator");
  const size_t at =
      FromRight ? find_last_text(self(call).view(), separator) : find_text(self(call).view(), separator);
  if (at == npos) return FromRight ? Value::tuple({"", "", call[0]}) : Value::tuple({call[0], "", ""});
  return Value::tuple({Value(self(call).substr(0, at)), Value(self(call).substr(at, separator.size())),
                       Value(self(call).substr(at + separator.size()))});
}

template <Side At>
Value justify(Call& call) {
  const Text fill = call.text_or(2, " ");
  if (count_chars(fill.view()) != 1) fail("The fill character must be exactly one character long");
  return Value(justified(self(call), call.integer(1), At, fill));
}

Value zfill(Call& call) {
  const bool sign = self(call).view().starts_with('-') || self(call).view().starts_with('+');
  Text out = self(call).substr(0, sign ? 1 : 0);
  out.append(justified(self(call).substr(sign ? 1 : 0), call.integer(1) - sign, Side::right, "0"));
  return Value(std::move(out));
}

Value format_braces(Call& call) {
  return Value(brace_format(call.in, self(call), call.rest));
}

constexpr Builtin kMethods[] = {
    {"split", "self sep? maxsplit?", split<false>},
    {"rsplit", "self sep? maxsplit?", split<true>},
    {"strip", "self chars?", strip<true, true>},
    {"lstrip", "self chars?", strip<true, false>},
    {"rstrip", "self chars?", strip<false, true>},
    {"startswith", "self prefix start? end?", starts_or_ends<false>},
    {"endswith", "self suffix start? end?", starts_or_ends<true>},
    {"find", "self sub start? end?", find<false>},
    {"rfind", "self sub start? end?", find<true>},
    {"index", "self sub start? end?", index<false>},
    {"rindex", "self sub start? end?", index<true>},
    {"count", "self sub start? end?", str_count},
    {"replace", "self old new count?", str_replace},
    {"join", "self iterable", str_join},
    {"upper", "self", [](Call& c) { return Value(upper(self(c))); }},
    {"lower", "self", [](Call& c) { return Value(lower(self(c))); }},
    {"casefold", "self", [](Call& c) { return Value(lower(self(c))); }},
    {"capitalize", "self", [](Call& c) { return Value(capitalize(self(c))); }},
    {"title", "self", str_title},
    {"swapcase", "self", swapcase},
    {"splitlines", "self keepends?", splitlines},
    {"removeprefix", "self prefix", removeprefix},
    {"removesuffix", "self suffix", removesuffix},
    {"partition", "self sep", partition<false>},
    {"rpartition", "self sep", partition<true>},
    {"ljust", "self width fillchar?", justify<Side::left>},
    {"rjust", "self width fillchar?", justify<Side::right>},
    {"center", "self width fillchar?", justify<Side::center>},
    {"zfill", "self width", zfill},
    {"format", "self *", format_braces},
};

}  // namespace

Builtins string_methods() {
  return kMethods;
}

}  // namespace tandem::jinja
