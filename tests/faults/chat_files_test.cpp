// The files of tandem chat: sessions that survive every way to end, and files that are never overwritten.
#include <sys/stat.h>

#include "base/output_file.h"
#include "sandbox/sandbox.h"
#include "support/chat_terminal.h"
#include "support/text_files.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Not;
using namespace test;

class ChatFiles : public ChatTerminal {
 protected:
  // In a window that wraps no message.
  std::unique_ptr<Terminal> start(const std::vector<std::string>& arguments) {
    TerminalOptions wide;
    wide.columns = 250;
    return ChatTerminal::start(arguments, wide);
  }

  // Whether the chat is left or not, the file holds the conversation.
  void expect_resumed(const std::string& session, const std::string& message) {
    const auto t = start({"-n", "4", "--session", session});
    ASSERT_TRUE(t->wait_for_row("(resumed: 2 messages)")) << t->screen().text();
    ASSERT_TRUE(t->wait_for_row("> " + message)) << t->screen().text();
    ASSERT_TRUE(t->wait_for(kReady));
    EXPECT_EQ(said(*t), message);
    t->type("next" + kEnter);
    ASSERT_TRUE(t->wait_for("answer 4")) << t->screen().text();
  }

  void say(Terminal& t, const std::string& message, const std::string& wait = "answer 4") {
    ASSERT_TRUE(t.wait_for(kReady)) << t.seen();
    t.type(message + kEnter);
    ASSERT_TRUE(t.wait_for(wait)) << t.seen();
    ASSERT_TRUE(t.wait_for(kReady));
  }
};

TEST_F(ChatFiles, ASessionIsSavedAfterEachTurn) {
  const std::string session = directory_.path("talk.session");
  {
    const auto t = start({"-n", "4", "--session", session});
    say(*t, "remember me");
    EXPECT_TRUE(std::filesystem::exists(session));
    kill(t->child(), SIGKILL);
    EXPECT_EQ(t->wait_for_exit(), 128 + SIGKILL);
  }
  expect_resumed(session, "remember me");
}

TEST_F(ChatFiles, SigtermAndSighupInAnAnswerSaveIt) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    const std::string session = directory_.path("talk.session" + std::to_string(signal));
    {
      const auto t = start({"-c", "60000", "--ignore-eos", "--session", session});
      ASSERT_TRUE(t->wait_for(kReady));
      t->type("go on" + kEnter);
      ASSERT_TRUE(t->wait_for("\n"));
      ASSERT_TRUE(t->wait_for("e"));
      kill(t->child(), signal);
      EXPECT_EQ(t->wait_for_exit(), 128 + signal);
      EXPECT_TRUE(t->echoes());
    }
    EXPECT_TRUE(std::filesystem::exists(session));
    const auto t = start({"-c", "60000", "-n", "4", "--session", session});
    ASSERT_TRUE(t->wait_for("(resumed: 2 messages)")) << t->seen();
    ASSERT_TRUE(t->wait_for(kReady));
    EXPECT_EQ(said(*t), "go on");
  }
}

TEST_F(ChatFiles, AClosedWindowSavesTheSession) {
  const std::string session = directory_.path("talk.session");
  const auto t = start({"-c", "60000", "--ignore-eos", "--session", session});
  ASSERT_TRUE(t->wait_for(kReady));
  t->type("go on" + kEnter);
  ASSERT_TRUE(t->wait_for("\n"));
  ASSERT_TRUE(t->wait_for("e"));
  t->hang_up();
  EXPECT_NE(t->wait_for_exit(20000), -1);
  const auto again = start({"-c", "60000", "-n", "4", "--session", session});
  ASSERT_TRUE(again->wait_for("(resumed: 2 messages)")) << again->seen();
}

TEST_F(ChatFiles, TheModelIsNeverOverwritten) {
  const std::string before = file_bytes(path_), link = directory_.path("link.gguf");
  std::filesystem::create_hard_link(path_, link);
  {
    const auto t = start({"-n", "4"});
    say(*t, "hello");
    for (const std::string command : {"/save ", "/save! ", "/export ", "/export! "}) {
      for (const std::string& file : {path_, link}) {
        t->type(command + file + kEnter);
        ASSERT_TRUE(t->wait_for("is the model in use")) << t->seen();
      }
    }
  }
  const auto t = start({"-n", "4", "--session", path_});
  ASSERT_TRUE(t->wait_for("is the model in use")) << t->seen();
  EXPECT_EQ(t->wait_for_exit(), 2);
  EXPECT_EQ(shell("", "run -m " + path_ + " -p x -n 1 --prompt-cache " + path_ + " 2>&1").exit_code, 3);
  const Outcome log = shell("", "run -m " + path_ + " -p x -n 1 --log-file " + path_ + " 2>&1");
  EXPECT_EQ(log.exit_code, 2);
  EXPECT_THAT(log.out, HasSubstr("is not a log of this program"));
  EXPECT_EQ(file_bytes(path_), before);
}

