// --disk-tier in the program: the same text with a quarter of the memory, the reports of plan and --explain,
// and contradictory options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gguf/file.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using test::Outcome;
using testing::HasSubstr;

class DiskCommand : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    path_ = directory_.path("model.gguf");
    test::TinyShape shape;
    shape.n_layer = 24;
    shape.n_embd = 128;
    shape.n_ff = 512;
    test::tiny_llama(shape).write(path_);
    const GgufFile file(path_);
    quarter_ = " --max-ram " + std::to_string(file.n_tensor_bytes() / 4) + " ";
  }
  Outcome tandem(const std::string& command, const std::string& arguments) {
    return test::shell("XDG_CACHE_HOME=" + directory_.path("cache"),
                       command + " -m " + path_ + " -c 64 -t 1 -dev none " + arguments);
  }
  Outcome run(const std::string& arguments) { return tandem("run", "-p 'a b' -n 20 -s 1 " + arguments); }

  test::TempDir directory_;
  std::string path_, quarter_;
};

TEST_F(DiskCommand, TheSameTextFromAQuarterOfTheMemory) {
  const Outcome whole = run("2>/dev/null");
  ASSERT_EQ(whole.exit_code, 0);
  for (const std::string flag : {"", "--disk-tier", "--disk-tier=on", "--disk-tier=auto"}) {
    const Outcome outcome = run(quarter_ + flag + " 2>/dev/null");
    EXPECT_EQ(outcome.exit_code, 0) << flag;
    EXPECT_EQ(outcome.out, whole.out) << flag;
  }
  EXPECT_THAT(run(quarter_ + "2>&1").out, HasSubstr("are read from disk for every step"));
  EXPECT_THAT(run("--disk-tier 2>&1").out, Not(HasSubstr("are read from disk")));  // not needed
}

TEST_F(DiskCommand, RejectsContradictions) {
  for (const std::string other : {"--no-mmap", "--mlock"}) {
    const Outcome outcome = run("--disk-tier " + other + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("--disk-tier"), HasSubstr(other)));
  }
  const Outcome off = run(quarter_ + "--disk-tier=off 2>&1");
  EXPECT_EQ(off.exit_code, 4);
  EXPECT_THAT(off.out, HasSubstr("--max-ram"));
  const Outcome little = run("--max-ram 100KiB 2>&1");
  EXPECT_EQ(little.exit_code, 4);
  EXPECT_THAT(little.out, HasSubstr("are needed at the least"));
  EXPECT_EQ(run("--disk-tier=perhaps 2>&1").exit_code, 2);
}

TEST_F(DiskCommand, ExplainAndPlanReportIt) {
  const std::string explained = run(quarter_ + "--explain 2>&1 >/dev/null").out;
  EXPECT_THAT(explained, AllOf(HasSubstr("disk 0.9 MiB"), HasSubstr("read from disk: ")));
  EXPECT_THAT(tandem("plan", quarter_).out, HasSubstr("read for every token"));

  const auto plan = [&](const std::string& arguments) {
    const Outcome outcome = tandem("plan", "--json " + arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    return nlohmann::json::parse(outcome.out);
  };
  const auto whole = plan("--disk-bw 2");
  EXPECT_EQ(whole["disk"]["weights"], 0);
  EXPECT_EQ(whole["plans"][0]["n_disk_layers"], 0);
  const auto slow = plan(quarter_ + "--disk-bw 0.01"), fast = plan(quarter_ + "--disk-bw 0.02");
  EXPECT_GT(slow["disk"]["weights"], 0);
  EXPECT_EQ(slow["disk"]["read_bytes_per_s"], 0.01e9);
  EXPECT_GT(slow["plans"][0]["n_disk_layers"], 12);
  // A disk slow enough to determine the speed alone.
  const double read = slow["disk"]["read_per_token"], rate = slow["plans"][0]["decode_tokens_per_s"];
  EXPECT_NEAR(rate, 0.01e9 / read, 0.1 * rate);
  EXPECT_NEAR(fast["plans"][0]["decode_tokens_per_s"], 2 * rate, 0.2 * rate);
  size_t sum = slow["disk"]["weights"];
  sum += slow["tiers"][0]["weights"].get<size_t>();
  EXPECT_EQ(sum, whole["tiers"][0]["weights"].get<size_t>());
}

}  // namespace
}  // namespace tandem
