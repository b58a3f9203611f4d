// Recursive descent over the text. Each parse_* function stops behind what it read and, unless noted, behind
// the white space after it.
#include <optional>
#include <unordered_map>

#include "sample/grammar/syntax.h"

namespace tandem {
namespace {

using Kind = SyntaxNode::Kind;

bool is_name_char(uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

int hex_value(uint32_t c) {
  if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? static_cast<int>(c - 'a') + 10 : -1;
}

class Parser {
 public:
  Parser(std::string_view text, const GrammarSource& source) : text_(text), source_(source) {}

  GrammarSyntax parse() {
    if (text_.size() > GrammarLimits::kTextBytes) {
      fail(here(), format("{} bytes, the limit is {}", text_.size(), GrammarLimits::kTextBytes));
    }
    if (text_.substr(0, 3) == "\xef\xbb\xbf") offset_ = 3;  // byte order mark
    skip_space(true);
    while (!at_end()) parse_rule();
    for (size_t i = 0; i < out_.rules.size(); ++i) {
      if (!defined_[i]) fail(out_.rules[i].at, "rule " + quoted(out_.rules[i].name) + " is not defined");
    }
    const auto root = index_.find("root");
    if (root == index_.end()) fail({}, "rule 'root', the start of the grammar, is missing");
    out_.root = root->second;
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(GrammarPosition at, const std::string& message) const {
    grammar_error(source_, at, message);
  }
  static std::string quoted(std::string_view text) { return "'" + printable(text) + "'"; }

  bool at_end() const { return offset_ >= text_.size(); }
  GrammarPosition here() const { return {line_, column_}; }
  // Returns the next byte; 0 at the end. (No caller looks for a NUL in the text.)
  char peek(size_t ahead = 0) const { return offset_ + ahead < text_.size() ? text_[offset_ + ahead] : '\0'; }
  bool looking_at(std::string_view what) const { return text_.substr(offset_, what.size()) == what; }

  // Reads the next character.
  uint32_t take() {
    const auto lead = static_cast<uint8_t>(text_[offset_]);
    const size_t n = lead < 0x80   ? 1
                     : lead < 0xc2 ? 0
                     : lead < 0xe0 ? 2
                     : lead < 0xf0 ? 3
                     : lead < 0xf5 ? 4
                                   : 0;
    uint32_t c = n <= 1 ? lead : lead & (0x7fu >> n);
    bool valid = n > 0 && offset_ + n <= text_.size();
    for (size_t i = 1; valid && i < n; ++i) {
      const auto byte = static_cast<uint8_t>(text_[offset_ + i]);
      valid = (byte & 0xc0) == 0x80;
      c = c << 6 | (byte & 0x3f);
    }
    constexpr uint32_t kFirstOfLength[] = {0, 0, 0x80, 0x800, 0x10000};
    if (!valid || c < kFirstOfLength[n] || c > kLastCodePoint || (c >= 0xd800 && c <= 0xdfff)) {
      fail(here(), format("found byte 0x{:02x}, needed UTF-8", lead));
    }
    offset_ += n;
    ++column_;
    if (c == '\n') {
      ++line_;
      column_ = 1;
    }
    return c;
  }

  void skip_space(bool newlines) {
    while (!at_end()) {
      const char c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n') take();
      } else if (c == ' ' || c == '\t' || c == '\r' || (newlines && c == '\n')) {
        take();
      } else {
        return;
      }
    }
  }

  // Describes the next character, for messages.
  std::string found() const {
    if (at_end()) return "the text ends";
    if (peek() == '\n') return "the line ends";
    size_t n = 1;
    while (offset_ + n < text_.size() && (text_[offset_ + n] & 0xc0) == 0x80) ++n;
    return "found " + quoted(text_.substr(offset_, n));
  }

  std::string parse_name() {
    const size_t start = offset_;
    while (is_name_char(static_cast<uint8_t>(peek()))) take();
    return std::string(text_.substr(start, offset_ - start));
  }

  // Returns the index of a rule; `at` is where it is first used.
  uint32_t rule_index(const std::string& name, GrammarPosition at) {
    const auto [entry, is_new] = index_.try_emplace(name, static_cast<uint32_t>(out_.rules.size()));
    if (is_new) {
      if (out_.rules.size() >= GrammarLimits::kRules) {
        fail(at, format("more than {} rules", GrammarLimits::kRules));
      }
      out_.rules.push_back({name, at, 0});
      defined_.push_back(false);
    }
    return entry->second;
  }

  void parse_rule() {
    const GrammarPosition at = here();
    const std::string name = parse_name();
    if (name.empty()) fail(at, found() + ", needed the name of a rule");
    skip_space(false);
    if (!looking_at("::=")) fail(here(), found() + ", needed ::= after " + quoted(name));
    for (int i = 0; i < 3; ++i) take();
    const uint32_t index = rule_index(name, at);
    if (defined_[index]) {
      fail(at,
           "rule " + quoted(name) + format(" is defined twice, first in line {}", out_.rules[index].at.line));
    }
    defined_[index] = true;
    out_.rules[index].at = at;
    skip_space(true);
    const uint32_t body = parse_choice(0);
    out_.rules[index].body = body;
    if (!at_end() && peek() != '\n') fail(here(), found() + " after the end of rule " + quoted(name));
    skip_space(true);
  }

  uint32_t add(SyntaxNode node) {
    out_.nodes.push_back(std::move(node));
    return static_cast<uint32_t>(out_.nodes.size() - 1);
  }

  // Whether the next line that is not empty continues the rule with |.
  bool continues_below() {
    const auto saved = std::tuple(offset_, line_, column_);
    skip_space(true);
    if (peek() == '|') return true;
    std::tie(offset_, line_, column_) = saved;
    return false;
  }

  uint32_t parse_choice(size_t depth) {
    SyntaxNode choice;
    choice.kind = Kind::choice;
    choice.at = here();
    choice.children.push_back(parse_sequence(depth));
    while (peek() == '|' || (peek() == '\n' && continues_below())) {
      take();
      skip_space(true);
      choice.children.push_back(parse_sequence(depth));
    }
    return choice.children.size() == 1 ? choice.children[0] : add(std::move(choice));
  }

  uint32_t parse_sequence(size_t depth) {
    SyntaxNode sequence;
    sequence.at = here();
    while (const auto element = parse_element(depth)) {
      sequence.children.push_back(parse_repetitions(*element, depth));
    }
    return sequence.children.size() == 1 ? sequence.children[0] : add(std::move(sequence));
  }

  // nullopt at the end of the sequence.
  std::optional<uint32_t> parse_element(size_t depth) {
    SyntaxNode node;
    node.at = here();
    const char c = peek();
    if (c == '"') {
      parse_literal(node);
    } else if (c == '[') {
      parse_class(node);
    } else if (c == '.') {
      take();
      node.kind = Kind::characters;
      node.ranges = complement({});
    } else if (c == '(') {
      return parse_group(depth);
    } else if (is_name_char(static_cast<uint8_t>(c))) {
      node.kind = Kind::rule;
      const std::string name = parse_name();
      skip_space(false);
      if (looking_at("::=")) {
        fail(node.at, "rule " + quoted(name) +
                          (depth > 0 ? " starts inside parentheses" : " needs a line of its own"));
      }
      node.rule = rule_index(name, node.at);
    } else if (at_end() || c == '\n' || c == '|' || c == ')') {
      return std::nullopt;
    } else {
      fail(here(), found() + ", needed a literal, a class, a rule or a group");
    }
    skip_space(depth > 0);
    return add(std::move(node));
  }

  uint32_t parse_group(size_t depth) {
    const GrammarPosition at = here();
    if (depth >= GrammarLimits::kDepth)
      fail(at, format("groups are nested deeper than {}", GrammarLimits::kDepth));
    take();
    skip_space(true);
    const uint32_t inner = parse_choice(depth + 1);
    if (peek() != ')') fail(here(), found() + format(", needed ) for the ( at {}:{}", at.line, at.column));
    take();
    skip_space(depth > 0);
    // A node of its own, so that the group differs from its only element.
    SyntaxNode group;
    group.at = at;
    group.children = {inner};
    return add(std::move(group));
  }

  uint32_t parse_repetitions(uint32_t element, size_t depth) {
    for (size_t n = 0;; ++n) {
      const char c = peek();
      if (c != '*' && c != '+' && c != '?' && c != '{') return element;
      if (depth + n >= GrammarLimits::kDepth) {
        fail(here(), format("repetitions are nested deeper than {}", GrammarLimits::kDepth));
      }
      SyntaxNode repeat;
      repeat.kind = Kind::repeat;
      repeat.at = here();
      repeat.children = {element};
      take();
      repeat.min = c == '+' ? 1 : 0;
      repeat.max = c == '?' ? 1 : kNoLimit;
      if (c == '{') parse_bounds(repeat, depth);
      skip_space(depth > 0);
      element = add(std::move(repeat));
    }
  }

  void parse_bounds(SyntaxNode& repeat, size_t depth) {
    skip_space(depth > 0);
    repeat.min = repeat.max = parse_count();
    skip_space(depth > 0);
    if (peek() == ',') {
      take();
      skip_space(depth > 0);
      repeat.max = peek() == '}' ? kNoLimit : parse_count();
      skip_space(depth > 0);
    }
    if (peek() != '}') fail(here(), found() + ", needed } of a repetition");
    take();
    if (repeat.max < repeat.min)
      fail(repeat.at,
           format("repetition {{{},{}}}: the minimum exceeds the maximum", repeat.min, repeat.max));
  }

  uint32_t parse_count() {
    const GrammarPosition at = here();
    uint32_t value = 0;
    bool any = false;
    for (; peek() >= '0' && peek() <= '9'; any = true) {
      value = value * 10 + (take() - '0');
      if (value > GrammarLimits::kRepetition) {
        fail(at, format("a repetition of more than {}", GrammarLimits::kRepetition));
      }
    }
    if (!any) fail(at, found() + ", needed a number of repetitions");
    return value;
  }

  void parse_literal(SyntaxNode& node) {
    node.kind = Kind::literal;
    take();
    while (peek() != '"') append_utf8(node.literal, parse_char(node.at, "a literal"));
    take();
  }

  void parse_class(SyntaxNode& node) {
    node.kind = Kind::characters;
    take();
    const bool negated = peek() == '^';
    if (negated) take();
    while (peek() != ']' || at_end()) {
      const GrammarPosition at = here();
      const uint32_t low = parse_char(node.at, "a class");
      uint32_t high = low;
      if (peek() == '-' && peek(1) != ']') {
        take();
        high = parse_char(node.at, "a class");
      }
      if (high < low) fail(at, format("range U+{:04X}-U+{:04X} is in the wrong order", low, high));
      node.ranges.push_back({low, high});
    }
    take();
    node.ranges = normalized(std::move(node.ranges));
    if (negated) node.ranges = complement(node.ranges);
    if (node.ranges.empty()) fail(node.at, "a class without characters matches nothing");
  }

  // Reads one character or escape of a literal or class that starts at `start`.
  uint32_t parse_char(GrammarPosition start, const char* where) {
    if (at_end()) fail(start, format("{} that is not closed", where));
    const GrammarPosition at = here();
    const uint32_t c = take();
    if (c != '\\') return c;
    if (at_end()) fail(start, format("{} that is not closed", where));
    const uint32_t escaped = take();
    switch (escaped) {
      case 'x': return parse_hex(at, 2);
      case 'u': return parse_hex(at, 4);
      case 'U': return parse_hex(at, 8);
      case 't': return '\t';
      case 'r': return '\r';
      case 'n': return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
      case '\'':
      case '/': return escaped;
      default: fail(at, "unknown escape, needed one of \\x \\u \\U \\t \\r \\n \\\\ \\\" \\[ \\]");
    }
  }

  uint32_t parse_hex(GrammarPosition at, int n_digits) {
    uint32_t value = 0;
    for (int i = 0; i < n_digits; ++i) {
      const int digit = hex_value(static_cast<uint8_t>(peek()));
      if (digit < 0) fail(at, format("an escape of {} hexadecimal digits has only {}", n_digits, i));
      value = value << 4 | static_cast<uint32_t>(digit);
      take();
    }
    if (value > kLastCodePoint || (value >= 0xd800 && value <= 0xdfff)) {
      fail(at, format("U+{:04X} is not a character", value));
    }
    return value;
  }

  std::string_view text_;
  const GrammarSource& source_;
  size_t offset_ = 0;
  uint32_t line_ = 1, column_ = 1;
  GrammarSyntax out_;
  std::vector<bool> defined_;  // of the rules
  std::unordered_map<std::string, uint32_t> index_;
};

}  // namespace

void grammar_error(const GrammarSource& source, GrammarPosition at, const std::string& message) {
  throw_error(source.code, "{}:{}:{}: {}", source.name, at.line, at.column, message);
}

GrammarSyntax parse_gbnf(std::string_view text, const GrammarSource& source) {
  return Parser(text, source).parse();
}

}  // namespace tandem