TEST_F(ChatFiles, ALogFileOnAFullDiskWarnsOnce) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  const Outcome log = shell("", "run -m " + path_ + " -p x -n 1 --log-file /dev/full 2>&1");
  EXPECT_EQ(log.exit_code, 0) << log.out;
  const size_t at = log.out.find("the log file cannot be written");
  ASSERT_NE(at, log.out.npos) << log.out;
  EXPECT_EQ(log.out.find("the log file cannot be written", at + 1), log.out.npos) << log.out;
}

// A history that is no regular file neither stops the chat nor gets lines.
TEST_F(ChatFiles, AHistoryThatIsNoFileIsLeftAlone) {
  const std::string folder = directory_.path("state/tandem"), history = folder + "/chat_history";
  std::filesystem::create_directories(folder);
  ASSERT_EQ(mkfifo(history.c_str(), 0600), 0);
  {
    const auto t = start({"-n", "4"});
    say(*t, "hello");
    t->type(kCtrlD);
    EXPECT_EQ(t->wait_for_exit(), 0);
  }
  std::filesystem::remove(history);
  std::filesystem::create_symlink("/dev/full", history);
  const auto t = start({"-n", "4"});
  say(*t, "hello");
}

TEST_F(ChatFiles, APromptCacheNeverReplacesAConversation) {
  const std::string session = directory_.path("talk.session");
  {
    const auto t = start({"-n", "4", "--session", session});
    say(*t, "remember me");
    t->type(kCtrlD);
    EXPECT_EQ(t->wait_for_exit(), 0);
  }
  const std::string before = file_bytes(session);
  for (const char* arguments : {"-p x", "-p x --prompt-cache-all", ""}) {
    const Outcome run = shell(
        "", "run -m " + path_ + " -n 1 --prompt-cache " + session + " " + arguments + " 2>&1 </dev/null");
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_THAT(run.out, HasSubstr(session + ": holds a conversation of tandem chat")) << arguments;
    EXPECT_TRUE(file_bytes(session) == before) << arguments;
  }
  const Outcome reads =
      shell("", "run -m " + path_ + " -n 1 --prompt-cache-ro --prompt-cache " + session + " 2>&1 </dev/null");
  EXPECT_EQ(reads.exit_code, 0) << reads.out;
  EXPECT_TRUE(file_bytes(session) == before);
  expect_resumed(session, "remember me");
}

// And a conversation never replaces a prompt cache.
TEST_F(ChatFiles, AConversationNeverReplacesAPromptCache) {
  const std::string cache = directory_.path("prompt.cache");
  ASSERT_EQ(shell("", "run -m " + path_ + " -n 1 -p x --prompt-cache " + cache + " 2>&1").exit_code, 0);
  const std::string before = file_bytes(cache);
  const auto t = start({"-n", "4"});
  say(*t, "hello");
  t->type("/save! " + cache + kEnter);
  ASSERT_TRUE(t->wait_for("exists and is not a saved session")) << t->seen();
  EXPECT_TRUE(file_bytes(cache) == before);
  EXPECT_EQ(shell("", "run -m " + path_ + " -n 1 -p 'x y' --prompt-cache " + cache + " 2>&1").exit_code, 0);
}

TEST_F(ChatFiles, OtherFilesAreReplacedOnlyWhenAsked) {
  const std::string notes = directory_.path("notes.txt"), session = directory_.path("a.session");
  write_file(notes, "important");
  const auto t = start({"-n", "4"});
  say(*t, "hello");
  t->type("/save " + notes + kEnter);
  ASSERT_TRUE(t->wait_for("exists and is not a saved session")) << t->seen();
  t->type("/save! " + notes + kEnter);
  ASSERT_TRUE(t->wait_for("exists and is not a saved session")) << t->seen();
  t->type("/export " + notes + kEnter);
  ASSERT_TRUE(t->wait_for("/export! ")) << t->seen();
  EXPECT_EQ(file_bytes(notes), "important");
  t->type("/export! " + notes + kEnter);
  ASSERT_TRUE(t->wait_for("(written)")) << t->seen();
  EXPECT_THAT(file_bytes(notes), HasSubstr("hello"));
  t->type("/export " + notes + kEnter);  // its own
  ASSERT_TRUE(t->wait_for("(written)")) << t->seen();
  for (int i = 0; i < 2; ++i) {
    t->type("/save " + session + kEnter);
    ASSERT_TRUE(t->wait_for("(saved)")) << t->seen();
  }
  const auto other = start({"-n", "4"});
  say(*other, "hello");
  other->type("/save " + session + kEnter);
  ASSERT_TRUE(other->wait_for("/save! ")) << other->seen();
  other->type("/save! " + session + kEnter);
  ASSERT_TRUE(other->wait_for("(saved)")) << other->seen();
}

