// The program as a process: its output on stdout and stderr, and its exit codes.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using test::Outcome;
using test::shell;

class Main : public testing::Test {
 protected:
  void SetUp() override { TANDEM_NEED_BINARY(); }
};

TEST_F(Main, VersionAndHelpGoToStdout) {
  const Outcome version = shell("", "--version 2>/dev/null");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out.rfind("tandem ", 0), 0u);
  for (const char* fact : {"(commit ", "compiler: ", "scalar, ", "; here ", "CUDA"}) {
    EXPECT_NE(version.out.find(fact), std::string::npos) << fact << " in " << version.out;
  }
  EXPECT_EQ(version.out.back(), '\n');
  const Outcome help = shell("", "--help 2>/dev/null");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("Usage: tandem"), std::string::npos);
}

TEST_F(Main, WithoutArgumentsThePageGoesToStderr) {
  const Outcome quiet = shell("", "2>/dev/null");
  EXPECT_EQ(quiet.exit_code, 2);
  EXPECT_EQ(quiet.out, "");
  EXPECT_NE(shell("", "2>&1").out.find("Usage: tandem"), std::string::npos);
}

TEST_F(Main, UsageLinesNameWhatIsNeeded) {
  const auto usage = [](const std::string& command) {
    const std::string page = shell("", command + " --help 2>/dev/null").out;
    const size_t start = page.find("Usage: ");
    return start == std::string::npos ? page : page.substr(start, page.find('\n', start) - start);
  };
  EXPECT_EQ(usage("convert"), "Usage: tandem convert DIR -o FILE [options]");
  EXPECT_EQ(usage("quantize"), "Usage: tandem quantize IN.gguf [OUT.gguf] TYPE [THREADS] [options]");
  EXPECT_EQ(usage("split"), "Usage: tandem split IN.gguf OUT [options]");
  EXPECT_EQ(usage("merge"), "Usage: tandem merge IN.gguf OUT.gguf [options]");
}

TEST_F(Main, UsageErrorsAreOneLineWithAHint) {
  const Outcome wrong = shell("", "--nonsense 2>&1");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_EQ(wrong.out, "tandem: error: unknown option '--nonsense' (try 'tandem --help')\n");
}

TEST_F(Main, HelpAndVersionAreCommandsToo) {
  EXPECT_EQ(shell("", "version").out, shell("", "--version").out);
  EXPECT_EQ(shell("", "help").out, shell("", "--help").out);
  EXPECT_EQ(shell("", "help quantize").out, shell("", "quantize --help").out);
  const Outcome wrong = shell("", "help quantise 2>&1");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.out.find("unknown command 'quantise'; did you mean 'quantize'?"), std::string::npos)
      << wrong.out;
}

TEST_F(Main, MissingArgumentsAreNamedAsOnTheHelpPage) {
  const Outcome nothing = shell("", "quantize 2>&1");
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_EQ(
      nothing.out,
      "tandem: error: an argument is missing: needed tandem quantize IN.gguf [OUT.gguf] TYPE [THREADS] (try "
      "'tandem quantize --help')\n");
  EXPECT_NE(shell("", "split one 2>&1").out.find("needed tandem split IN.gguf OUT"), std::string::npos);
  const Outcome folder = shell("", "convert /no/such -o x.gguf 2>&1");
  EXPECT_EQ(folder.exit_code, 5);
  EXPECT_NE(folder.out.find("/no/such: no such folder"), std::string::npos) << folder.out;
}

// What a library writes for its developers does not reach people.
TEST_F(Main, MessagesNameNoInternals) {
  const test::TempDir directory;
  test::write_file(directory.path("config.json"), "{nonsense");
  const Outcome config = shell("", "convert '" + directory.path("") + "' -o /dev/null 2>&1");
  EXPECT_EQ(config.exit_code, 3);
  EXPECT_NE(config.out.find("invalid JSON: column 3"), std::string::npos) << config.out;
  const Outcome schema = shell("", "run x.gguf hi -j '{' 2>&1");
  EXPECT_EQ(schema.out.find("json.exception"), std::string::npos) << schema.out;
  EXPECT_NE(schema.out.find("invalid JSON: column 2"), std::string::npos) << schema.out;
}

TEST_F(Main, CtrlCSaysWhatBecameOfTheOutput) {
  const test::TempDir directory;
  test::tiny_llama().write(directory.path("m.gguf"));
  std::string text;
  for (int i = 0; i < 400000; ++i) text += "a b ";
  test::write_file(directory.path("text.txt"), text);
  const Outcome stopped =
      shell("cd '" + directory.path("") + "' && touch err && {",
            "imatrix -m m.gguf -f text.txt -c 64 -ofreq 1000000 -o out.gguf 2>err & pid=$!; "
            "until grep -q 'chunk ' err; do kill -0 $pid || break; done; "
            "kill -INT $pid; wait $pid; echo $?; } 2>&1; tail -1 err; ls out.gguf 2>&1");
  EXPECT_EQ(stopped.out.rfind("130\n", 0), 0u) << stopped.out;
  EXPECT_NE(stopped.out.find("tandem: interrupted after "), std::string::npos) << stopped.out;
  EXPECT_NE(stopped.out.find("out.gguf is not written"), std::string::npos) << stopped.out;
}

TEST_F(Main, UnwritableOutput) {
  const Outcome full = shell("", "--help 2>&1 >/dev/full");
  EXPECT_EQ(full.exit_code, 5);
  EXPECT_EQ(full.out, "tandem: error: stdout: write failed: No space left on device\n");
  // a pipe closed by its reader: no message, exit code 5
  const Outcome closed = shell("{ { sleep 0.2;", "--help; echo $? >&3; } | true; } 3>&1 2>&1");
  EXPECT_EQ(closed.out, "5\n");
}

// An opened file must not get the number of a closed stdout or stderr: messages would be written into it.
TEST_F(Main, ClosedDescriptorsAreNotReused) {
  const test::TempDir directory;
  const std::string model = directory.path("m.gguf");
  test::tiny_llama().write(model);
  const auto quantized = [&](const std::string& name, const std::string& redirections) {
    const Outcome result =
        shell("", "quantize '" + model + "' '" + directory.path(name) + "' Q8_0 " + redirections);
    EXPECT_EQ(result.exit_code, 0) << redirections;
    std::ifstream in(directory.path(name), std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  };
  const std::string expected = quantized("usual.gguf", "2>/dev/null");
  EXPECT_FALSE(expected.empty());
  EXPECT_TRUE(quantized("a.gguf", "2>&-") == expected);
  EXPECT_TRUE(quantized("b.gguf", "<&- >&- 2>&-") == expected);
  EXPECT_EQ(shell("", "inspect '" + model + "' 2>&1 >&-").out,
            "tandem: error: stdout: write failed: Bad file descriptor\n");
}

TEST_F(Main, AnEmptyNameOfAFileToWrite) {
  const test::TempDir directory;
  test::tiny_llama().write(directory.path("m.gguf"));
  const Outcome result = shell("cd '" + directory.path("") + "' &&", "quantize m.gguf '' Q8_0 2>&1");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.out.find("the output file name is empty"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace tandem
