// The program with a library inside that tries to get out of the sandbox (tests/break_out), for every command that reads
// files from strangers, on this kernel and on one without Landlock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "sandbox/sandbox.h"
#include "support/confined.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/terminal.h"
#include "support/text_files.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::file_bytes;
using testing::HasSubstr;

const std::string kReady = "\033[?2004h";  // sent when the prompt is ready for input

enum class Kernel { this_one, without_landlock };

class BreakOut : public testing::TestWithParam<Kernel> {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    if (const std::string why = sandbox::why_never_confined(); !why.empty()) GTEST_SKIP() << why;
    library_ = fs::path(test::binary_path()).parent_path() / "../lib/libbreak_out.so";
    if (!fs::exists(library_)) GTEST_SKIP() << library_ << " is not built";
    has_landlock_ = sandbox::landlock_abi() > 0;
    if (GetParam() == Kernel::without_landlock) has_landlock_ = false;
    home_ = directory_.path("home");
    fs::create_directory(home_);
    secret_ = home_ + "/secret";
    test::write_file(secret_, "secret");
    model_ = directory_.path("tiny.gguf");
    test::TinyModel model = test::tiny_llama();
    test::add_chat_template(model);
    model.write(model_);
    bytes_ = file_bytes(model_);
  }

  void prepare() {
    fs::create_directory(directory_.path("work"));
    fs::remove(directory_.path("report"));
    test::write_file(secret_, "secret");
  }
  // For the library; "NAME" is removed.
  std::vector<std::string> environment() const {
    return {"XDG_CACHE_HOME",
            "HOME=" + home_,
            "BREAK_OUT_REPORT=" + directory_.path("report"),
            "BREAK_OUT_MODEL=" + model_,
            "BREAK_OUT_SECRET=" + secret_,
            "BREAK_OUT_FOLDER=" + directory_.path("work"),
            "LD_PRELOAD=" + library_};
  }

  // Runs the program with the library, in a shell in the folder of outputs.
  test::Outcome run(const std::string& arguments) {
    prepare();
    std::string before = "cd " + directory_.path("work") + " && env";
    for (const std::string& variable : environment())
      before += (variable.find('=') == variable.npos ? " -u " : " ") + variable;
    if (GetParam() == Kernel::this_one) return test::shell(before, arguments);
    test::Outcome outcome;
    const std::string code = test::in_child([&] {
      if (!test::take_landlock_away()) return std::string("Landlock cannot be taken away");
      const test::Outcome ran = test::shell(before, arguments);
      return std::to_string(ran.exit_code) + "\n" + ran.out;
    });
    std::istringstream(code) >> outcome.exit_code;
    outcome.out = code.substr(std::min(code.find('\n'), code.size() - 1) + 1);
    return outcome;
  }

  // A chat at a terminal, whose user only presses Enter, then asks for one answer and leaves. What is wrong with it.
  std::string chat() const {
    test::TerminalOptions options;
    options.columns = 200;
    options.environment = environment();
    options.environment.insert(options.environment.end(),
                               {"BREAK_OUT_CHAT=1", "TERM=xterm", "XDG_STATE_HOME=" + home_, "NO_COLOR"});
    test::Terminal t({test::binary_path(), "chat", "-m", model_, "-n", "4", "--seed", "1"}, options);
    for (const char* name : {"> /load ", "> /save "}) {
      if (!t.wait_for_row(name + secret_)) return "no such line\n" + t.screen().text();
      t.type("\r");
    }
    // The library destroys what it can, so on a kernel without Landlock there may be no model left.
    if (!has_landlock_) return t.wait_for_exit() >= 0 ? "" : "no end\n" + t.screen().text();
    if (!t.wait_for("Ctrl-D exits") || !t.wait_for(kReady)) return "no prompt\n" + t.screen().text();
    t.type("hello\r");
    if (!t.wait_for(kReady)) return "no answer\n" + t.screen().text();
    t.type("/exit\r");
    const int code = t.wait_for_exit();
    return code == 0 ? "" : "exit code " + std::to_string(code) + "\n" + t.screen().text();
  }

  std::map<std::string, std::string> attempts() const {
    std::map<std::string, std::string> found;
    std::ifstream in(directory_.path("report"));
    for (std::string line; std::getline(in, line);) {
      const size_t colon = line.find(": ");
      if (colon != line.npos) found[line.substr(0, colon)] = line.substr(colon + 2);
    }
    return found;
  }

  // That nothing got out but what this kernel cannot stop. `further`: results of other attempts, on every kernel.
  void expect_confined(const std::string& command, const std::map<std::string, std::string>& further = {}) {
    SCOPED_TRACE(command);
    std::map<std::string, std::string> needed;
    for (const char* what :
         {"start a program", "start a process", "become a program", "become a program in memory",
          "debug the parent", "signal the parent", "type into the terminal", "open a socket",
          "open a local socket", "connect", "make an io_uring", "change its mode"})
      needed[what] = "EPERM";
    needed["confine"] = needed["read the model"] = "ok";
    for (const char* what :
         {"read /etc/passwd", "read a file of the user", "read it through /proc", "list the home folder",
          "write beside the outputs", "write into the model", "write into a file of the user",
          "replace a file of the user", "link it", "remove it", "cut it", "make a folder",
          "write the parent's memory", "read the parent's environment"})
      needed[what] = "EACCES";
    std::map<std::string, std::string> found = attempts();
    if (!has_landlock_) {
      for (const auto& [what, result] : needed) {
        if (result == "EACCES") found.erase(what);
      }
      std::erase_if(needed, [](const auto& attempt) { return attempt.second == "EACCES"; });
    }
    if (has_landlock_ && sandbox::landlock_abi() < 3) {  // cannot limit truncate()
      found.erase("cut it");
      needed.erase("cut it");
    }
    if (found["link it"] == "EXDEV") found["link it"] = "EACCES";  // the first version's answer
    if (!has_landlock_) found.erase("link it");
    const bool may_cut = !needed.contains("cut it");
    needed.insert(further.begin(), further.end());
    EXPECT_EQ(found, needed);
    if (!has_landlock_) return;
    if (!may_cut) {
      EXPECT_EQ(file_bytes(secret_), "secret");
    }
    EXPECT_TRUE(file_bytes(model_) == bytes_);
    EXPECT_FALSE(fs::exists(directory_.path("work/.profile")));
  }

  test::TempDir directory_;
  std::string library_, home_, secret_, model_, bytes_;
  bool has_landlock_ = false;
};

