// What a person sees of tandem chat: colors, and a prompt that stays one in a window that changes.
#include "base/sanitized.h"
#include "support/chat_terminal.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Not;
using namespace test;

int n_prompts(const Screen& screen) {
  int n = 0;
  for (const std::string& line : screen.lines()) n += line.starts_with(">") ? 1 : 0;
  return n;
}

bool prompt_waits(const Screen& s) {
  return s.row(s.cursor_row()).starts_with(">") && s.cursor_column() >= 2;
}

class ChatScreen : public ChatTerminal {
 protected:
  // Everything on the screen but the prompt's mark and dim notes has the terminal's own color.
  static void expect_no_color(const Screen& screen, const std::string& text) {
    const int row = screen.row_with(text);
    ASSERT_GE(row, 0) << screen.text();
    const auto begin = static_cast<int>(screen.row(row).find(text));
    for (int i = 0; i < static_cast<int>(text.size()); ++i)
      EXPECT_TRUE(screen.cell(row, begin + i).plain()) << text << " " << i;
  }
};

TEST_F(ChatScreen, OnlyThePromptsMarkHasItsColor) {
  const auto t = start({"-n", "8"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits)) << t->screen().text();
  t->type("hello there");
  ASSERT_TRUE(t->wait_for_row("> hello there"));
  EXPECT_EQ(t->screen().cell(t->screen().cursor_row(), 0).color, 2);
  expect_no_color(t->screen(), " hello there");
  t->type(kEnter);
  ASSERT_TRUE(t->wait_for_row("answer 8 tokens")) << t->screen().text();
  const int answer = t->screen().row_with("> hello there") + 1;
  for (int column = 0; column < 8; ++column) EXPECT_TRUE(t->screen().cell(answer, column).plain()) << column;
}

// What the shell writes afterwards has no color, however the chat ends.
TEST_F(ChatScreen, NoColorOutlivesTheChat) {
  const std::vector<std::string> ways = {kCtrlD, kCtrlC + kCtrlC, "/exit" + kEnter,
                                         "typed" + kCtrlC + kCtrlC + kCtrlC};
  for (const std::string& way : ways) {
    const auto t = start_in_shell({"-n", "8"});
    ASSERT_TRUE(t->wait_for_screen(prompt_waits)) << t->screen().text();
    for (const char key : way) {
      t->type(std::string(1, key));
      t->rest(20);
    }
    // What is typed before is the chat's, which drops it.
    ASSERT_TRUE(t->wait_for_screen([](const Screen& s) { return s.row(s.cursor_row()) == "$"; })) << t->screen().text();
    t->type("echo the'' end" + kEnter);
    ASSERT_TRUE(t->wait_for_row("the end")) << t->screen().text();
    expect_no_color(t->screen(), "the end");
  }
}

