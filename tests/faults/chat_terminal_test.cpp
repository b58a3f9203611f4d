// tandem chat in a pseudo-terminal.
#include "base/sanitized.h"
#include "support/chat_terminal.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Not;
using namespace test;

TEST_F(ChatTerminal, AMessageAnAnswerAndExit) {
  const auto t = start({"-n", "8"});
  ASSERT_TRUE(t->wait_for(kReady)) << t->seen();
  EXPECT_THAT(t->seen(), HasSubstr("context of 128 tokens"));
  EXPECT_FALSE(t->echoes());
  t->type("hello there" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 8 tokens")) << t->seen();
  ASSERT_TRUE(t->wait_for(kReady));
  EXPECT_EQ(said(*t), "hello there");
  t->type(kCtrlD);
  EXPECT_EQ(t->wait_for_exit(), 0);
}

TEST_F(ChatTerminal, EditingKeys) {
  const auto t = start({"-n", "1"});
  ASSERT_TRUE(t->wait_for(kReady));
  // "acd", back twice, "b", to the start, "X", to the end, "!", one character deleted, one typed.
  t->type("acd" + kLeft + kLeft + "b" + "\x01" + "X" + "\x05" + "!" + "\x7f" + "?" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 1 token")) << t->seen();
  EXPECT_EQ(said(*t), "Xabcd?");
}

TEST_F(ChatTerminal, EditsWholeUtf8Characters) {
  for (const char* locale : {"LC_ALL=C.UTF-8", "LC_ALL=C"}) {
    const auto t = start({"-n", "1"}, with({locale}));
    ASSERT_TRUE(t->wait_for(kReady));
    // Deletes the character before the cursor, not a byte of it.
    t->type("gr\xc3\xbc\xc3\x9f \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80\x7f!" + kLeft + kLeft + kLeft +
            "\x7f" + kEnter);
    ASSERT_TRUE(t->wait_for("answer 1 token")) << t->seen();
    EXPECT_EQ(said(*t), "gr\xc3\xbc\xc3\x9f \xe5\xa5\xbd !") << locale;
  }
}

TEST_F(ChatTerminal, HistoryOutlivesTheProgram) {
  {
    const auto t = start({"-n", "1"});
    ASSERT_TRUE(t->wait_for(kReady));
    t->type("first of all" + kEnter);
    ASSERT_TRUE(t->wait_for("answer 1"));
    ASSERT_TRUE(t->wait_for(kReady));
    t->type("two\033\rlines" + kEnter);
    ASSERT_TRUE(t->wait_for("answer 1"));
    ASSERT_TRUE(t->wait_for(kReady));
    t->type("/exit" + kEnter);
    EXPECT_EQ(t->wait_for_exit(), 0);
  }
  const auto t = start({"-n", "1"});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type(kUp + kUp + kEnter);  // past /exit
  ASSERT_TRUE(t->wait_for("answer 1")) << t->seen();
  ASSERT_TRUE(t->wait_for(kReady));
  EXPECT_EQ(said(*t), "two\nlines");
}

TEST_F(ChatTerminal, MessagesOfSeveralLines) {
  const auto t = start({"-n", "1"});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("one\\" + kEnter);
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("two" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 1")) << t->seen();
  EXPECT_EQ(said(*t), "one\ntwo");
}

TEST_F(ChatTerminal, APasteOfTenThousandCharacters) {
  const auto t = start({"-n", "1", "-c", "16000"});
  ASSERT_TRUE(t->wait_for(kReady));
  std::string text;
  while (text.size() < 10000) text += "line " + std::to_string(text.size()) + " \xc3\xa9\n";
  text += "end";
  t->type("\033[200~" + text + "\033[201~");
  t->type(kEnter);
  ASSERT_TRUE(t->wait_for("answer 1 token")) << t->seen().size();
  ASSERT_TRUE(t->wait_for(kReady));
  EXPECT_EQ(said(*t), text);
}

// Without bracketed paste, a paste looks like fast typing.
TEST_F(ChatTerminal, TenThousandCharactersWithoutMarks) {
  const auto t = start({"-n", "1", "-c", "16000"});
  ASSERT_TRUE(t->wait_for(kReady));
  std::string text;
  while (text.size() < 10000) text += "word" + std::to_string(text.size()) + " ";
  text += "end";
  t->type(text + kEnter);
  ASSERT_TRUE(t->wait_for("answer 1 token", 180000)) << t->seen().size();
  ASSERT_TRUE(t->wait_for(kReady));
  EXPECT_EQ(said(*t), text);
}

TEST_F(ChatTerminal, TheWindowIsResizedWhileTyping) {
  const auto t = start({"-n", "1"});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("a line that is longer than the window will be");
  t->rest();
  t->resize(10, 20);
  EXPECT_NE(t->rest(600), "");  // redrawn
  t->type(" soon" + kEnter);
  ASSERT_TRUE(t->wait_for("removes it")) << t->seen();  // the line before those with numbers, which break anywhere
  EXPECT_EQ(said(*t), "a line that is longer than the window will be soon");
}

TEST_F(ChatTerminal, CtrlCAtThePrompt) {
  const auto t = start({"-n", "1"});
  ASSERT_TRUE(t->wait_for(kReady));
  for (const char* draft : {"never sent", "nor this"}) {  // each is gone, and nothing else
    t->type(draft);
    t->rest();
    t->type(kCtrlC);
    ASSERT_TRUE(t->wait_for(kReady)) << t->seen();
  }
  t->type("sent" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 1"));
  EXPECT_EQ(said(*t), "sent");
  ASSERT_TRUE(t->wait_for(kReady));
  t->type(kCtrlC);
  ASSERT_TRUE(t->wait_for("(press Ctrl-C again to exit)"));
  ASSERT_TRUE(t->wait_for(kReady));
  t->type(kCtrlC);
  EXPECT_EQ(t->wait_for_exit(), 130);
}

TEST_F(ChatTerminal, CtrlCStopsTheAnswerAndKeepsItsText) {
  const auto t = start({"-c", "60000", "--ignore-eos"});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("go on" + kEnter);
  ASSERT_TRUE(t->wait_for("\n"));
  ASSERT_TRUE(t->wait_for("e"));  // of the answer
  t->type(kCtrlC);
  ASSERT_TRUE(t->wait_for("(stopped: interrupted)")) << t->seen().substr(0, 2000);
  ASSERT_TRUE(t->wait_for(kReady));
  EXPECT_FALSE(t->echoes());
  const std::string path = directory_.path("kept.md");
  t->type("/export " + path + kEnter);
  ASSERT_TRUE(t->wait_for("(written)"));
  EXPECT_GT(std::filesystem::file_size(path), 40u);
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("/set n_predict 1" + kEnter + "again" + kEnter);  // keeps the computed tokens
  ASSERT_TRUE(t->wait_for(" reused), ")) << t->seen();
  ASSERT_TRUE(t->wait_for("answer 1 token"));
}

TEST_F(ChatTerminal, CtrlCWhileALongPromptIsRead) {
  std::ofstream(directory_.path("long.txt")) << std::string(30000, 'x');
  const auto t = start({"-n", "1", "-c", "40000", "-ub", "64"});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("/file " + directory_.path("long.txt") + kEnter);
  ASSERT_TRUE(t->wait_for("sent with the next message"));
  t->type("read this" + kEnter);
  ASSERT_TRUE(t->wait_for("reading the prompt [")) << t->seen();
  t->type(kCtrlC);
  ASSERT_TRUE(t->wait_for("stopped before the answer began")) << t->seen();
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("/exit" + kEnter);
  EXPECT_EQ(t->wait_for_exit(), 0);
}

// A second Ctrl-C ends a long computation at once and restores the terminal.
TEST_F(ChatTerminal, ASecondCtrlCExitsAtOnce) {
  if (kThreadSanitized) GTEST_SKIP() << "it runs no handler while the program computes";
  std::ofstream(directory_.path("long.txt")) << std::string(30000, 'x');
  const auto t = start({"-n", "1", "-c", "40000", "-b", "16384", "-ub", "16384"});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("/file " + directory_.path("long.txt") + kEnter);
  ASSERT_TRUE(t->wait_for("sent with the next message"));
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("read this" + kEnter);
  t->rest(100);
  EXPECT_FALSE(t->echoes());
  t->type(kCtrlC);
  usleep(50000);
  t->type(kCtrlC);
  EXPECT_EQ(t->wait_for_exit(), 130);
  EXPECT_TRUE(t->echoes());
}

TEST_F(ChatTerminal, ReasoningIsShownHiddenOrOff) {
  const std::string file = directory_.path("thinks.jinja");
  std::ofstream(file)
      << "<s>{{ messages[-1].content }}</s><s>{% if enable_thinking is not defined %}<think>{% endif %}";
  const auto talk = [&](const std::string& how) {
    const auto t = start({"-n", "12", "--ignore-eos", "--chat-template", file, "--reasoning", how});
    EXPECT_TRUE(t->wait_for(kReady));
    t->type("hi" + kEnter);
    EXPECT_TRUE(t->wait_for("answer 12"));
    std::string all = t->seen();
    EXPECT_TRUE(t->wait_for(kReady));
    t->type("/reasoning" + kEnter);
    EXPECT_TRUE(t->wait_for("\n"));
    return all + t->rest(300);
  };
  const std::string shown = talk("show");
  EXPECT_THAT(shown, HasSubstr("\033[0;2m"));
  EXPECT_THAT(shown, Not(HasSubstr("thinking")));
  const std::string hidden = talk("hide");
  EXPECT_THAT(hidden, HasSubstr("thinking, "));
  EXPECT_THAT(hidden, HasSubstr("(/reasoning shows the reasoning)"));
  EXPECT_THAT(talk("off"), HasSubstr("the last answer has no reasoning"));
}

TEST_F(ChatTerminal, CtrlCAtAnyMomentOfTheStart) {
  for (int delay_us = 0; delay_us < 40000; delay_us += 4000) {
    const auto t = start();
    usleep(static_cast<useconds_t>(delay_us));
    t->type(kCtrlC);
    int code = t->wait_for_exit(1000);
    // At the prompt; the first key may have come before the handler was installed.
    for (int again = 0; again < 2 && code == -1; ++again) {
      t->type(kCtrlC);
      code = t->wait_for_exit(again == 0 ? 1000 : 60000);
    }
    EXPECT_EQ(code, 130) << delay_us;
  }
}

TEST_F(ChatTerminal, CommandsUndoEditRegenerateAndSettings) {
  const auto t = start({"-n", "4"});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("/regen" + kEnter);
  ASSERT_TRUE(t->wait_for("error: there is no answer yet"));
  t->type("hello" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 4"));
  t->type("/regen" + kEnter);
  ASSERT_TRUE(t->wait_for("prompt 1 token")) << t->seen();  // all but the last one are cached
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("/edit" + kEnter);
  ASSERT_TRUE(t->wait_for("hello")) << t->seen();
  t->type(" you" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 4"));
  EXPECT_EQ(said(*t), "hello you");
  t->type("/undo" + kEnter + "/undo" + kEnter);
  ASSERT_TRUE(t->wait_for("error: there is no message yet"));
  t->type("/set temp 0.25" + kEnter);
  ASSERT_TRUE(t->wait_for("(temp is 0.25)"));
  t->type("/set temp warm" + kEnter);
  ASSERT_TRUE(t->wait_for("error: temp: 'warm' is not a number"));
  t->type("/set colour blue" + kEnter);
  ASSERT_TRUE(t->wait_for("error: unknown setting 'colour'"));
  t->type("/nonsense" + kEnter);
  ASSERT_TRUE(t->wait_for("error: unknown command /nonsense"));
  t->type("/help" + kEnter);
  ASSERT_TRUE(t->wait_for("/export FILE.md"));
  t->type("/stats" + kEnter);
  ASSERT_TRUE(t->wait_for("0 messages; context 0 of ")) << t->seen();
  ASSERT_TRUE(t->wait_for("KV cache"));
}

TEST_F(ChatTerminal, TabCompletesCommandsSettingsAndPaths) {
  std::ofstream(directory_.path("notes.txt")) << "42";
  const auto t = start({"-n", "1"});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("/se\t te\t 0.5" + kEnter);
  ASSERT_TRUE(t->wait_for("(temp is 0.5)")) << t->seen();
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("/fi\t" + directory_.path("no") + "\t" + kEnter);
  ASSERT_TRUE(t->wait_for("2 bytes, sent with the next message")) << t->seen();
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("/set re\t\t");
  ASSERT_TRUE(t->wait_for("repeat_penalty")) << t->seen();  // the choices are listed
}

TEST_F(ChatTerminal, ASavedConversationContinues) {
  const std::string path = directory_.path("talk.session");
  {
    const auto t = start({"-n", "4"});
    ASSERT_TRUE(t->wait_for(kReady));
    t->type("remember" + kEnter);
    ASSERT_TRUE(t->wait_for("answer 4"));
    t->type("/save " + path + kEnter);
    ASSERT_TRUE(t->wait_for("(saved)"));
  }
  const auto t = start({"-n", "4", "-ctk", "f32", "-ctv", "bf16"});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("/load " + path + kEnter);
  ASSERT_TRUE(t->wait_for("(loaded: 2 messages")) << t->seen();
  EXPECT_EQ(said(*t), "remember");
  t->type("next" + kEnter);
  ASSERT_TRUE(t->wait_for(" reused), ")) << t->seen();
  ASSERT_TRUE(t->wait_for("answer 4"));
  // A failed /load changes nothing.
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  t->type("/load " + path + kEnter);
  ASSERT_TRUE(t->wait_for("error: "));
  t->type("/load " + path_ + kEnter);
  ASSERT_TRUE(t->wait_for("not a saved session"));
  EXPECT_EQ(said(*t).substr(0, 8), "remember");
}

TEST_F(ChatTerminal, AFullContextIsReportedAndKeepsTheConversation) {
  const auto t = start({"-n", "4"});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("short" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 4"));
  ASSERT_TRUE(t->wait_for(kReady));
  t->type(std::string(200, 'x') + kEnter);
  ASSERT_TRUE(t->wait_for("error: the context is full")) << t->seen();
  EXPECT_EQ(said(*t), "short");
  t->type("/set context_shift on" + kEnter);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(t->wait_for(kReady));
    t->type(std::string(30, 'y') + kEnter);
  }
  ASSERT_TRUE(t->wait_for("messages are no longer included)")) << t->seen();
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("more" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 4"));
}

TEST_F(ChatTerminal, ColorsDependOnTheTerminal) {
  const auto colours = [&](TerminalOptions options) {
    const auto t = start({"-n", "2"}, std::move(options));
    EXPECT_TRUE(t->wait_for(">"));
    std::string all = t->seen();
    t->type("hi" + kEnter);
    EXPECT_TRUE(t->wait_for("answer 2"));
    all += t->seen();
    t->type("/exit" + kEnter);
    EXPECT_EQ(t->wait_for_exit(), 0);
    return all;
  };
  EXPECT_THAT(colours({}), HasSubstr("\033[1;32m"));
  EXPECT_THAT(colours(with({"NO_COLOR=1"})), Not(HasSubstr("\033[1;32m")));
  EXPECT_THAT(colours(with({"TERM=dumb"})), Not(HasSubstr("\033[")));
  EXPECT_THAT(colours(with({"TERM"})), Not(HasSubstr("\033[")));
  EXPECT_THAT(colours(with({"TERM=no-such-terminal"})), Not(HasSubstr("No entry")));
}

// stdout redirected to a file: the file has the answers, the terminal everything else.
TEST_F(ChatTerminal, StdoutCanBeRedirected) {
  const std::string file = directory_.path("answers.txt");
  TerminalOptions into_file;
  into_file.stdout_file = file;
  const auto t = start({"-n", "8"}, into_file);
  ASSERT_TRUE(t->wait_for(kReady)) << t->seen();
  t->type("hello" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 8"));
  ASSERT_TRUE(t->wait_for(kReady));
  t->type(kCtrlD);
  EXPECT_EQ(t->wait_for_exit(), 0);
  std::ifstream in(file);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  EXPECT_THAT(text, Not(HasSubstr("hello")));
  EXPECT_THAT(text, Not(HasSubstr("\033")));
  EXPECT_NE(text, "");
}

TEST_F(ChatTerminal, AClosedWindowEndsIt) {
  for (const bool answering : {false, true}) {
    const auto t = start({"-c", "60000", "--ignore-eos"});
    ASSERT_TRUE(t->wait_for(kReady));
    if (answering) t->type("go on" + kEnter);
    t->rest(50);
    t->hang_up();
    EXPECT_NE(t->wait_for_exit(10000), -1) << answering;
  }
}

}  // namespace
}  // namespace tandem
