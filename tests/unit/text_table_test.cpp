#include "tools/text_table.h"

#include <gtest/gtest.h>

namespace tandem::tools {
namespace {

TEST(TextTable, ColumnsAreAsWideAsTheirCells) {
  using enum TextTable::Side;
  TextTable table({{"name", left}, {"GPU\nrows"}, {"n"}});
  table.add({"a", "10%", "12345"});
  table.add({"caf\xc3\xa9s", "-", "1"});
  table.add({"rest"});
  EXPECT_EQ(table.text(),
            "        GPU\n"
            "name   rows      n\n"
            "a       10%  12345\n"
            "caf\xc3\xa9s     -      1\n"
            "rest\n");
}

TEST(TextTable, WithoutRowsThereIsTheHeader) {
  EXPECT_EQ(TextTable({{"x"}, {"y"}}).text(), "x  y\n");
}

}  // namespace
}  // namespace tandem::tools