TEST_F(ChatFiles, ALogIsOnlyAppendedToALog) {
  const std::string log = directory_.path("log.txt"), notes = directory_.path("notes.txt");
  const std::string command = "run -m " + path_ + " -p x -n 1 2>/dev/null --log-file ";
  EXPECT_EQ(shell("", command + log).exit_code, 0);
  const size_t n = file_bytes(log).size();
  EXPECT_GT(n, 0u);
  EXPECT_EQ(shell("", command + log).exit_code, 0);
  EXPECT_GT(file_bytes(log).size(), n);
  EXPECT_EQ(shell("", command + "/dev/null").exit_code, 0);
  write_file(notes, "important");
  EXPECT_EQ(shell("", command + notes).exit_code, 2);
  EXPECT_EQ(file_bytes(notes), "important");
}

TEST_F(ChatFiles, AnotherModelContinuesTheConversation) {
  const std::string other = directory_.path("other.gguf");
  TinyModel model = tiny_llama({.n_layer = 3}, 7);
  add_chat_template(model);
  model.write(other);
  const auto t = start({"-n", "4"});
  say(*t, "hello");
  t->type("/model " + directory_.path("none.gguf") + kEnter);
  ASSERT_TRUE(t->wait_for("error: ")) << t->seen();
  EXPECT_EQ(said(*t), "hello");
  t->type("/model " + other + kEnter);
  ASSERT_TRUE(t->wait_for("(continuing with 2 messages)")) << t->seen();
  EXPECT_EQ(said(*t), "hello");
  t->type("next" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 4")) << t->seen();
  t->type("/stats" + kEnter);
  ASSERT_TRUE(t->wait_for("other.gguf")) << t->seen();
  ASSERT_TRUE(t->wait_for("4 messages")) << t->seen();
}

TEST_F(ChatFiles, AModelOfTheHubIsPulledBeforeTheChat) {
  if (!sandbox::why_never_confined().empty()) GTEST_SKIP() << sandbox::why_never_confined();
  TerminalOptions wide;
  wide.columns = 250;
  wide.environment = {"HF_HOME=" + directory_.path("hub"), "HF_ENDPOINT=http://127.0.0.1:1"};
  const auto t = ChatTerminal::start({"-n", "4"}, wide);
  say(*t, "hello");
  t->type("/model user/repo:Q8_0" + kEnter);
  ASSERT_TRUE(
      t->wait_for("user/repo:Q8_0: not downloaded, and in the sandbox there is no network: run 'tandem pull "
                  "user/repo:Q8_0' first"))
      << t->seen();
  EXPECT_EQ(said(*t), "hello");
}

TEST_F(ChatFiles, HistoryRawAndSettings) {
  const auto t = start({"-n", "4"});
  say(*t, "hello there");
  t->type("\x0c");  // clears the screen
  ASSERT_TRUE(t->wait_for_screen([](const Screen& s) { return s.cursor_row() == 0; }));
  t->type("/history" + kEnter);
  ASSERT_TRUE(t->wait_for_row("> hello there")) << t->screen().text();
  t->type("/raw on" + kEnter);
  ASSERT_TRUE(t->wait_for("(Markdown is shown as it is)")) << t->seen();
  t->type("/set markdown" + kEnter);
  ASSERT_TRUE(t->wait_for("(markdown is off)")) << t->seen();
  t->type("/set temp" + kEnter);
  ASSERT_TRUE(t->wait_for("(temp is 0.8)")) << t->seen();
  t->type("/histroy" + kEnter);
  ASSERT_TRUE(t->wait_for("did you mean /history?")) << t->seen();
  t->type("/?" + kEnter);
  ASSERT_TRUE(t->wait_for("/history")) << t->seen();
  t->type("/bye" + kEnter);
  EXPECT_EQ(t->wait_for_exit(), 0);
}

}  // namespace
}  // namespace tandem
