// The language of a grammar, compared with a matcher that tries every parse.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>

#include "sample/grammar/grammar.h"
#include "support/grammar_text.h"

namespace tandem {
namespace {

using test::accepts;

// All positions where a match of a node may end, for each start, by exhaustive search.
class ReferenceMatcher {
 public:
  ReferenceMatcher(const GrammarSyntax& syntax, std::string text) : syntax_(syntax), text_(std::move(text)) {}

  bool matches() { return ends(syntax_.rules[syntax_.root].body, 0).count(text_.size()) > 0; }

 private:
  using Ends = std::set<size_t>;

  Ends ends(uint32_t node, size_t from) {
    const auto key = std::pair(node, from);
    const auto known = memo_.find(key);
    if (known != memo_.end()) return known->second;
    return memo_[key] = compute(syntax_.nodes[node], from);
  }

  Ends compute(const SyntaxNode& node, size_t from) {
    using Kind = SyntaxNode::Kind;
    Ends result;
    switch (node.kind) {
      case Kind::literal:
        if (text_.compare(from, node.literal.size(), node.literal) == 0)
          result.insert(from + node.literal.size());
        break;
      case Kind::characters:
        if (const size_t n = character_in(node.ranges, from)) result.insert(from + n);
        break;
      case Kind::rule: return ends(syntax_.rules[node.rule].body, from);
      case Kind::sequence:
        result.insert(from);
        for (const uint32_t child : node.children) result = behind_all(result, child);
        break;
      case Kind::choice:
        for (const uint32_t child : node.children) result.merge(ends(child, from));
        break;
      case Kind::repeat: {
        Ends now = {from};
        for (uint32_t i = 0; i <= std::min<uint32_t>(node.max, 30) && !now.empty(); ++i) {
          if (i >= node.min) result.insert(now.begin(), now.end());
          now = behind_all(now, node.children[0]);
        }
        break;
      }
    }
    return result;
  }

  Ends behind_all(const Ends& starts, uint32_t node) {
    Ends result;
    for (const size_t start : starts) result.merge(ends(node, start));
    return result;
  }

  // Bytes of the character at `from` if it is in the ranges.
  size_t character_in(const std::vector<CodeRange>& ranges, size_t from) const {
    if (from >= text_.size()) return 0;
    const auto lead = static_cast<uint8_t>(text_[from]);
    const size_t n = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    uint32_t c = n == 1 ? lead : lead & (0x7fu >> n);
    for (size_t i = 1; i < n && from + i < text_.size(); ++i)
      c = c << 6 | (static_cast<uint8_t>(text_[from + i]) & 0x3f);
    std::string bytes;  // invalid UTF-8 has no such encoding
    if (c <= kLastCodePoint) append_utf8(bytes, c);
    if (c > kLastCodePoint || text_.compare(from, n, bytes) != 0) return 0;
    const bool in =
        std::any_of(ranges.begin(), ranges.end(), [c](CodeRange r) { return r.low <= c && c <= r.high; });
    return in ? n : 0;
  }

  const GrammarSyntax& syntax_;
  std::string text_;
  std::map<std::pair<uint32_t, size_t>, Ends> memo_;
};

// A text of the grammar, if one is found within this number of choices.
class Producer {
 public:
  Producer(const GrammarSyntax& syntax, std::mt19937& random) : syntax_(syntax), random_(random) {}

  std::string produce() {
    n_steps_ = 0;
    std::string text;
    return produce(syntax_.rules[syntax_.root].body, text) ? text : "";
  }

 private:
  bool produce(uint32_t index, std::string& out) {
    if (++n_steps_ > 300) return false;
    const SyntaxNode& node = syntax_.nodes[index];
    using Kind = SyntaxNode::Kind;
    switch (node.kind) {
      case Kind::literal: out += node.literal; return true;
      case Kind::characters: {
        const CodeRange r = node.ranges[random_() % node.ranges.size()];
        append_utf8(out, r.low);
        return true;
      }
      case Kind::rule: return produce(syntax_.rules[node.rule].body, out);
      case Kind::choice: return produce(node.children[random_() % node.children.size()], out);
      case Kind::sequence:
        return std::all_of(node.children.begin(), node.children.end(),
                           [&](uint32_t child) { return produce(child, out); });
      case Kind::repeat: {
        const uint32_t most = std::min(node.max, node.min + 3);
        for (uint32_t n = node.min + static_cast<uint32_t>(random_() % (most - node.min + 1)); n > 0; --n) {
          if (!produce(node.children[0], out)) return false;
        }
        return true;
      }
    }
    return false;
  }

