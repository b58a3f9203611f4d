// The progress bar: its text, and its output on stderr with and without a terminal.
#include "base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ProgressText, SaysShareRateAndTimeLeft) {
  EXPECT_EQ(progress_text({"weights", 500'000'000, 1'000'000'000, 50, "blk.0.attn_q.weight"}, 200),
            "[############............]  50%  10.0 M weights/s, 0:50 left  blk.0.attn_q.weight");
  EXPECT_EQ(progress_text({"bytes", 1 << 20, 3 << 20, 2, ""}, 200),
            "[########................]  33%  512.0 KiB/s, 0:04 left");
  EXPECT_EQ(progress_text({"tokens", 1, 10'001, 2, ""}, 50), "  0%  0.5 tokens/s, 5:33:20 left");
}

TEST(ProgressText, BeforeTheFirstStepThereIsNoRate) {
  EXPECT_EQ(progress_text({"tokens", 0, 10, 1, "first"}, 200), "[........................]   0%  first");
  EXPECT_EQ(progress_text({"tokens", 0, 0, 0, ""}, 10), "  0%");
}

TEST(ProgressText, FitsEveryWidth) {
  const ProgressState state{"weights", 77'123'456, 1'000'000'000, 5, "blk.0.größe.weight"};
  for (size_t n = 0; n < 120; ++n) {
    const std::string text = progress_text(state, n);
    EXPECT_LE(text.size(), n);
    if (!text.empty()) {  // no incomplete character at the end
      EXPECT_NE(static_cast<unsigned char>(text.back()), 0xc3) << text;
    }
  }
}

class ProgressOutput : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::tiny_llama({.n_embd = 256, .n_ff = 512, .dtype = DType::F16}).write(directory.path("in.gguf"));
  }
  std::string arguments() {
    return "quantize '" + directory.path("in.gguf") + "' '" + directory.path("out.gguf") + "' Q8_0 1";
  }
  test::TempDir directory;
};

TEST_F(ProgressOutput, OneLineAnItemWithoutATerminal) {
  const test::Outcome got = test::shell("", arguments() + " 2>&1");
  EXPECT_EQ(got.exit_code, 0);
  EXPECT_THAT(got.out, HasSubstr("blk.0.attn_q.weight"));
  EXPECT_THAT(got.out, Not(HasSubstr("\r")));
  EXPECT_THAT(got.out, Not(HasSubstr("\033")));
}

TEST_F(ProgressOutput, NothingOnStdoutAndNothingWhenSilent) {
  EXPECT_EQ(test::shell("", arguments() + " 2>/dev/null").out, "");
  EXPECT_EQ(test::shell("", arguments() + " --log-disable 2>&1").out, "");
}

TEST_F(ProgressOutput, ATerminalSeesNoLinePerItem) {
  if (std::system("command -v script >/dev/null") != 0) GTEST_SKIP() << "needs script(1) for a terminal";
  const std::string program = test::binary_path();
  const auto on_terminal = [&](const std::string& term) {
    const std::string line = "TERM=" + term + " " + program + " " + arguments();
    FILE* pipe = popen(("script -qec \"" + line + "\" /dev/null").c_str(), "r");
    std::string out;
    for (int c; (c = fgetc(pipe)) != EOF;) out += static_cast<char>(c);
    pclose(pipe);
    return out;
  };
  const std::string shown = on_terminal("xterm");
  EXPECT_THAT(shown, HasSubstr("wrote "));
  EXPECT_THAT(shown, Not(HasSubstr("[   1/")));
  EXPECT_THAT(on_terminal("dumb"), HasSubstr("[   1/"));
}

}  // namespace
}  // namespace tandem
