// Words on a terminal, which are not broken at its edge.
#include "tools/markdown/word_wrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/utf8.h"
#include "support/screen.h"
#include "tools/markdown/glyphs.h"

namespace tandem::tools {
namespace {

// What a screen shows of a text that comes in these pieces.
std::vector<std::string> shown(const std::vector<std::string>& pieces, int columns) {
  test::Screen screen(50, columns);
  WordWrap wrap(static_cast<size_t>(columns));
  for (const std::string& piece : pieces) {
    std::string bytes = wrap.add(piece);
    for (size_t at = 0; (at = bytes.find('\n', at)) != bytes.npos; at += 2) bytes.replace(at, 1, "\r\n");  // as a terminal driver does
    screen.feed(bytes);
  }
  return screen.lines();
}
using Lines = std::vector<std::string>;

TEST(WordWrap, WordsMoveToTheNextRow) {
  EXPECT_EQ(shown({"It was winter. Snow fell"}, 16), (Lines{"It was winter.", "Snow fell"}));
  EXPECT_EQ(shown({"It was winter. Sn", "ow", " fell"}, 17), (Lines{"It was winter.", "Snow fell"}));
  EXPECT_EQ(shown({"abcd efg"}, 9), (Lines{"abcd efg"}));
  EXPECT_EQ(shown({"abcd efg h"}, 9), (Lines{"abcd efg", "h"}));
  EXPECT_EQ(shown({"abcd efgh i"}, 9), (Lines{"abcd efgh", "i"}));
  EXPECT_EQ(shown({"abcd efghi  j"}, 9), (Lines{"abcd", "efghi  j"}));
  EXPECT_EQ(shown({"abcd efgh   i"}, 9), (Lines{"abcd efgh", "i"}));
}

TEST(WordWrap, LinesOfTheTextStayLines) {
  EXPECT_EQ(shown({"one two\nthree", " four\n\n", "five"}, 9), (Lines{"one two", "three", "four", "", "five"}));
  EXPECT_EQ(shown({"if x:\n    do it now please\n"}, 16), (Lines{"if x:", "    do it now", "please"}));
  EXPECT_EQ(shown({"a\tbc\td e f"}, 20), (Lines{"a       bc      d e", "f"}));
}

TEST(WordWrap, WordsWiderThanTheWindowAreBroken) {
  EXPECT_EQ(shown({"see abcdefghijklmnop end"}, 8), (Lines{"see", "abcdefgh", "ijklmnop", "end"}));
  EXPECT_EQ(shown({"abcdefgh"}, 3), (Lines{"abc", "def", "gh"}));
}

TEST(WordWrap, WideCharactersAndMarks) {
  EXPECT_EQ(shown({"ab \u4e16\u754c\u4e16 c"}, 8), (Lines{"ab \u4e16\u754c", "\u4e16 c"}));
  EXPECT_EQ(shown({"abc cafe\u0301s x"}, 8), (Lines{"abc", "cafe\u0301s x"}));
  EXPECT_EQ(shown({"abc caf", "e", "\u0301", "sx"}, 9), (Lines{"abc", "cafe\u0301sx"}));
  // Hindi: vowel signs beside their consonant have a column, those above and below it have none.
  WordWrap hindi(11);
  EXPECT_EQ(hindi.add("\u0939\u093f\u0928\u094d\u0926\u0940 \u0939\u093e\u0925"), "\u0939\u093f\u0928\u094d\u0926\u0940 \u0939\u093e\u0925");
  EXPECT_EQ(hindi.add(" a"), " a");
  EXPECT_EQ(hindi.add("b c"), "\r\x1b[10C\x1b[K\nab c") << "5 + 1 + 3 + 1 columns before it";
}

// As chat counts them.
TEST(WordWrap, ColumnsOfGlyphs) {
  EXPECT_EQ(width_of(glyphs_of("\u0939\u093f\u0928\u094d\u0926\u0940")), 5);
  EXPECT_EQ(glyphs_of("\u0939\u093f").size(), 1u);
  EXPECT_EQ(width_of(glyphs_of("\u4e16e\u0301")), 3);
}

TEST(WordWrap, WhatIsKeptDoesNotMove) {
  test::Screen screen(5, 8);
  WordWrap wrap(8);
  screen.feed(wrap.add("abc de"));
  wrap.keep();
  screen.feed(wrap.add("fghi k"));
  EXPECT_EQ(screen.lines(), (Lines{"abc defg", "hi k"}));
}

// What is in the row stays; what follows is in order again at the next space.
TEST(WordWrap, AWindowThatChangesItsWidth) {
  for (const int columns : {6, 8, 11, 12, 30}) {
    test::Screen screen(8, 12);
    WordWrap wrap(12);
    screen.feed(wrap.add("abc defg h"));
    screen.resize(8, columns);
    wrap.resize(static_cast<size_t>(columns));
    std::string bytes = wrap.add("i jk lm nop q rs tu v w x");
    for (size_t at = 0; (at = bytes.find('\n', at)) != bytes.npos; at += 2) bytes.replace(at, 1, "\r\n");
    screen.feed(bytes);
    const std::string text = screen.text();
    for (const std::string word : {"jk", "lm", "nop", "q", "rs", "tu", "v", "w", "x"}) {
      EXPECT_EQ(screen.count(word), 1) << word << " in " << columns << " columns:\n" << text;
    }
    EXPECT_EQ(text.find("  "), text.npos) << text;
  }
}

// Whatever the pieces: the words of a text in its order, none broken, rows as full as they can be.
TEST(WordWrap, RandomTexts) {
  std::mt19937 random(std::random_device{}());
  const auto below = [&](size_t n) { return random() % n; };
  for (int i = 0; i < 300; ++i) {
    const int columns = static_cast<int>(8 + below(40));
    std::string text;
    Lines wanted{""};
    size_t width = 0;
    for (int w = 0; w < 30; ++w) {
      std::string word;
      const size_t n = 1 + below(static_cast<size_t>(columns));
      for (size_t c = 0; c < n; ++c) word += below(8) == 0 ? "\u00e9" : std::string(1, static_cast<char>('a' + below(26)));
      if (width > 0 && width + 1 + n > static_cast<size_t>(columns)) {
        wanted.emplace_back();
        width = 0;
      } else if (w > 0) {
        wanted.back() += ' ', ++width;
      }
      text += (w > 0 ? " " : "") + word;
      wanted.back() += word, width += n;
    }
    std::vector<std::string> pieces;
    for (std::string_view rest = text; !rest.empty();) {
      size_t n = 0;
      for (size_t steps = 1 + below(9); steps > 0 && n < rest.size(); --steps) n += next_utf8(rest.substr(n)).n_bytes;
      pieces.emplace_back(rest.substr(0, n));
      rest.remove_prefix(n);
    }
    ASSERT_EQ(shown(pieces, columns), wanted) << text << " in " << columns;
  }
}

}  // namespace
}  // namespace tandem::tools
