// The program from outside: what it prints where, and its exit codes.
#include <gtest/gtest.h>

#include <string>

#include "support/process.h"

namespace tandem {
namespace {

using test::shell;
using Result = test::Outcome;

class Main : public testing::Test {
 protected:
  void SetUp() override { TANDEM_NEED_BINARY(); }
};

TEST_F(Main, VersionAndHelpGoToStdout) {
  const Result version = shell("", "--version 2>/dev/null");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out.rfind("tandem ", 0), 0u);
  EXPECT_EQ(version.out.find('\n'), version.out.size() - 1);
  const Result help = shell("", "--help 2>/dev/null");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("Usage: tandem"), std::string::npos);
}

TEST_F(Main, WithoutArgumentsThePageGoesToStderr) {
  const Result quiet = shell("", "2>/dev/null");
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
  const Result wrong = shell("", "--nonsense 2>&1");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_EQ(wrong.out, "tandem: error: unknown option '--nonsense' (try 'tandem --help')\n");
}

TEST_F(Main, OutputThatCannotBeWritten) {
  const Result full = shell("", "--help 2>&1 >/dev/full");
  EXPECT_EQ(full.exit_code, 5);
  EXPECT_EQ(full.out, "tandem: error: stdout: write failed: No space left on device\n");
  // a pipe whose reader has left: no message, exit code 5
  const Result closed = shell("{ { sleep 0.2;", "--help; echo $? >&3; } | true; } 3>&1 2>&1");
  EXPECT_EQ(closed.out, "5\n");
}

}  // namespace
}  // namespace tandem
