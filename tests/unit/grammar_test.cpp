// Parsing grammars: the notation, errors with line and column, limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "sample/grammar/grammar.h"
#include "support/grammar_text.h"

namespace tandem {
namespace {

using test::accepts;
using testing::HasSubstr;

std::string grammar_refusal(const std::string& gbnf) {
  try {
    Grammar::parse(gbnf, {"g.gbnf", ErrorCode::bad_file});
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_file);
    return e.what();
  }
  return "";
}

TEST(Grammar, TheNotation) {
  const std::tuple<const char*, std::vector<const char*>, std::vector<const char*>> cases[] = {
      {R"(root ::= "a" | "b" "c")", {"a", "bc"}, {"", "b", "ac", "abc"}},
      {R"(root ::= ("a" | "b") "c"?)", {"a", "b", "ac", "bc"}, {"c", "acc"}},
      {R"(root ::= [a-c0-9_-]+)", {"a", "-", "c9_"}, {"", "d", "A"}},
      {R"(root ::= [^a-c\n])",
       {"d", "\xc3\xa9", "\xf0\x9f\xa6\x99"},
       {"a", "\n", "\xc3", "dd", "\xff", "\xed\xa0\x80"}},
      {R"(root ::= [\x41\u00e9\U0001f999\]\[\\\"-])",
       {"A", "\xc3\xa9", "\xf0\x9f\xa6\x99", "]", "[", "\\", "\"", "-"},
       {"B", "x"}},
      {R"(root ::= "\x41\u00e9\t\r\n\\\"é")", {"A\xc3\xa9\t\r\n\\\"\xc3\xa9"}, {"A"}},
      {"root ::= . .",
       {"ab", "\n\n",
        "\xe4\xb8\xad"
        "a"},
       {"a", "abc"}},
      {R"(root ::= "ab"{2})", {"abab"}, {"ab", "ababab", "abb"}},
      {R"(root ::= [ab]{2,} "c")", {"abc", "ababac"}, {"ac", "c"}},
      {R"(root ::= ("a" "b"?){1,3})", {"a", "ab", "abab", "aba", "aaa"}, {"", "b", "aaaa"}},
      {R"(root ::= "a"{0} "b"{0,2} "c"{3,3})", {"ccc", "bccc", "bbccc"}, {"accc", "cc"}},
      {R"(root ::= "a"*"b"+"c"?)", {"b", "aab", "bbc"}, {"a", "ac", ""}},
      {R"(root ::= ("a"?){2,4})", {"", "a", "aaaa"}, {"aaaaa"}},
      {R"(root ::= ("a"?){3} "b")", {"b", "ab", "aaab"}, {"aaaab", "a"}},
      {R"(root ::= (("a"*)*)* "b")", {"b", "aab"}, {"a"}},
      {R"(root ::= ("a"+)+ | ("b" "c"*)?)", {"a", "aaa", "", "b", "bcc"}, {"c", "ab", "cc"}},
      {"# comment\nroot ::= # why\n  x | # a\n  \"b\"\n\n\r\nx ::= ( \"c\"\n | \"d\" ) \"e\"\n  | \"f\" # "
       "end",
       {"b", "ce", "de", "f"},
       {"c", "e"}},
      {"root ::= x-1 y_2\nx-1 ::= \"a\" | \"\"\ny_2 ::= \"b\"", {"b", "ab"}, {"a"}},
      {"\xef\xbb\xbfroot ::= \"\"", {""}, {"a"}},
      {"root ::= \"(\" root \")\" root | \"\"", {"", "()", "(()())()"}, {"(", ")(", "(()"}},
      {"root ::= \"a\" root | \"b\"", {"b", "aaab"}, {"a", "bb"}},
      {"root ::= x x x\nx ::= \"a\" | \"\"", {"", "a", "aa", "aaa"}, {"aaaa"}},
      {"root ::= opt \"a\" root? \nopt ::= \"b\"?", {"a", "ba", "abaa"}, {"b", "bb"}},
  };
  for (const auto& [gbnf, in, out] : cases) {
    SCOPED_TRACE(gbnf);
    for (const char* text : in) EXPECT_TRUE(accepts(gbnf, text)) << text;
    for (const char* text : out) EXPECT_FALSE(accepts(gbnf, text)) << text;
  }
}

