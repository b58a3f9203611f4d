#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

namespace tandem {
namespace {

using testing::ElementsAre;

std::vector<std::string> pieces_of(const std::string& name, const std::string& text) {
  const PreTokenizerSpec* spec = find_pre_tokenizer(name);
  EXPECT_NE(spec, nullptr) << name;
  if (spec == nullptr) return {};
  std::vector<std::string> pieces;
  for (const std::string_view piece : PreTokenizer(*spec).split(text)) pieces.emplace_back(piece);
  return pieces;
}

TEST(PreTokenizer, EveryNameIsThereOnce) {
  std::set<std::string> seen;
  for (const PreTokenizerSpec& spec : all_pre_tokenizers()) {
    std::istringstream names{std::string(spec.names)};
    for (std::string name; names >> name;) {
      EXPECT_TRUE(seen.insert(name).second) << name;
      EXPECT_EQ(find_pre_tokenizer(name), &spec) << name;
    }
  }
  EXPECT_EQ(find_pre_tokenizer("default"), &default_pre_tokenizer());
  EXPECT_EQ(find_pre_tokenizer(""), nullptr);
  EXPECT_EQ(find_pre_tokenizer("llama"), nullptr);
  EXPECT_EQ(find_pre_tokenizer("llama-bpe llama3"), nullptr);
}

TEST(PreTokenizer, Gpt2KeepsTheSpaceBeforeAWord) {
  EXPECT_THAT(pieces_of("gpt-2", "I've  seen 123 things!\n\n ok "),
              ElementsAre("I", "'ve", " ", " seen", " 123", " things", "!", "\n\n", " ok", " "));
  EXPECT_THAT(pieces_of("gpt-2", "I'VE"), ElementsAre("I", "'", "VE"));
}

TEST(PreTokenizer, StarcoderTakesDigitsOneByOne) {
  EXPECT_THAT(pieces_of("starcoder", "x 12"), ElementsAre("x", " ", "1", "2"));
}

TEST(PreTokenizer, Llama3TakesDigitsByThreesAndContractionsInAnyCase) {
  EXPECT_THAT(pieces_of("llama-bpe", "a 12345 I'LL\r\n\n  go"),
              ElementsAre("a", " ", "123", "45", " I", "'LL", "\r\n\n", " ", " go"));
  EXPECT_THAT(pieces_of("llama-bpe", "we'\u017f"), ElementsAre("we", "'\u017f"));  // long s is an s
  EXPECT_THAT(pieces_of("llama-bpe", "(foo)...\n"), ElementsAre("(foo", ")...\n"));
}

TEST(PreTokenizer, Qwen2TakesDigitsOneByOne) {
  EXPECT_THAT(pieces_of("qwen2", "a12 !!"), ElementsAre("a", "1", "2", " !!"));
}

TEST(PreTokenizer, Gpt4oCutsWhereLowerTurnsToUpper) {
  EXPECT_THAT(pieces_of("gpt-4o", "camelCase HTTPServer don't"),
              ElementsAre("camel", "Case", " HTTPServer", " don't"));
  EXPECT_THAT(pieces_of("tekken", "don't12"), ElementsAre("don", "'t", "1", "2"));
}

TEST(PreTokenizer, FalconCutsPunctuationFirstAndLongNumbersFromTheLeft) {
  EXPECT_THAT(pieces_of("falcon", "a==b 1234"), ElementsAre("a", "==", "b", " ", "123", "4"));
}

TEST(PreTokenizer, DeepseekCutsScriptsApart) {
  EXPECT_THAT(pieces_of("deepseek-llm", "ab 中文 c1\n"), ElementsAre("ab", " ", "中文", " c", "1", "\n"));
  EXPECT_THAT(pieces_of("deepseek-llm", "ab   "), ElementsAre("ab", "   "));
  EXPECT_THAT(pieces_of("deepseek-v3", "1234.foo 中文"), ElementsAre("123", "4", ".foo", " ", "中文"));
}

TEST(PreTokenizer, SomeGroupDigitsFromTheRight) {
  EXPECT_THAT(pieces_of("superbpe", "in 1234567 days"), ElementsAre("in ", "1", "234", "567", " days"));
  EXPECT_THAT(pieces_of("tiny_aya", "1234 12345x"), ElementsAre("1", "234", " ", "123", "45", "x"));
  EXPECT_THAT(pieces_of("afmoe", "12345\u0661"), ElementsAre("123", "45\u0661"));
}

TEST(PreTokenizer, KimiKeepsHanCharactersByThemselves) {
  EXPECT_THAT(pieces_of("kimi-k2", "abc中文def"), ElementsAre("abc", "中文", "def"));
}

// U+180E is white space for PCRE2's \s, but not in the regex engines that the patterns were written for.
TEST(PreTokenizer, WhiteSpaceIsThatOfUnicode) {
  EXPECT_THAT(pieces_of("gpt-2", "a\u180e\u180eb"), ElementsAre("a", "\u180e\u180e", "b"));
  EXPECT_THAT(pieces_of("gpt-2", "a \u180eb"), ElementsAre("a", " \u180e", "b"));
  EXPECT_THAT(pieces_of("gpt-2", "a\u0085\u3000b"), ElementsAre("a", "\u0085", "\u3000", "b"));
}

TEST(PreTokenizer, NothingIsLostAndNothingIsQuadratic) {
  constexpr size_t n = 100'000;
  std::string mixed;
  while (mixed.size() < n) mixed += "Hello WORLD it's 12345 中文 \u00e9\u0301\u4e2d!? \r\n\t  x_y ½ ";
  const std::string texts[] = {std::string(n, 'a'),
                               std::string(n, 'A'),
                               std::string(n, ' ') + "x",
                               std::string(n, '7') + "x",
                               std::string(n, '\n'),
                               std::string(n, '!'),
                               mixed};
  for (const PreTokenizerSpec& spec : all_pre_tokenizers()) {
    const PreTokenizer pre_tokenizer(spec);
    EXPECT_TRUE(pre_tokenizer.split("").empty());
    for (const std::string& text : texts) {
      const char* next = text.data();
      for (const std::string_view piece : pre_tokenizer.split(text)) {
        ASSERT_FALSE(piece.empty()) << spec.names;
        ASSERT_EQ(piece.data(), next) << spec.names;
        next += piece.size();
      }
      ASSERT_EQ(next, text.data() + text.size()) << spec.names;
    }
  }
}

}  // namespace
}  // namespace tandem
