// `tandem inspect` from the outside: needs the binary that this build made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "support/gguf_bytes.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Outcome {
  int exit_code;
  std::string output;  // stdout, and stderr after it
};

class Inspect : public testing::Test {
 protected:
  void SetUp() override {
    const char* binary = std::getenv("TANDEM_BINARY");
    if (!binary || !std::filesystem::exists(binary)) GTEST_SKIP() << "no tandem binary";
    command = "'" + std::string(binary) + "' inspect ";
    path = directory.path("small.gguf");
    test::RawGguf file = test::small_gguf();
    file.pairs.push_back(test::kv_string("bad\x1b[31m", "line\nbreak \x1b]0;title\x07"));
    test::write_file(path, file.bytes());
  }
  Outcome run(const std::string& arguments) {
    FILE* pipe = popen((command + arguments + " 2>&1").c_str(), "r");
    Outcome outcome{-1, {}};
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) outcome.output.append(buffer, n);
    outcome.exit_code = WEXITSTATUS(pclose(pipe));
    return outcome;
  }

  test::TempDir directory;
  std::string command, path;
};

TEST_F(Inspect, ThePageShowsEverythingAndNoControlCharacters) {
  const Outcome page = run(path);
  EXPECT_EQ(page.exit_code, 0);
  for (const char* text :
       {"GGUF v3, alignment 32", "architecture   llama", "metadata: 17", "[3 strings] one, , three",
        "bad\\x1b[31m", "line\\x0abreak", "tensors: 2", "Q4_0     [32, 2]", "bits per weight"}) {
    EXPECT_THAT(page.output, HasSubstr(text));
  }
  EXPECT_THAT(page.output, Not(HasSubstr("\x1b")));
}

TEST_F(Inspect, JsonHoldsEverything) {
  const Outcome page = run("--json " + path);
  EXPECT_EQ(page.exit_code, 0);
  const nlohmann::json json = nlohmann::json::parse(page.output);
  EXPECT_EQ(json["version"], 3);
  EXPECT_EQ(json["metadata"]["a.u64"]["value"], uint64_t{1} << 63);
  EXPECT_EQ(json["metadata"]["a.i8"]["value"], -100);
  EXPECT_EQ(json["metadata"]["a.bool"]["value"], true);
  EXPECT_EQ(json["metadata"]["a.strings"]["value"], nlohmann::json({"one", "", "three"}));
  EXPECT_EQ(json["metadata"]["a.floats"]["element_type"], "f32");
  EXPECT_EQ(json["metadata"]["a.floats"]["value"], nlohmann::json({0.5, -2.0}));
  EXPECT_EQ(json["tensors"][1]["name"], "second");
  EXPECT_EQ(json["tensors"][1]["dims"], nlohmann::json({32, 2}));
  EXPECT_EQ(json["totals"]["by_dtype"]["Q4_0"]["bits_per_weight"], 4.5);
  EXPECT_EQ(run("--json " + path).output, page.output);
}

TEST_F(Inspect, BadFilesGiveOneLine) {
  const Outcome none = run(directory.path("none.gguf"));
  EXPECT_EQ(none.exit_code, 5);
  EXPECT_THAT(none.output, HasSubstr("none.gguf: cannot open"));
  test::write_file(path, "GGUFx");
  const Outcome bad = run(path);
  EXPECT_EQ(bad.exit_code, 3);
  EXPECT_EQ(std::count(bad.output.begin(), bad.output.end(), '\n'), 1) << bad.output;
}

}  // namespace
}  // namespace tandem