TEST(Grammar, ErrorsSayWhereAndWhat) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "1:1: rule 'root', the start of the grammar, is missing"},
      {"x ::= \"a\"", "rule 'root', the start of the grammar, is missing"},
      {"root ::= x\n\ny ::= z", "g.gbnf:1:10: rule 'x' is not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "2:1: rule 'root' is defined twice, first in line 1"},
      {"root ::= root \"a\" | \"b\"",
       "1:1: left recursion: a rule calls itself before it has read anything: root -> root"},
      {"root ::= a\na ::= b \"x\"\nb ::= \"y\"? c\nc ::= a | \"z\"", "left recursion"},
      {"root ::= a\na ::= b{2,9}\nb ::= \"\" (\"c\"* a)",
       "2:1: left recursion: a rule calls itself before it has read anything: a -> b -> a"},
      {"root ::= (root?)+ \"a\"", "left recursion"},
      {"root ::= \"a\"{1000000}", "1:14: a repetition of more than 100000"},
      {"root ::= \"a\"{1,1000000}", "1:16: a repetition of more than"},
      {"root ::= \"a\"{99999999999999999999}", "a repetition of more than"},
      {"root ::= ((\"a\"{90000}) \"b\"{90000} | [a-z]{100000}){2}\n"
       "x ::= ([ab]{90000} \"abcdefghij\"{90000}){90000}\ny ::= (((x){100000}){100000}){100000} z\n"
       "z ::= [x]{100000} [x]{100000} [x]{100000} [x]{100000}",
       "more than 1048576 states"},
      {"root ::= \"a\"{3,2}", "the minimum exceeds the maximum"},
      {"root ::= \"a\"{,2}", "needed a number of repetitions"},
      {"root ::= \"a\"{2", "needed }"},
      {"root ::= \"abc", "1:10: a literal that is not closed"},
      {"root ::= [abc", "1:10: a class that is not closed"},
      {"root ::= [z-a]", "1:11: range U+007A-U+0061"},
      {"root ::= []", "matches nothing"},
      {"root ::= [^\\x00-\\U0010ffff]", "matches nothing"},
      {"root ::= \"\\q\"", "1:11: unknown escape"},
      {"root ::= \"\\u12\"", "only 2"},
      {"root ::= \"\\U00110000\"", "not a character"},
      {"root ::= \"\\ud800\"", "not a character"},
      {"root ::= (\"a\"\n  \"b\"", "2:6: the text ends, needed ) for the ( at 1:10"},
      {"root ::= \"a\")", "1:13: found ')' after the end of rule 'root'"},
      {"root ::= \"a\" @", "1:14: found '@', needed a literal"},
      {"root = \"a\"", "1:6: found '=', needed ::="},
      {"root ::= \"a\" x ::= \"b\"", "needs a line of its own"},
      {"root ::= (\"a\"\nx ::= \"b\"", "starts inside parentheses"},
      {"root ::= *", "found '*'"},
      {"::= \"a\"", "1:1: found ':', needed the name of a rule"},
      {"root ::= \"\xff\"", "1:11: found byte 0xff, needed UTF-8"},
      {"root ::= \"\xc0\x80\"", "needed UTF-8"},
      {"root ::= \"é\" @", "1:14: found"},
      {"root ::= \"a\" root", "rule 'root' has no end"},
      {"root ::= \"a\" | x\nx ::= [b] y\ny ::= x x", "has no end"},
  };
  for (const auto& [gbnf, expected] : cases) EXPECT_THAT(grammar_refusal(gbnf), HasSubstr(expected)) << gbnf;
}

