// Converts the regular expression of `pattern` to GBNF over the characters of a JSON string, escaped as JSON
// requires. A pattern matches anywhere in the text unless anchored with ^ and $, as the specification says.
#include <algorithm>
#include <limits>

#include "sample/json_schema/common.h"

namespace tandem::schema {
namespace {

constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max();

uint64_t saturating_add(uint64_t a, uint64_t b) {
  return a > kUnbounded - b ? kUnbounded : a + b;
}
uint64_t saturating_mul(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kUnbounded : product;
}

// GBNF, with the range of lengths of its texts in characters.
struct Piece {
  std::string gbnf;
  uint64_t min = 0, max = 0;
};

const char* short_escape(uint32_t c) {
  switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return nullptr;
  }
}

// One of these characters, as JSON writes it.
std::string characters(const std::vector<CodeRange>& ranges) {
  std::vector<CodeRange> plain;
  std::vector<std::string> alternatives;
  for (const CodeRange& r : ranges) {
    for (const CodeRange& p : plain_characters()) {
      const uint32_t low = std::max(r.low, p.low), high = std::min(r.high, p.high);
      if (low <= high) plain.push_back({low, high});
    }
  }
  if (!plain.empty()) alternatives.push_back(char_class(plain));
  for (const CodeRange& r : ranges) {
    for (uint32_t c = r.low; c <= std::min<uint32_t>(r.high, '\\'); ++c) {
      if (const char* escape = short_escape(c)) {
        alternatives.push_back(literal(escape));
      } else if (c < 0x20) {
        alternatives.push_back(literal(format("\\u{:04x}", c)));
      }
    }
  }
  return choice(alternatives);
}

std::vector<CodeRange> class_of_letter(uint32_t letter) {
  switch (letter | 0x20) {
    case 'd': return {{'0', '9'}};
    case 'w': return normalized({{'0', '9'}, {'a', 'z'}, {'A', 'Z'}, {'_', '_'}});
    default:
      return normalized({{'\t', '\r'},
                         {' ', ' '},
                         {0xa0, 0xa0},
                         {0x1680, 0x1680},
                         {0x2000, 0x200a},
                         {0x2028, 0x2029},
                         {0x202f, 0x202f},
                         {0x205f, 0x205f},
                         {0x3000, 0x3000},
                         {0xfeff, 0xfeff}});
  }
}

class PatternParser {
 public:
  PatternParser(const std::string& pattern, const Place& place) : pattern_(pattern), place_(place) {
    decode();
  }

  Piece parse() {
    // Anchors are supported at the ends of top-level alternatives.
    std::vector<Piece> alternatives;
    do {
      alternatives.push_back(parse_sequence(0));
    } while (take_if('|'));
    if (!at_end()) fail("a ) without a (");
    return join(alternatives);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    place_.fail("pattern '" + printable(pattern_, 200) + format("', character {}: ", next_ + 1) + message);
  }

  void decode() {
    for (size_t i = 0; i < pattern_.size();) {  // valid UTF-8: it was a JSON string
      const auto lead = static_cast<uint8_t>(pattern_[i]);
      const size_t n = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
      uint32_t c = n == 1 ? lead : lead & (0x7fu >> n);
      for (size_t k = 1; k < n && i + k < pattern_.size(); ++k) c = c << 6 | (pattern_[i + k] & 0x3f);
      text_.push_back(c);
      i += n;
    }
  }

  bool at_end() const { return next_ >= text_.size(); }
  uint32_t peek(size_t ahead = 0) const {
    return next_ + ahead < text_.size() ? text_[next_ + ahead] : kNone;
  }
  bool take_if(uint32_t c) {
    if (peek() != c) return false;
    ++next_;
    return true;
  }

  static Piece any_text() { return {"char*", 0, kUnbounded}; }

  static Piece join(const std::vector<Piece>& alternatives) {
    Piece all = alternatives[0];
    std::vector<std::string> texts;
    for (const Piece& p : alternatives) {
      texts.push_back(p.gbnf);
      all.min = std::min(all.min, p.min);
      all.max = std::max(all.max, p.max);
    }
    all.gbnf = choice(texts);
    return all;
  }

  static void append(Piece& sequence, const Piece& next) {
    sequence.gbnf += (sequence.gbnf.empty() ? "" : " ") + next.gbnf;
    sequence.min = saturating_add(sequence.min, next.min);
    sequence.max = saturating_add(sequence.max, next.max);
  }

  Piece parse_alternatives(size_t depth) {
    std::vector<Piece> alternatives;
    do {
      alternatives.push_back(parse_sequence(depth));
    } while (take_if('|'));
    return join(alternatives);
  }

  Piece parse_sequence(size_t depth) {
    Piece sequence;
    const bool from_start = depth == 0 && take_if('^');
    if (depth == 0 && !from_start) append(sequence, any_text());
    bool to_end = false;
    while (!at_end() && peek() != '|' && peek() != ')') {
      if (depth == 0 && peek() == '$' && (peek(1) == kNone || peek(1) == '|')) {
        ++next_;
        to_end = true;
        break;
      }
      append(sequence, parse_repeated(depth));
    }
    if (depth == 0 && !to_end) append(sequence, any_text());
    if (sequence.gbnf.empty()) sequence.gbnf = "\"\"";
    return sequence;
  }

