// Completion scripts and the manual page: read by the programs that they are for, where these are installed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/text_files.h"

namespace tandem {
namespace {

using test::lines_of;
using test::shell;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

bool installed(const std::string& program) {
  return shell("command -v " + program + " >/dev/null || exit 9; true", "--version >/dev/null").exit_code ==
         0;
}

class Completion : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::write_file(folder_.path("one.gguf"), "");
    test::write_file(folder_.path("two words.gguf"), "");
    test::write_file(folder_.path("notes.txt"), "");
  }

  // What bash offers for the last of these words, in a folder with two models and a text.
  std::vector<std::string> bash(const std::vector<std::string>& words) {
    std::string list;
    for (const std::string& word : words) list += " '" + word + "'";
    test::write_file(folder_.path("complete.bash"), "source script.bash\nCOMP_WORDS=(tandem" + list +
                                                        ")\nCOMP_CWORD=" + std::to_string(words.size()) +
                                                        "\n_tandem\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
    const auto outcome = shell("cd '" + folder_.path("") + "' &&",
                               "completion bash >script.bash && bash -u "
                               "complete.bash 2>&1");
    return lines_of(outcome.out);
  }

  test::TempDir folder_;
};

TEST_F(Completion, BashCompletesCommandsOptionsValuesAndModels) {
  EXPECT_THAT(bash({""}), IsSupersetOf({"run", "chat", "quantize", "completion"}));
  EXPECT_EQ(bash({"quan"}), (std::vector<std::string>{"quantize"}));
  EXPECT_THAT(bash({"--ver"}), Contains("--version"));
  EXPECT_THAT(bash({"run", "--ctx"}), Contains("--ctx-size"));
  EXPECT_THAT(bash({"run", "-n"}), IsSupersetOf({"-n", "-ngl", "-nkvo"}));
  EXPECT_THAT(bash({"split", "--"}), Not(Contains("--ctx-size")));
  EXPECT_EQ(bash({"run", "--split-mode", "la"}), (std::vector<std::string>{"layer"}));
  EXPECT_EQ(bash({"run", "-ctk", "q"}), (std::vector<std::string>{"q8_0", "q5_1", "q5_0", "q4_1", "q4_0"}));
  EXPECT_EQ(bash({"run", "--cache-type-k", "=", "q8"}), (std::vector<std::string>{"q8_0"}));
  EXPECT_EQ(bash({"run", "-m", "o"}), (std::vector<std::string>{"one.gguf"}));
  EXPECT_THAT(bash({"run", "-m", ""}), IsSupersetOf({"one.gguf", "two words.gguf"}));
  EXPECT_THAT(bash({"run", "-m", ""}), Not(Contains("notes.txt")));
  EXPECT_THAT(bash({"run", "-f", ""}), Contains("notes.txt"));
  EXPECT_EQ(bash({"chat", "-c", "512", "o"}), (std::vector<std::string>{"one.gguf"}));
  EXPECT_THAT(bash({"quantize", "one.gguf", "two.gguf", "Q4_K"}), IsSupersetOf({"Q4_K_M", "Q4_K_S"}));
  EXPECT_EQ(bash({"completion", "f"}), (std::vector<std::string>{"fish"}));
  EXPECT_EQ(bash({"help", "mer"}), (std::vector<std::string>{"merge"}));
  EXPECT_EQ(bash({"nonsense", ""}), (std::vector<std::string>{""}));
}

TEST_F(Completion, LlamaCppsFlagPrintsTheSameScript) {
  const std::string script = shell("", "completion bash").out;
  EXPECT_THAT(script, HasSubstr("complete -F _tandem tandem"));
  EXPECT_EQ(shell("", "--completion-bash").out, script);
  EXPECT_EQ(shell("", "run --completion-bash").out, script);
  EXPECT_EQ(shell("", "completion tcsh 2>/dev/null").exit_code, 2);
}

TEST_F(Completion, ZshReadsItsScript) {
  if (!installed("zsh")) GTEST_SKIP() << "zsh is not installed";
  const auto outcome = shell("cd '" + folder_.path("") + "' &&",
                             "completion zsh >_tandem && zsh -n _tandem 2>&1 && "
                             "zsh -f -c 'autoload -U compinit && compinit -D -u; source ./_tandem; print -r "
                             "-- $_comps[tandem]' 2>&1");
  EXPECT_EQ(outcome.out, "_tandem\n");
}

TEST_F(Completion, FishCompletes) {
  if (!installed("fish")) GTEST_SKIP() << "fish is not installed";
  const auto fish = [&](const std::string& line) {
    return shell("cd '" + folder_.path("") + "' && export HOME=\"$PWD\" &&",
                 "completion fish >t.fish && fish --no-config -c 'source t.fish; complete -C \"" + line +
                     "\"' 2>&1")
        .out;
  };
  EXPECT_THAT(fish("tandem quan"), HasSubstr("quantize\t"));
  EXPECT_THAT(fish("tandem run --ctx"), HasSubstr("--ctx-size\t"));
  EXPECT_THAT(fish("tandem run --split-mode la"), HasSubstr("layer"));
  EXPECT_THAT(fish("tandem run -m o"), HasSubstr("one.gguf"));
  EXPECT_THAT(fish("tandem split --ctx"), Not(HasSubstr("--ctx-size")));
}

TEST_F(Completion, TheManualPageHasNoMistakes) {
  const std::string page = shell("", "help --man").out;
  for (const char* part : {".TH TANDEM 1", ".SH NAME", ".SH SYNOPSIS", "tandem quantize", "\\-\\-ctx\\-size",
                           ".SH CONFIGURATION FILE", ".SH EXIT STATUS"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  test::write_file(folder_.path("tandem.1"), page);
  if (installed("mandoc")) {
    const auto lint = shell("mandoc -T lint -W error '" + folder_.path("tandem.1") + "' 2>&1; true",
                            "--version >/dev/null");
    EXPECT_EQ(lint.out, "");
  }
  if (installed("groff")) {
    const auto warnings =
        shell("groff -man -Tutf8 -ww '" + folder_.path("tandem.1") + "' 2>&1 >/dev/null; true",
              "--version >/dev/null");
    EXPECT_EQ(warnings.out, "");
  }
}

}  // namespace
}  // namespace tandem