TEST_P(BreakOut, NothingGetsOutOfACommand) {
  test::write_file(directory_.path("text"), std::string(2000, 'a'));
  test::write_file(directory_.path("lines"), "{\"prompt\": \"a\"}\n");
  test::write_file(directory_.path("messages"), "[{\"role\": \"user\", \"content\": \"a\"}]");
  const std::string text = directory_.path("text"), m = " -m " + model_ + " ";
  const std::pair<std::string, std::string> commands[] = {
      {"run", "run" + m + "-p a -n 2 --prompt-cache cache"},
      {"chat", "chat" + m + "-p a -n 2 --session talk"},
      {"batch", "batch" + m + "-n 2 -i ../lines -o answers"},
      {"bench", "bench" + m + "-p 8 -n 2 -r 1"},
      {"perplexity", "perplexity" + m + "-c 64 --chunks 1 -f " + text + " --save-all-logits logits"},
      {"imatrix", "imatrix" + m + "-c 64 --chunks 1 -f ../text -o matrix"},
      {"inspect", "inspect " + model_},
      {"tokenize", "tokenize" + m + "-f ../text"},
      {"template", "template" + m + "-i ../messages"},
      {"quantize", "quantize " + model_ + " out.gguf Q8_0"},
      {"split", "split --split-max-tensors 4 " + model_ + " parts"},
      {"plan", "plan" + m},
  };
  for (const auto& [name, arguments] : commands) {
    // The library destroys what it can, so each command of a kernel without Landlock gets a model of its own.
    test::write_file(model_, bytes_);
    const test::Outcome outcome = run(arguments + " 2>&1 </dev/null");
    if (has_landlock_) {
      EXPECT_EQ(outcome.exit_code, 0) << name << ": " << outcome.out;
    }
    expect_confined(name);
  }
  if (!has_landlock_) return;
  for (const char* file :
       {"cache", "talk", "answers", "logits", "matrix", "out.gguf", "parts-00001-of-00006.gguf"})
    EXPECT_TRUE(fs::exists(directory_.path("work/" + std::string(file)))) << file;
}

TEST_P(BreakOut, NothingGetsOutOfAChatAtATerminal) {
  prepare();
  if (GetParam() == Kernel::this_one) {
    EXPECT_EQ(chat(), "");
  } else {
    EXPECT_EQ(
        test::in_child([&] { return test::take_landlock_away() ? chat() : "Landlock cannot be taken away"; }),
        "");
  }
  expect_confined("chat at a terminal", {{"have the helper read a file", "EACCES"},
                                         {"have the helper write a file", "EACCES"},
                                         {"put a name into the line", "ok"},
                                         {"have the helper read it then", "EACCES"},
                                         {"have the helper write it then", "EACCES"}});
}

TEST_P(BreakOut, WithoutTheSandboxNothingIsTried) {
  const test::Outcome outcome = run("run --no-sandbox -m " + model_ + " -p a -n 2 -v 2>&1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_TRUE(attempts().empty());
  EXPECT_THAT(outcome.out, HasSubstr("sandbox: switched off"));
}

TEST_P(BreakOut, OneLineSaysWhatIsInForce) {
  const test::Outcome outcome = run("inspect " + model_ + " 2>&1");
  EXPECT_EQ(outcome.out.find("sandbox"), outcome.out.npos);
  const test::Outcome verbose = run("run -m " + model_ + " -p a -n 2 -v 2>&1");
  EXPECT_THAT(verbose.out,
              HasSubstr(has_landlock_ ? "sandbox: files limited (Landlock "
                                      : "sandbox: files not limited: this kernel has no Landlock"));
  EXPECT_THAT(verbose.out, HasSubstr("; no other programs, no network, no debugging (seccomp)\n"));
}

INSTANTIATE_TEST_SUITE_P(Kernels, BreakOut, testing::Values(Kernel::this_one, Kernel::without_landlock),
                         [](const auto& parameter) {
                           return parameter.param == Kernel::this_one ? "This" : "WithoutLandlock";
                         });

}  // namespace
}  // namespace tandem