  const GrammarSyntax& syntax_;
  std::mt19937& random_;
  size_t n_steps_ = 0;
};

// A random grammar over a small alphabet; many are rejected, mostly for left recursion.
std::string random_grammar(std::mt19937& random) {
  const int n_rules = 1 + static_cast<int>(random() % 4);
  const std::function<std::string(int)> expression = [&](int depth) -> std::string {
    static const char* const atoms[] = {"\"a\"", "\"b\"", "\"ab\"", "[ab]",   "[a-cé]",  "\"\"",
                                        "\"é\"", "\"[\"", "\"]\"",  "[é-中]", "\"🦙\""};
    const auto kind = random() % (depth > 3 ? 2 : 8);
    if (kind == 0) return "r" + std::to_string(random() % static_cast<unsigned>(n_rules));
    if (kind <= 2) return atoms[random() % std::size(atoms)];
    if (kind <= 4) return expression(depth + 1) + " " + expression(depth + 1);
    if (kind == 5) return "(" + expression(depth + 1) + " | " + expression(depth + 1) + ")";
    static const char* const repeats[] = {"*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}"};
    return "(" + expression(depth + 1) + ")" + repeats[random() % std::size(repeats)];
  };
  std::string text = "root ::= r0\n";
  for (int i = 0; i < n_rules; ++i) {
    text += "r" + std::to_string(i) + " ::= " + (random() % 2 ? "\"a\" " : "") + expression(0) + "\n";
  }
  return text;
}

void compare(GrammarStates& states, const GrammarSyntax& syntax, const std::string& text,
             const std::string& gbnf) {
  const bool expected = ReferenceMatcher(syntax, text).matches();
  ASSERT_EQ(accepts(states, text), expected) << gbnf << "text: " << text;
  for (size_t n = 0; expected && n <= text.size(); ++n) {
    ASSERT_NE(test::state_behind(states, text.substr(0, n)), GrammarStates::kDead)
        << gbnf << text.substr(0, n);
  }
}

TEST(GrammarReference, RandomGrammarsHaveTheSameTexts) {
  std::mt19937 random(11);
  static const char* const alphabet[] = {"a", "b", "c", "[", "]", "é", "è", "中", "🦙", "\xc3"};
  int n_grammars = 0, n_accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::string gbnf = random_grammar(random);
    std::shared_ptr<const Grammar> grammar;
    try {
      grammar = Grammar::parse(gbnf);
    } catch (const Error&) {
      continue;
    }
    ++n_grammars;
    const GrammarSyntax syntax = parse_gbnf(gbnf);
    GrammarStates states(grammar);
    Producer producer(syntax, random);
    for (int i = 0; i < 12; ++i) {
      std::string text = producer.produce();
      if (text.size() > 24) continue;
      ASSERT_NO_FATAL_FAILURE(compare(states, syntax, text, gbnf));
      n_accepted += accepts(states, text);
      for (int k = 0; k < 3; ++k) {  // and changed
        const size_t at = random() % (text.size() + 1);
        if (random() % 2 == 0) text.erase(at, 1);
        if (random() % 2 == 0)
          text.insert(std::min(at, text.size()), alphabet[random() % std::size(alphabet)]);
        ASSERT_NO_FATAL_FAILURE(compare(states, syntax, text, gbnf));
      }
    }
  }
  EXPECT_GT(n_grammars, 500);
  EXPECT_GT(n_accepted, 3000);
}

TEST(GrammarReference, ExpressionsAndListsHaveTheSameTexts) {
  const std::string grammars[] = {
      "root ::= value\nvalue ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws | [0-9]{1,3} ws | str ws\n"
      "str ::= \"a\" [b-é中]* \"c\"\nws ::= | [ab]{0,2}\n",
      "root ::= term (\"a\" term)*\nterm ::= factor (\"b\" factor)*\nfactor ::= \"0\" | \"[\" root \"]\" | "
      "\"c\" factor\n",
  };
  std::mt19937 random(12);
  static const char* const alphabet[] = {"a", "b", "c", "[", "]", ",", "0", "é", "中"};
  for (const std::string& gbnf : grammars) {
    const GrammarSyntax syntax = parse_gbnf(gbnf);
    GrammarStates states(Grammar::parse(gbnf));
    Producer producer(syntax, random);
    for (int i = 0; i < 500; ++i) {
      std::string text = producer.produce();
      if (text.size() > 40) continue;
      ASSERT_NO_FATAL_FAILURE(compare(states, syntax, text, gbnf));
      const size_t at = random() % (text.size() + 1);
      if (random() % 2 == 0) text.erase(at, 1);
      text.insert(std::min(at, text.size()), alphabet[random() % std::size(alphabet)]);
      ASSERT_NO_FATAL_FAILURE(compare(states, syntax, text, gbnf));
    }
  }
}

}  // namespace
}  // namespace tandem