TEST_F(ChatScreen, SigtermRestoresTheTerminal) {
  const auto t = start({"-c", "60000", "--ignore-eos"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  int status = -1;
  for (int i = 0; i < (kThreadSanitized ? 6 : 1) && status < 0; ++i) {
    kill(t->child(), SIGTERM);
    status = t->wait_for_exit(kThreadSanitized ? 10000 : 60000);
  }
  EXPECT_EQ(status, 128 + SIGTERM);
  EXPECT_TRUE(t->echoes());
}

TEST_F(ChatScreen, OnePromptAfterEveryNewSize) {
  const auto t = start({"-n", "4"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("some text");
  ASSERT_TRUE(t->wait_for_row("> some text"));
  for (const auto& [rows, columns] : {std::pair(20, 60), {30, 100}, {10, 40}, {24, 80}}) {
    t->resize(rows, columns);
    t->rest(300);
    EXPECT_EQ(n_prompts(t->screen()), 1) << t->screen().text();
    EXPECT_EQ(t->screen().row(t->screen().cursor_row()), "> some text");
    EXPECT_EQ(t->screen().cursor_column(), 11);
  }
  t->type(kLeft + "X" + kEnter);
  ASSERT_TRUE(t->wait_for_row("answer 4"));
  EXPECT_EQ(said(*t), "some texXt");
}

// xterm cuts lines that no longer fit, as the test's screen does.
TEST_F(ChatScreen, ALongLineInANarrowerWindow) {
  const auto t = start({"-n", "4"}, with({"XTERM_VERSION=1"}));
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("a line that is longer than the window will be");
  ASSERT_TRUE(t->wait_for_row("will be"));
  t->resize(12, 20);
  t->rest(300);  // the screen itself cuts the line: the program is to have shown it again before the next size
  ASSERT_TRUE(t->wait_for_row("> a line that is lon")) << t->screen().text();
  EXPECT_EQ(n_prompts(t->screen()), 1) << t->screen().text();
  t->resize(12, 60);
  ASSERT_TRUE(t->wait_for_row("> a line that is longer than the window will be")) << t->screen().text();
  EXPECT_EQ(n_prompts(t->screen()), 1) << t->screen().text();
}

TEST_F(ChatScreen, ANewSizeDuringAnAnswer) {
  const auto t = start({"-c", "60000", "--ignore-eos"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("go on" + kEnter);
  t->rest(100);
  t->resize(20, 60);
  t->rest(100);
  t->type(kCtrlC);
  ASSERT_TRUE(t->wait_for_row("interrupted"));
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->rest(400);
  EXPECT_EQ(t->screen().row(t->screen().cursor_row()), ">") << t->screen().text();
}

TEST_F(ChatScreen, CtrlZAndBackAtThePrompt) {
  const auto t = start_in_shell({"-n", "4"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits)) << t->screen().text();
  t->type("some text");
  ASSERT_TRUE(t->wait_for_row("> some text"));
  for (int i = 0; i < 2; ++i) {
    t->type(kCtrlZ);
    ASSERT_TRUE(t->wait_for_screen([](const Screen& s) { return s.row(s.cursor_row()) == "$"; }))
        << t->screen().text();
    EXPECT_EQ(n_prompts(t->screen()), 0) << t->screen().text();
    t->type("fg" + kEnter);
    ASSERT_TRUE(t->wait_for_screen(prompt_waits)) << t->screen().text();
    t->rest(500);
    EXPECT_EQ(n_prompts(t->screen()), 1) << t->screen().text();
    EXPECT_EQ(t->screen().row(t->screen().cursor_row()), "> some text");
  }
  t->type(kLeft + "X" + kEnter);
  ASSERT_TRUE(t->wait_for_row("answer 4"));
  EXPECT_EQ(said(*t), "some texXt");
}

TEST_F(ChatScreen, CtrlZAndBackDuringAnAnswer) {
  const auto t = start_in_shell({"-c", "60000", "--ignore-eos"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("go on" + kEnter);
  t->rest(100);
  t->type(kCtrlZ);
  ASSERT_TRUE(t->wait_for_screen([](const Screen& s) { return s.row(s.cursor_row()) == "$"; }))
      << t->screen().text();
  t->type("fg" + kEnter);
  t->rest(100);
  t->type(kCtrlC);
  ASSERT_TRUE(t->wait_for_row("interrupted")) << t->screen().text();
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->rest(400);
  EXPECT_EQ(t->screen().row(t->screen().cursor_row()), ">") << t->screen().text();
  EXPECT_FALSE(t->echoes());
}

TEST_F(ChatScreen, SimpleIoSendsNoControlSequence) {
  const auto t = start({"-n", "4", "--simple-io"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("hello" + kLeft + "X" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 4"));
  std::string all = t->seen();
  t->type(kCtrlD);
  EXPECT_EQ(t->wait_for_exit(), 0);
  all += t->rest(0);
  EXPECT_THAT(all, Not(HasSubstr("\033")));
}

// A grammar makes the model say this.
class ChatMarkdown : public ChatScreen {
 protected:
  std::vector<std::string> saying(const std::string& text, std::vector<std::string> more = {}) const {
    std::string literal;
    for (const char c : text) literal += c == '\n' ? "\\n" : c == '\033' ? "\\x1b" : std::string(1, c);
    more.insert(more.end(), {"--grammar", "root ::= \"" + literal + "\"", "-c", "1000"});
    return more;
  }
  static constexpr const char* kText =
      "# Title\n\nSome **bold** text.\n\n- one\n- two\n\n```c\nint x;\n```\n";
};

TEST_F(ChatMarkdown, IsRenderedOnATerminal) {
  const auto t = start(saying(kText));
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("hi" + kEnter);
  ASSERT_TRUE(t->wait_for_row("seed ")) << t->screen().text();
  EXPECT_THAT(t->screen().text(),
              HasSubstr("> hi\nTitle\n\nSome bold text.\n\n• one\n• two\n\n╭─ c\n│ int x;\n╰─\n[prompt"));
  const int row = t->screen().row_with("Some bold");
  EXPECT_TRUE(t->screen().cell(row, 5).bold);
  EXPECT_TRUE(t->screen().cell(row, 10).plain());
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("/raw" + kEnter);
  ASSERT_TRUE(t->wait_for_row("Some **bold** text.")) << t->screen().text();
}

TEST_F(ChatMarkdown, StaysAsItIsWhereItCannotBeRendered) {
  const std::string source = "# Title\n\nSome **bold** text.\n\n- one\n- two\n\n```c\nint x;\n```\n";
  const std::vector<std::pair<std::vector<std::string>, TerminalOptions>> ways = {
      {{"--markdown", "off"}, {}}, {{"--simple-io"}, {}}, {{}, with({"TERM=dumb"})}};
  for (const auto& [arguments, options] : ways) {
    const auto t = start(saying(kText, arguments), options);
    ASSERT_TRUE(t->wait_for_screen(prompt_waits));
    t->type("hi" + kEnter);
    ASSERT_TRUE(t->wait_for_row("seed ")) << t->screen().text();
    EXPECT_THAT(t->screen().text(), HasSubstr("> hi\n" + source)) << arguments.size();
  }
  TerminalOptions into_file;
  into_file.stdout_file = directory_.path("answer.md");
  const auto t = start(saying(kText), into_file);
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("hi" + kEnter);
  ASSERT_TRUE(t->wait_for_row("seed ")) << t->screen().text();
  std::ifstream in(into_file.stdout_file);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(in)), {}), source);
}

TEST_F(ChatMarkdown, AModelCannotControlTheTerminal) {
  for (const std::string way : {"on", "off"}) {
    const auto t = start(saying("a\033[2J\033[31mb", {"--markdown", way}));
    ASSERT_TRUE(t->wait_for_screen(prompt_waits));
    t->type("hi" + kEnter);
    ASSERT_TRUE(t->wait_for_row("seed ")) << t->screen().text();
    const int row = t->screen().row_with("> hi") + 1;
    EXPECT_EQ(t->screen().row(row), "a␛[2J␛[31mb");
    EXPECT_TRUE(t->screen().cell(row, 10).plain());
  }
}

TEST_F(ChatMarkdown, WordsAreWrapped) {
  TerminalOptions narrow;
  narrow.columns = 20;
  const auto t = start(saying("These words are wrapped where they end."), narrow);
  ASSERT_TRUE(t->wait_for_screen(prompt_waits)) << t->screen().text();
  t->type("hi" + kEnter);
  ASSERT_TRUE(t->wait_for_row("seed ")) << t->screen().text();
  EXPECT_THAT(t->screen().text(), HasSubstr("> hi\nThese words are\nwrapped where they\nend.\n["));
}

TEST_F(ChatMarkdown, ReasoningIsDimOrMarked) {
  const std::string text = "<think>hm</think>yes";
  const auto colored = start(saying(text));
  ASSERT_TRUE(colored->wait_for_screen(prompt_waits));
  colored->type("hi" + kEnter);
  ASSERT_TRUE(colored->wait_for_row("seed ")) << colored->screen().text();
  const int row = colored->screen().row_with("> hi") + 1;
  EXPECT_EQ(colored->screen().row(row), "hm");
  EXPECT_TRUE(colored->screen().cell(row, 0).dim);
  EXPECT_EQ(colored->screen().row(row + 2), "yes");
  EXPECT_TRUE(colored->screen().cell(row + 2, 0).plain());
  const auto marked = start(saying(text), with({"NO_COLOR=1"}));
  ASSERT_TRUE(marked->wait_for_screen(prompt_waits));
  marked->type("hi" + kEnter);
  ASSERT_TRUE(marked->wait_for_row("seed ")) << marked->screen().text();
  EXPECT_THAT(marked->screen().text(), HasSubstr("> hi\n│ hm\n\nyes\n"));
}

}  // namespace
}  // namespace tandem
