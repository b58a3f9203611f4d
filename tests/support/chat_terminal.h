// tandem chat in a pseudo-terminal, with a tiny model.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/terminal.h"
#include "support/tiny_model.h"

namespace tandem::test {

inline const std::string kCtrlC = "\x03", kCtrlD = "\x04", kCtrlZ = "\x1a", kEnter = "\r", kUp = "\033[A",
                         kLeft = "\033[D";
inline const std::string kReady = "\033[?2004h";  // sent when the prompt is ready for input

inline TerminalOptions with(std::vector<std::string> environment) {
  TerminalOptions options;
  options.environment = std::move(environment);
  return options;
}

class ChatTerminal : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    path_ = directory_.path("tiny.gguf");
    TinyModel model = tiny_llama();
    add_chat_template(model);
    model.write(path_);
  }

  std::vector<std::string> command(const std::vector<std::string>& arguments = {}) const {
    std::vector<std::string> argv = {binary_path(), "chat", "-m", path_, "-s", "1", "-t", "1"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return argv;
  }

  TerminalOptions environment(TerminalOptions options = {}) const {
    std::vector<std::string> variables = {"TERM=xterm", "XDG_STATE_HOME=" + directory_.path("state"),
                                          "NO_COLOR", "TMUX", "XTERM_VERSION"};
    variables.insert(variables.end(), options.environment.begin(), options.environment.end());
    options.environment = variables;
    return options;
  }

  std::unique_ptr<Terminal> start(const std::vector<std::string>& arguments = {},
                                  TerminalOptions options = {}) {
    return std::make_unique<Terminal>(command(arguments), environment(std::move(options)));
  }

  // The same, as a job of an interactive shell, which ends after it.
  std::unique_ptr<Terminal> start_in_shell(const std::vector<std::string>& arguments = {},
                                           TerminalOptions options = {}) {
    options = environment(std::move(options));
    options.environment.insert(options.environment.end(), {"PS1=$ ", "ENV"});
    auto t = std::make_unique<Terminal>(std::vector<std::string>{"/bin/sh", "-i"}, options);
    std::string line;
    for (const std::string& word : command(arguments)) line += "'" + word + "' ";
    t->type("clear; " + line + kEnter);
    return t;
  }

  // The user's message in the exported conversation.
  std::string said(Terminal& terminal) {
    const std::string path = directory_.path("said.md");
    std::filesystem::remove(path);
    terminal.type("/export " + path + kEnter);
    EXPECT_TRUE(terminal.wait_for("(written)")) << terminal.seen();
    std::ifstream in(path);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const size_t begin = text.find("## User\n\n"), end = text.find("\n\n## Assistant");
    return begin == text.npos || end == text.npos ? text : text.substr(begin + 9, end - begin - 9);
  }

  TempDir directory_;
  std::string path_;
};

}  // namespace tandem::test