TEST(Grammar, HostileTextsAreCheap) {
  EXPECT_THAT(grammar_refusal("root ::= " + std::string(100000, '(')), HasSubstr("nested deeper"));
  EXPECT_THAT(grammar_refusal("root ::= \"a\"" + std::string(100000, '?')), HasSubstr("nested deeper"));
  EXPECT_THAT(grammar_refusal("root ::= " + std::string(5 << 20, ' ')), HasSubstr("the limit is"));
  // Nested repetitions add up, they do not multiply.
  const std::string nested = "root ::= (((\"a\"{1000}){1000}){1000}){1000}";
  EXPECT_EQ(grammar_refusal(nested), "");
  EXPECT_EQ(grammar_refusal("root ::= " + std::string(200, '(') + "[a]+" +
                            [] {
                              std::string text;
                              for (int i = 0; i < 200; ++i) text += ")+";
                              return text;
                            }()),
            "");
  // A chain of rules, each starting with the next; forwards and backwards.
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 20000; ++i)
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " | \"a\"\n";
  EXPECT_TRUE(accepts(chain + "r20000 ::= \"b\"", "b"));
  EXPECT_THAT(grammar_refusal(chain + "r20000 ::= r0"), HasSubstr("left recursion"));
}

// Highly ambiguous texts, and deeply nested ones.
TEST(Grammar, AmbiguityAndDepthStayCheap) {
  GrammarStates twice(Grammar::parse("root ::= \"x\" root \"y\" | \"x\" root \"z\" | \"\""));
  EXPECT_TRUE(accepts(twice, std::string(400, 'x') + std::string(200, 'y') + std::string(200, 'z')));
  EXPECT_FALSE(accepts(twice, std::string(400, 'x') + std::string(399, 'y')));
  GrammarStates catalan(Grammar::parse("root ::= \"a\" (root root?)?"));
  EXPECT_TRUE(accepts(catalan, std::string(300, 'a')));
  GrammarStates nullable(Grammar::parse("root ::= (\"a\"?){100000}"));
  EXPECT_TRUE(accepts(nullable, std::string(300, 'a')));
  GrammarStates deep(Grammar::parse("root ::= \"[\" root? \"]\""));
  const size_t n = 200000;
  EXPECT_TRUE(accepts(deep, std::string(n, '[') + std::string(n, ']')));
  // A tail call takes no stack, so the states repeat.
  GrammarStates tail(Grammar::parse("root ::= [ab] root | \"c\""));
  EXPECT_TRUE(accepts(tail, std::string(100000, 'a') + "c"));
  EXPECT_LT(tail.n_states(), 10u);
}

TEST(Grammar, CachedStatesCanBeDropped) {
  const auto grammar =
      Grammar::parse("root ::= \"[\" (root (\",\" root)*)? \"]\" | \"x\" root | \"x\" root \"y\" | \"z\"");
  GrammarStates kept(grammar), forgetful(grammar);
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    uint32_t a = kept.start(), b = forgetful.start();
    for (int i = 0; i < 40 && a != GrammarStates::kDead; ++i) {
      const auto byte = static_cast<uint8_t>("[],xyz"[random() % 6]);
      const uint32_t next_a = kept.advance(a, byte), next_b = forgetful.advance(b, byte);
      ASSERT_EQ(next_a == GrammarStates::kDead, next_b == GrammarStates::kDead);
      if (next_a == GrammarStates::kDead) continue;  // try another byte
      a = next_a, b = next_b;
      ASSERT_EQ(kept.is_complete(a), forgetful.is_complete(b));
      ASSERT_EQ(kept.is_finished(a), forgetful.is_finished(b));
      if (random() % 3 == 0) {
        EXPECT_TRUE(forgetful.forget_if_large(std::span(&b, 1), 1));
      }
    }
  }
}

}  // namespace
}  // namespace tandem
