// tandem plan --hosts: the file of hosts, and the report of a model that they divide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/sanitized.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "tools/plan/hosts_file.h"

namespace tandem {
namespace {

using test::Outcome;
using test::shell;
using testing::AllOf;
using testing::HasSubstr;
using tools::parse_hosts;

constexpr const char* kTwo = R"(
# comment
[[host]]
name = "big"    # with a comment
ranks = 2
ram = "256G"
ram_bw = 200
gpu = "h100"
gpus = 2
link = 100
link_us = 5
peer_bw = 250
[[host]]
ram = "64G"
ram_bw = 60.5
)";

TEST(HostsFile, IsRead) {
  const auto hosts = parse_hosts(kTwo, "hosts.toml");
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].name, "big");
  EXPECT_EQ(hosts[0].n_ranks, 2);
  EXPECT_EQ(hosts[0].ram_bytes, size_t{256} << 30);
  EXPECT_EQ(hosts[0].gpu, "h100");
  EXPECT_EQ(hosts[0].n_gpus, 2);
  EXPECT_DOUBLE_EQ(hosts[0].link_bytes_per_s, 12.5e9);
  EXPECT_DOUBLE_EQ(hosts[0].link_s, 5e-6);
  EXPECT_DOUBLE_EQ(*hosts[0].peer_bytes_per_s, 250e9);
  EXPECT_EQ(hosts[1].name, "host2");
  EXPECT_EQ(hosts[1].n_gpus, 0);
  EXPECT_DOUBLE_EQ(hosts[1].ram_bytes_per_s, 60.5e9);
}

TEST(HostsFile, ErrorsNameTheLine) {
  const auto error = [](const std::string& text) {
    try {
      parse_hosts(text, "h.toml");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file);
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string good = "[[host]]\nram = \"1G\"\nram_bw = 10\n";
  EXPECT_EQ(error(good), "");
  EXPECT_THAT(error(""), HasSubstr("found no host"));
  EXPECT_THAT(error("ram = \"1G\"\n"), HasSubstr("h.toml:1: found a value before the first [[host]]"));
  EXPECT_THAT(error("[host]\n"), HasSubstr("h.toml:1: found '[host]', needed [[host]]"));
  EXPECT_THAT(error("[[host]]\nram_bw = 10\n"), HasSubstr("ram and ram_bw are needed"));
  EXPECT_THAT(error(good + "rams = 3\n"), HasSubstr("h.toml:4: unknown key 'rams'"));
  EXPECT_THAT(error(good + "ram_bw = 3\n"), HasSubstr("h.toml:4: ram_bw is there twice"));
  EXPECT_THAT(error(good + "link = 0\n"), HasSubstr("h.toml:4: link: found 0, needed a number above 0"));
  EXPECT_THAT(error(good + "link = inf\n"), HasSubstr("needed a number above 0"));
  EXPECT_THAT(error(good + "ranks = 1.5\n"), HasSubstr("h.toml:4: ranks"));
  EXPECT_THAT(error(good + "name = big\n"), HasSubstr("found big, needed a text in double quotes"));
  EXPECT_THAT(error(good + "name = \"big\n"), HasSubstr("a quote is not closed"));
  EXPECT_THAT(error(good + "name = \"big\" x\n"), HasSubstr("found x behind a text"));
  EXPECT_THAT(error(good + "gpus = 2\n"), HasSubstr("a GPU needs its name (gpu) or its memory (vram)"));
  EXPECT_THAT(error(good + "gpu = \"h100\"\nvram = \"8G\"\n"), HasSubstr("two ways to describe a GPU"));
  EXPECT_THAT(error(good + "vram = \"much\"\n"), HasSubstr("h.toml:4: "));
  EXPECT_THAT(error("[[host]]\nname = \"\xff\"\n"), HasSubstr("not UTF-8"));
}

class PlanHosts : public testing::Test {
 protected:
  void SetUp() override { TANDEM_NEED_BINARY(); }
  Outcome plan(const std::string& hosts, const std::string& more = "") const {
    test::write_file(file_, hosts);
    return shell("", "plan llama-3.1-8b -c 8192 --hosts " + file_ + " " + more + " 2>&1");
  }
  test::TempDir directory_;
  std::string file_ = directory_.path("hosts.toml");
};

TEST_F(PlanHosts, SaysWhatEachRankHas) {
  const std::string host = "[[host]]\nram = \"64G\"\nram_bw = 100\n";
  const Outcome two = plan(host + host);
  EXPECT_EQ(two.exit_code, 0) << two.out;
  EXPECT_THAT(two.out,
              AllOf(HasSubstr("2 ranks on 2 hosts, context 8192 tokens"), HasSubstr("host1"),
                    HasSubstr("host2"), HasSubstr("16.0 KiB"), HasSubstr("decode "), HasSubstr(" on links")));
  // A machine with three times the bandwidth gets more of the 32 layers.
  const Outcome uneven = plan(host + "[[host]]\nram = \"64G\"\nram_bw = 300\n");
  EXPECT_THAT(uneven.out, AllOf(HasSubstr("0-7"), HasSubstr("8-31"))) << uneven.out;
}

// Over the GPUs of a rank each layer is divided where that takes less time, or where the user says so.
TEST_F(PlanHosts, DividesLayersOverTheGpusOfARank) {
  if (kSanitized) GTEST_SKIP() << "the speed of this CPU, which a sanitizer changes, decides";
  const std::string host = "[[host]]\nram = \"256G\"\nram_bw = 200\ngpu = \"h100\"\ngpus = 4\n";
  // Rank 0 also embeds tokens, at the speed of this machine's CPU, and if that is slow nothing is sure to be faster.
  const Outcome fast = plan(host + host);
  EXPECT_EQ(fast.exit_code, 0) << fast.out;
  EXPECT_THAT(fast.out, AllOf(HasSubstr("each layer is divided over the GPUs of its rank: "),
                              HasSubstr("rank 1 4 GPUs\n")));
  const Outcome layers = plan(host + host, "-sm layer --json");
  EXPECT_THAT(layers.out, AllOf(HasSubstr("\"split_mode\": \"layer\""), HasSubstr("\"n_gpus\": 4"),
                                HasSubstr("\"decode_tokens_per_s\": "), HasSubstr("\"end_layer\": 32")));
  EXPECT_EQ(plan(host, "--output svg").exit_code, 2);
}

TEST_F(PlanHosts, Refuses) {
  const Outcome small = plan("[[host]]\nram = \"2G\"\nram_bw = 100\n");
  EXPECT_EQ(small.exit_code, 4) << small.out;
  EXPECT_THAT(small.out, HasSubstr("the model does not fit: its layers take"));
  const Outcome gpus = plan("[[host]]\nram = \"64G\"\nram_bw = 100\nranks = 3\ngpu = \"h100\"\n");
  EXPECT_EQ(gpus.exit_code, 2);
  EXPECT_THAT(gpus.out, HasSubstr("host host1: 3 ranks, but 1 GPUs"));
  EXPECT_EQ(plan("[[host]]\nram = \"64G\"\nram_bw = 100\n", "--ram-bw 20").exit_code, 2);
  EXPECT_EQ(plan("nonsense").exit_code, 3);
}

}  // namespace
}  // namespace tandem