  Piece parse_repeated(size_t depth) {
    Piece piece = parse_atom(depth);
    uint64_t min = 1, max = 1;
    if (take_if('*')) {
      min = 0, max = kNoLimit;
    } else if (take_if('+')) {
      max = kNoLimit;
    } else if (take_if('?')) {
      min = 0;
    } else if (peek() == '{') {
      parse_bounds(min, max);
    } else {
      return piece;
    }
    take_if('?');  // lazy or not, the matching texts are the same
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
      fail("a repetition of a repetition");
    if (min == 0 && max == 1) {
      piece.gbnf = "( " + piece.gbnf + " )?";
    } else {
      piece.gbnf = "( " + piece.gbnf + " )" + times(min, max);
    }
    piece.min = saturating_mul(piece.min, min);
    piece.max = piece.max == 0 ? 0 : max == kNoLimit ? kUnbounded : saturating_mul(piece.max, max);
    return piece;
  }

  void parse_bounds(uint64_t& min, uint64_t& max) {
    ++next_;
    min = max = parse_count();
    if (take_if(',')) max = peek() == '}' ? kNoLimit : parse_count();
    if (!take_if('}')) fail("needed a }");
    if (max < min) fail("a repetition whose minimum exceeds its maximum");
  }

  uint64_t parse_count() {
    if (peek() < '0' || peek() > '9') fail("needed a number");
    uint64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++next_) {
      value = value * 10 + (peek() - '0');
      if (value > GrammarLimits::kRepetition)
        fail(format("a repetition of more than {}", GrammarLimits::kRepetition));
    }
    return value;
  }

  Piece parse_atom(size_t depth) {
    const uint32_t c = peek();
    if (c == '(') return parse_group(depth);
    if (c == '^' || c == '$')
      fail("^ and $ are supported only at the start and end of the pattern and its alternatives");
    if (c == '*' || c == '+' || c == '?' || c == '{' || c == '}' || c == ']')
      fail("nothing to repeat, or an unmatched bracket");
    ++next_;
    if (c == '[') return one_of(parse_class());
    if (c == '.') return one_of(complement(normalized({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}})));
    if (c == '\\') return one_of(parse_escape(false));
    return one_of({{c, c}});
  }

  static Piece one_of(const std::vector<CodeRange>& ranges) { return {characters(ranges), 1, 1}; }

  Piece parse_group(size_t depth) {
    if (depth >= GrammarLimits::kDepth / 4) fail("groups are nested too deep");
    ++next_;
    if (peek() == '?') {
      if (peek(1) != ':') fail("(? is supported only as (?:");
      next_ += 2;
    }
    Piece piece = parse_alternatives(depth + 1);
    if (!take_if(')')) fail("needed a )");
    piece.gbnf = "( " + piece.gbnf + " )";
    return piece;
  }

  // After the backslash.
  std::vector<CodeRange> parse_escape(bool in_class) {
    const uint32_t c = peek();
    if (c == kNone) fail("a \\ at the end");
    ++next_;
    if (c == 'd' || c == 'w' || c == 's') return class_of_letter(c);
    if (c == 'D' || c == 'W' || c == 'S') return complement(class_of_letter(c));
    const uint32_t one = c == 'n'                                        ? '\n'
                         : c == 'r'                                      ? '\r'
                         : c == 't'                                      ? '\t'
                         : c == 'f'                                      ? '\f'
                         : c == 'v'                                      ? '\v'
                         : c == 'x'                                      ? parse_hex(2)
                         : c == 'u'                                      ? parse_hex(4)
                         : in_class && c == 'b'                          ? '\b'
                         : c == '0' && !(peek() >= '0' && peek() <= '9') ? 0
                                                                         : c;
    const bool is_letter = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter && one == c) fail("this escape is not supported");
    return {{one, one}};
  }

  uint32_t parse_hex(int n) {
    uint32_t value = 0;
    for (int i = 0; i < n; ++i, ++next_) {
      const uint32_t c = peek(), lower = c | 0x20;
      const bool digit = c >= '0' && c <= '9';
      if (!digit && !(lower >= 'a' && lower <= 'f'))
        fail(format("needed an escape of {} hexadecimal digits", n));
      value = value << 4 | (digit ? c - '0' : lower - 'a' + 10);
    }
    if (value >= 0xd800 && value <= 0xdfff) fail("a surrogate is not a character");
    return value;
  }

  std::vector<CodeRange> parse_class() {
    const bool negated = take_if('^');
    std::vector<CodeRange> ranges;
    while (!take_if(']')) {
      if (at_end()) fail("needed a ]");
      std::vector<CodeRange> item = parse_class_item();
      if (peek() == '-' && peek(1) != ']' && peek(1) != kNone) {
        ++next_;
        const std::vector<CodeRange> end = parse_class_item();
        const bool single =
            item.size() == 1 && item[0].low == item[0].high && end.size() == 1 && end[0].low == end[0].high;
        if (!single || end[0].low < item[0].low) fail("an invalid range");
        item[0].high = end[0].low;
      }
      ranges.insert(ranges.end(), item.begin(), item.end());
    }
    ranges = normalized(std::move(ranges));
    if (negated) ranges = complement(ranges);
    if (ranges.empty()) fail("a class without characters");
    return ranges;
  }

  std::vector<CodeRange> parse_class_item() {
    if (take_if('\\')) return parse_escape(true);
    const uint32_t c = text_[next_++];
    return {{c, c}};
  }

  static constexpr uint32_t kNone = 0xffffffff;

  const std::string& pattern_;
  const Place& place_;
  std::vector<uint32_t> text_;
  size_t next_ = 0;
};

}  // namespace

std::string string_matching(const std::string& pattern, const Lengths& lengths, const Place& place) {
  const Piece piece = PatternParser(pattern, place).parse();
  if (piece.min < lengths.min || (lengths.max != kNoLimit && piece.max > lengths.max)) {
    place.fail(
        "pattern together with minLength or maxLength is supported only if all its matches keep to them");
  }
  return "\"\\\"\" " + piece.gbnf + " \"\\\"\"";
}

}  // namespace tandem::schema
