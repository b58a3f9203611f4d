// The screen that the terminal tests look at.
#include "support/screen.h"

#include <gtest/gtest.h>

#include "support/terminal.h"

namespace tandem {
namespace {

using test::Screen;

TEST(Screen, TextCursorAndScrollback) {
  Screen s(3, 10);
  s.feed("one\r\ntwo\r\nthree\r\nfour");
  EXPECT_EQ(s.lines(), (std::vector<std::string>{"one", "two", "three", "four"}));
  EXPECT_EQ(s.n_scrolled(), 1u);
  EXPECT_EQ(s.row(0), "two");
  EXPECT_EQ(s.cursor_row(), 2);
  EXPECT_EQ(s.cursor_column(), 4);
  s.feed("\r\033[Knew");
  EXPECT_EQ(s.row(2), "new");
  EXPECT_EQ(s.text(), "one\ntwo\nthree\nnew\n");
  EXPECT_EQ(s.count("e"), 4);
  EXPECT_EQ(s.row_with("thr"), 1);
}

TEST(Screen, AttributesOfCells) {
  Screen s(2, 40);
  s.feed("\033[1;32mB\033[0m\033[");  // in two pieces
  s.feed("2mD\033[22mN\033[3mI\033[0m\033[4mU\033[0;7mR\033[0;9mS\033[0mP");
  EXPECT_TRUE(s.cell(0, 0).bold);
  EXPECT_EQ(s.cell(0, 0).color, 2);
  EXPECT_TRUE(s.cell(0, 1).dim);
  EXPECT_FALSE(s.cell(0, 1).bold);
  EXPECT_TRUE(s.cell(0, 2).plain());
  EXPECT_TRUE(s.cell(0, 3).italic);
  EXPECT_TRUE(s.cell(0, 4).underline);
  EXPECT_TRUE(s.cell(0, 5).reverse);
  EXPECT_TRUE(s.cell(0, 6).strike);
  EXPECT_TRUE(s.cell(0, 7).plain());
  EXPECT_EQ(s.row(0), "BDNIURSP");
}

TEST(Screen, WideAndCombinedCharacters) {
  Screen s(2, 10);
  s.feed(
      "\xe4\xbd\xa0"
      "e\xcc\x81x");
  EXPECT_EQ(s.cell(0, 0).width, 2);
  EXPECT_EQ(s.cell(0, 1).text, "");
  EXPECT_EQ(s.cell(0, 2).text, "e\xcc\x81");
  EXPECT_EQ(s.row(0),
            "\xe4\xbd\xa0"
            "e\xcc\x81x");
}

TEST(Screen, FollowsTheProgramAndResizes) {
  test::Terminal t({"/bin/sh", "-c", "printf 'one\\ntwo'; read x; stty size; read x"},
                   {.rows = 5, .columns = 20});
  ASSERT_TRUE(t.wait_for_row("two"));
  EXPECT_EQ(t.screen().row(0), "one");
  t.resize(6, 33);
  EXPECT_EQ(t.screen().columns(), 33);
  t.type("\r");
  ASSERT_TRUE(t.wait_for_row("6 33"));
  t.type("\r");
  EXPECT_EQ(t.wait_for_exit(), 0);
}

}  // namespace
}  // namespace tandem
