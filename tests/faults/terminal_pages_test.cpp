// Help and errors on a terminal: words are not broken at its edge.
#include <gtest/gtest.h>

#include <sstream>

#include "support/chat_terminal.h"

namespace tandem::test {
namespace {

class TerminalPages : public ChatTerminal {
 protected:
  // What a command writes to a terminal of so many columns.
  std::string page(std::vector<std::string> arguments, int columns) {
    arguments.insert(arguments.begin(), binary_path());
    TerminalOptions options = environment();
    options.rows = 24, options.columns = columns;
    Terminal terminal(arguments, options);
    terminal.wait_for_exit();
    return terminal.rest();
  }
  // Lines that are longer than that, without those of one word.
  static std::string too_long(const std::string& page, size_t columns) {
    std::string lines;
    std::istringstream in(page);
    for (std::string line; std::getline(in, line);) {
      if (line.ends_with('\r')) line.pop_back();
      const size_t word = line.find_first_not_of(' ');
      if (line.size() > columns && line.find(' ', word) != line.npos) lines += line + "\n";
    }
    return lines;
  }
};

TEST_F(TerminalPages, HelpFitsTheWindow) {
  for (const int columns : {50, 80, 120}) {
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"}, {"help", "run"}, {"plan", "--help"}}) {
      const std::string text = page(arguments, columns);
      EXPECT_GT(text.size(), 1000u);
      EXPECT_EQ(too_long(text, static_cast<size_t>(std::min(columns, 100))), "") << arguments[0] << ' ' << columns;
    }
  }
}

TEST_F(TerminalPages, ErrorsFitTheWindow) {
  const std::string text = page({"run", "-m", path_, "-p", "", "-n", "1"}, 50);
  EXPECT_NE(text.find("is empty"), text.npos) << text;
  EXPECT_EQ(too_long(text, 50), "");
}

}  // namespace
}  // namespace tandem::test
