// The text of a model on the screen of a terminal, while it comes.
#include "tools/markdown/stream.h"

#include <gtest/gtest.h>

#include <random>

#include "support/screen.h"

namespace tandem {
namespace {

using test::Screen;
using tools::TextStream;
using tools::TextStreamOptions;

const std::string kDocument = R"(# A long title of the whole text

Some **bold** and *italic* words, `code` and a [link](https://example.org/path), in a paragraph that is longer
than most windows are wide. ~~Gone~~.
A line of its own, with a backslash \* and 1 < 2 &amp; 3.

## List

- one
- two with **bold words that go on and on**
  - nested with `code`
  - nested again
    1. deeper
    2. and deeper
- three

1. first

   A paragraph of the first item.
2. second
   ```sh
   echo "in the list"
   ```

| Name | Value | What it is |
|:-----|------:|:----------:|
| a | 1 | the first of all |
| long name | 12345 | words **in bold** that have to be wrapped |
| c |  | |

> A quotation with *emphasis*
> in two lines.
>
> - and a list

```python
def f(x):
	return x  # a tab, and a line that is much longer than the window of twenty columns

print(f(1))
```
Text directly behind. 你好,世界 👍🏽 é naïve 日本語のとても長い文は折り返される。

---

Title below
===========

- [x] done
- [ ] to do

The end.)";

std::string screen_text(const std::string& text, int columns, int rows, std::mt19937* random,
                        TextStreamOptions options = {}) {
  Screen screen(rows, columns);
  options.columns = columns;
  options.rows = rows;
  TextStream stream(options);
  for (size_t at = 0; at < text.size();) {
    const size_t n =
        random == nullptr ? text.size() : std::min<size_t>(1 + (*random)() % 7, text.size() - at);
    screen.feed(stream.add(std::string_view(text).substr(at, n)));
    at += n;
  }
  screen.feed(stream.finish());
  EXPECT_EQ(screen.cursor_column(), 0);
  return screen.text();
}

TEST(TextStream, EveryWayToCutTheTextGivesTheSameScreen) {
  std::mt19937 random(1);
  for (const int columns : {10, 20, 80, 200}) {
    for (const int rows : {5, 24, 500}) {
      const std::string whole = screen_text(kDocument, columns, rows, nullptr);
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(screen_text(kDocument, columns, rows, &random), whole)
            << columns << " columns, " << rows << " rows";
      }
    }
  }
}

TEST(TextStream, MixedUpMarkdownGivesTheSameScreenHoweverItIsCut) {
  const std::string pieces[] = {"**",           "*",         "`",    "```",   "\n",  "\n\n",  "- ",
                                "1. ",          "> ",        "| ",   "|---|", "# ",  "word ", "x",
                                "[a](b)",       "<br>",      "&lt;", "~~",    "---", "  ",    "\t",
                                "\xe4\xbd\xa0", "e\xcc\x81", "\\",   "==="};
  std::mt19937 random(2);
  for (int i = 0; i < 150; ++i) {
    std::string text;
    const auto n = 5 + random() % 60;
    for (unsigned k = 0; k < n; ++k) text += pieces[random() % std::size(pieces)];
    const int columns = i % 3 == 0 ? 10 : 40;
    const std::string whole = screen_text(text, columns, 100, nullptr);
    EXPECT_EQ(screen_text(text, columns, 100, &random), whole) << text;
  }
}

// What is on a large screen is what the rows of the whole text are.
TEST(TextStream, TheScreenShowsTheRenderedText) {
  for (const int columns : {20, 80}) {
    const std::string text =
        "# Title\n\nSome **bold** words and a list that comes:\n\n- one\n- two\n\n> quoted\n";
    std::string wanted;
    for (const tools::Row& row : tools::markdown_rows(text, {columns - 1, true})) {
      for (const tools::Glyph& g : row) wanted += g.text;
      wanted += "\n";
    }
    std::mt19937 random(3);
    EXPECT_EQ(screen_text(text, columns, 100, &random), wanted);
  }
}

TEST(TextStream, TextIsVisibleAsItComes) {
  Screen screen(10, 30);
  TextStream stream({.rows = 10, .columns = 30});
  screen.feed(stream.add("Some wor"));
  EXPECT_EQ(screen.row(0), "Some wor");
  screen.feed(stream.add("ds that go to the next line, **bol"));
  EXPECT_EQ(screen.row(0), "Some words that go to the");
  EXPECT_EQ(screen.row(1), "next line, **bol");
  screen.feed(stream.add("d** now"));
  EXPECT_EQ(screen.row(1), "next line, bold now");
  EXPECT_TRUE(screen.cell(1, 11).bold);
  EXPECT_TRUE(screen.cell(1, 16).plain());
  EXPECT_EQ(screen.cursor_column(), 19);
}

TEST(TextStream, AttributesOfMarkdown) {
  Screen screen(30, 60);
  TextStream stream({.rows = 30, .columns = 60});
  screen.feed(stream.add("# Head\n\n*it* `co` [li](http://x)\n\n```c\nint x;\n```\n"));
  screen.feed(stream.finish());
  EXPECT_TRUE(screen.cell(0, 0).bold && screen.cell(0, 0).underline);
  EXPECT_EQ(screen.row(2), "it co li (http://x)");
  EXPECT_TRUE(screen.cell(2, 0).italic);
  EXPECT_EQ(screen.cell(2, 3).color, 6);
  EXPECT_TRUE(screen.cell(2, 6).underline);
  EXPECT_TRUE(screen.cell(2, 9).dim);
  EXPECT_EQ(screen.row(4), "╭─ c");
  EXPECT_EQ(screen.row(5), "│ int x;");
  EXPECT_TRUE(screen.cell(5, 2).plain());
  EXPECT_EQ(screen.row(6), "╰─");
  EXPECT_TRUE(screen.cell(7, 0).plain());
  EXPECT_EQ(screen.cursor_row(), 7);
}

TEST(TextStream, WithoutColorCodeKeepsItsMarks) {
  TextStreamOptions options;
  options.color = false;
  const std::string text = screen_text("**b** `code`", 40, 10, nullptr, options);
  EXPECT_EQ(text, "b `code`\n");
  TextStream stream(options);
  const std::string bytes = stream.add(kDocument) + stream.finish();
  for (const char* color : {"\033[0;31", "\033[0;36", ";36m"})
    EXPECT_EQ(bytes.find(color), bytes.npos) << color;
}

TEST(TextStream, AListKeepsItsDistancesWhenSomethingFollows) {
  const std::string list = "1. a\n   - x\n   - y\n2. b\n", loose = "- a\n\n- b\n";
  std::mt19937 random(6);
  for (const std::string after : {"", "\n", "\n\nAfter.\n"}) {
    const std::string rest = after.size() > 1 ? "\nAfter.\n" : "";
    EXPECT_EQ(screen_text(list + after, 40, 20, &random), "1. a\n   ◦ x\n   ◦ y\n2. b\n" + rest);
    EXPECT_EQ(screen_text(loose + after, 40, 20, &random), "• a\n\n• b\n" + rest);
  }
}

// A line of "-" below a text is a heading in Markdown. An answer that is cut there was about to begin an item.
TEST(TextStream, AListThatIsCutAtAMarkIsNoHeading) {
  struct Case {
    std::string text, row;
  };
  for (const Case& c :
       {Case{"Fruits:\n-", "Fruits:"}, Case{"- one\n  - ", "• one"}, Case{"- one\n-", "• one"}}) {
    Screen screen(10, 30);
    TextStream stream({.rows = 10, .columns = 30});
    screen.feed(stream.add(c.text));
    screen.feed(stream.finish());
    EXPECT_EQ(screen.row(0), c.row) << c.text;
    EXPECT_FALSE(screen.cell(0, 2).bold) << c.text;
    EXPECT_EQ(screen.cursor_row(), 1) << c.text;
  }
  Screen screen(10, 30);
  TextStream stream({.rows = 10, .columns = 30});
  screen.feed(stream.add("Title\n-\nText"));
  screen.feed(stream.finish());
  EXPECT_TRUE(screen.cell(0, 0).bold);
}

TEST(TextStream, ATableGrowsInColumns) {
  Screen screen(20, 40);
  TextStream stream({.rows = 20, .columns = 40});
  screen.feed(stream.add("| a | b |\n|---|--:|\n| x | 1 |\n"));
  EXPECT_EQ(screen.row(0), "a │ b");
  EXPECT_EQ(screen.row(2), "x │ 1");
  screen.feed(stream.add("| longer | 22222 |\n"));
  EXPECT_EQ(screen.row(0), "a      │     b");
  EXPECT_EQ(screen.row(1), "───────┼──────");
  EXPECT_EQ(screen.row(2), "x      │     1");
  EXPECT_EQ(screen.row(3), "longer │ 22222");
}

TEST(TextStream, ANarrowWindowTurnsATableIntoAList) {
  const std::string text = screen_text("| ab | cd | ef |\n|---|---|---|\n| 1 | 2 | 3 |\n", 10, 20, nullptr);
  EXPECT_EQ(text, "ab: 1\ncd: 2\nef: 3\n");
}

TEST(TextStream, ControlCharactersDoNotReachTheTerminal) {
  const std::string evil =
      "a\033[2Jb\x07"
      "c\033]0;title\007\xc2\x9b"
      "31md \x7f e&#27;[31m `\033[H`\n\n```\n\033[2J\n```\n";
  for (const bool markdown : {true, false}) {
    TextStreamOptions options;
    options.markdown = markdown;
    TextStream stream(options);
    std::string bytes = stream.add(evil) + stream.finish();
    for (size_t at = bytes.find('\033'); at != bytes.npos; at = bytes.find('\033', at + 1)) {
      const size_t end = bytes.find_first_not_of("0123456789;", at + 2);
      ASSERT_NE(end, bytes.npos);
      EXPECT_NE(std::string("mKJAC").find(bytes[end]), std::string::npos) << bytes;
      EXPECT_NE(bytes.substr(at, 4), "\033[2J");
      EXPECT_EQ(bytes[at + 1], '[');
    }
    EXPECT_EQ(bytes.find('\x07'), bytes.npos);
    EXPECT_EQ(bytes.find("\xc2\x9b"), bytes.npos);
  }
  EXPECT_EQ(screen_text("a\033[2Jb\x07", 40, 10, nullptr), "a\xe2\x90\x9b[2Jb\xe2\x90\x87\n");
}

TEST(TextStream, ACodeBlockThatNeverEnds) {
  std::string text = "```\n", wanted = "╭─\n";
  for (int i = 0; i < 200; ++i) {
    text += "line " + std::to_string(i) + "\n";
    wanted += "│ line " + std::to_string(i) + "\n";
  }
  std::mt19937 random(4);
  EXPECT_EQ(screen_text(text, 80, 10, &random), wanted + "╰─\n");
}

TEST(TextStream, AMegabyteWithoutASpace) {
  const std::string text(1 << 20, 'x');
  Screen screen(24, 80);
  TextStream stream({});
  for (size_t at = 0; at < text.size(); at += 4096) screen.feed(stream.add(text.substr(at, 4096)));
  screen.feed(stream.finish());
  size_t n = 0;
  for (const std::string& line : screen.lines())
    n += static_cast<size_t>(std::count(line.begin(), line.end(), 'x'));
  EXPECT_EQ(n, text.size());
}

TEST(TextStream, ANewSizeLosesNothing) {
  Screen screen(30, 60);
  TextStream stream({.rows = 30, .columns = 60});
  screen.feed(stream.add("Above **all** these words are on the old width of it\n\n```\none\ntw"));
  screen.resize(30, 24);
  screen.feed(stream.resize(30, 24));
  screen.feed(stream.add("o\n```\n\nNow the rest of the text is wrapped at the new width"));
  screen.feed(stream.finish());
  EXPECT_EQ(screen.text(),
            "Above all these words ar\n\n╭─\n│ one\n│ tw\n│ o\n╰─\n\nNow the rest of the\ntext is wrapped at "
            "the\nnew width\n");
}

TEST(TextStream, PlainTextIsOnlyWrapped) {
  TextStreamOptions options;
  options.markdown = false;
  std::mt19937 random(5);
  EXPECT_EQ(screen_text("# no **title**\n\n  indented words that are wrapped\n", 20, 20, &random, options),
            "# no **title**\n\n  indented words\nthat are wrapped\n");
  options.mark = "| ";
  EXPECT_EQ(screen_text("some words that are wrapped", 14, 20, &random, options),
            "| some words\n| that are\n| wrapped\n");
}

TEST(TextStream, WhatScrolledAwayIsLeftAlone) {
  Screen screen(4, 40);
  TextStream stream({.rows = 4, .columns = 40});
  std::string list;
  for (int i = 0; i < 20; ++i) list += "- item " + std::to_string(i) + "\n";
  screen.feed(stream.add("before\n\n" + list));
  screen.feed(stream.add("\nafter\n"));
  screen.feed(stream.finish());
  EXPECT_EQ(screen.count("item 7\n"), 1) << screen.text();
  EXPECT_EQ(screen.count("item 19"), 1) << screen.text();
  EXPECT_EQ(screen.count("before"), 1);
  EXPECT_EQ(screen.row(2), "after") << screen.text();
}

}  // namespace
}  // namespace tandem
