// Keys that nobody has a reason to press: none ends the chat, and the next message arrives whole.
#include "support/chat_terminal.h"

namespace tandem {
namespace {

using namespace test;

class ChatKeys : public ChatTerminal {
 protected:
  // Empties the line and clears the screen twice: the first time may only end a search.
  static bool survives(Terminal& t, const std::string& keys) {
    t.type(keys + "\x15\x0c\x15\x0c");
    const bool cleared = t.wait_for(kClear, 20000);
    t.rest(10);
    return cleared;
  }
  // These end the input or stop the program or its output.
  static bool is_for_the_system(int c) { return c == 3 || c == 4 || c == 0x13 || c == 0x1a || c == 0x1c; }

  static inline const std::string kClear = "\033[H\033[2J";
};

TEST_F(ChatKeys, AltXIsNoCommandLineOfTheLibrary) {
  for (const char* term : {"TERM=xterm", "TERM=dumb", "TERM=vt100"}) {
    const auto t = start({"-n", "1"}, with({term}));
    ASSERT_TRUE(t->wait_for("context of ")) << t->seen();
    t->type("\x1bx'" + kEnter);
    ASSERT_TRUE(t->wait_for("answer 1 token")) << term << t->seen();
    t->type("\x1bX'" + kEnter);
    ASSERT_TRUE(t->wait_for("answer 1 token")) << term << t->seen();
    t->type("/exit" + kEnter);
    EXPECT_EQ(t->wait_for_exit(), 0) << term;
  }
}

TEST_F(ChatKeys, NoKeyEndsIt) {
  const auto t = start({"-n", "1"});
  ASSERT_TRUE(t->wait_for(kReady));
  for (int c = 1; c < 0x80; ++c) {
    if (is_for_the_system(c)) continue;
    const std::string key(1, static_cast<char>(c));
    ASSERT_TRUE(survives(*t, "word " + key + "'\"(")) << c << ": " << t->seen();
    ASSERT_TRUE(survives(*t, "word \x1b" + key + "'\"(")) << "Alt and " << c << ": " << t->seen();
  }
  t->type("/clear" + kEnter);
  ASSERT_TRUE(t->wait_for(kReady)) << t->seen();
  t->type("still \xc3\xb8 here" + kEnter);  // U+00F8 is Alt-x to a terminal of eight bits
  ASSERT_TRUE(t->wait_for("answer 1 token")) << t->seen();
  EXPECT_EQ(said(*t), "still \xc3\xb8 here");
}

}  // namespace
}  // namespace tandem
