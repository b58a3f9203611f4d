// `tandem inspect` as a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/gguf_bytes.h"
#include "support/process.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Not;

class Inspect : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    path = directory.path("small.gguf");
    test::RawGguf file = test::small_gguf();
    file.pairs.push_back(test::kv_string("bad\x1b[31m", "line\nbreak \x1b]0;title\x07"));
    test::write_file(path, file.bytes());
  }
  // stdout, then stderr
  test::Outcome run(const std::string& arguments) {
    return test::shell("", "inspect " + arguments + " 2>&1");
  }

  test::TempDir directory;
  std::string path;
};

TEST_F(Inspect, AClosedPipeEndsItQuietly) {
  const test::Outcome o =
      test::shell("{ { sleep 0.2;", "inspect --json '" + path + "'; echo $? >&3; } | true; } 3>&1 2>&1");
  EXPECT_EQ(o.out, "5\n");
}

TEST_F(Inspect, ThePageShowsEverythingAndNoControlCharacters) {
  const test::Outcome page = run(path);
  EXPECT_EQ(page.exit_code, 0);
  for (const char* text :
       {"GGUF v3, alignment 32", "architecture   llama", "metadata: 17", "[3 strings] one, , three",
        "bad\\x1b[31m", "line\\x0abreak", "tensors: 2", "Q4_0     [32, 2]", "bits per weight"}) {
    EXPECT_THAT(page.out, HasSubstr(text));
  }
  EXPECT_THAT(page.out, Not(HasSubstr("\x1b")));
}

TEST_F(Inspect, JsonHoldsEverything) {
  const test::Outcome page = run("--json " + path);
  EXPECT_EQ(page.exit_code, 0);
  const nlohmann::json json = nlohmann::json::parse(page.out);
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
  EXPECT_EQ(run("--json " + path).out, page.out);
}

TEST_F(Inspect, BadFilesGiveOneLine) {
  const test::Outcome none = run(directory.path("none.gguf"));
  EXPECT_EQ(none.exit_code, 5);
  EXPECT_THAT(none.out, HasSubstr("none.gguf: cannot open"));
  test::write_file(path, "GGUFx");
  const test::Outcome bad = run(path);
  EXPECT_EQ(bad.exit_code, 3);
  EXPECT_EQ(std::count(bad.out.begin(), bad.out.end(), '\n'), 1) << bad.out;
}

}  // namespace
}  // namespace tandem
