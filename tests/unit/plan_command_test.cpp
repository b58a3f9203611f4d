// `tandem plan`, run as a process: its report, the models and GPUs it knows by name, and its refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "base/error.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PlanCommand : public testing::Test {
 protected:
  void SetUp() override {
    model_ = directory_.path("tiny.gguf");
    test::tiny_llama().write(model_);
  }
  test::Outcome plan(const std::string& arguments) {
    return test::shell("XDG_CACHE_HOME=" + directory_.path("cache"),
                       "plan -m " + model_ + " " + arguments + " 2>&1");
  }
  test::Outcome run(const std::string& arguments) {
    return test::shell("XDG_CACHE_HOME=" + directory_.path("cache"), "plan " + arguments + " 2>&1");
  }
  test::TempDir directory_;
  std::string model_;
};

TEST_F(PlanCommand, DevicesThatAreNotThereAreRefusedBeforeSpeedsAreMeasured) {
  TANDEM_NEED_BINARY();
  const test::Outcome o = plan("-ot blk.0=CUDA9");
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_THAT(o.out, HasSubstr("-ot: there is no device CUDA9; there is: CPU"));
  const std::string speeds = directory_.path("cache/tandem/rates");  // made where the program is confined
  EXPECT_TRUE(!std::filesystem::exists(speeds) || std::filesystem::is_empty(speeds));
}

TEST_F(PlanCommand, PrintsTableLineAndPlans) {
  TANDEM_NEED_BINARY();
  const test::Outcome page = plan("-c 64 --gpu h100");
  EXPECT_EQ(page.exit_code, 0);
  for (const char* part : {"h100", "CPU", "staging", "overhead", "min_vram = ", " * n_ctx + ",
                           "largest context: ", "decode\n", "t/s\n"}) {
    EXPECT_THAT(page.out, HasSubstr(part));
  }
  // It fits an ordinary window, whatever the numbers.
  const test::Outcome wide =
      run("qwen3-30b-a3b --gpu rtx4090 --ram-bw 60 --disk-bw 5 --max-ram 8GiB --vram 12GiB");
  EXPECT_EQ(wide.exit_code, 0) << wide.out;
  const test::Outcome limited = run("llama-3.1-8b --gpu rtx3070 --ram-bw 60");
  EXPECT_EQ(limited.exit_code, 0) << limited.out;
  EXPECT_THAT(limited.out, HasSubstr("(the model was trained with 131072)\ncache F16"));
  std::istringstream lines(page.out + wide.out + limited.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 90u) << line;
  // Columns that tell nothing are left out.
  const test::Outcome cpu = plan("-c 64 -dev none");
  EXPECT_EQ(cpu.exit_code, 0);
  EXPECT_THAT(cpu.out, AllOf(HasSubstr("RAM"), Not(HasSubstr("VRAM")), Not(HasSubstr("streamed"))));
}

// In a home that is new, too.
TEST_F(PlanCommand, RemembersMeasuredSpeeds) {
  TANDEM_NEED_BINARY();
  const std::string measures = "measuring the speed of CPU";
  const std::string arguments = "-c 64 --gpu h100 --verbose";
  EXPECT_THAT(plan(arguments).out, HasSubstr(measures));
  const test::Outcome second = plan(arguments);
  EXPECT_EQ(second.exit_code, 0) << second.out;
  EXPECT_THAT(second.out, Not(HasSubstr(measures)));
}

TEST_F(PlanCommand, JsonAgreesWithItself) {
  TANDEM_NEED_BINARY();
  const test::Outcome page = plan("-c 64 --vram 2GiB --vram-bw 900 --pcie-bw 20 --ram-bw 50 --json");
  ASSERT_EQ(page.exit_code, 0) << page.out;
  const auto json = nlohmann::json::parse(page.out);
  ASSERT_EQ(json["tiers"].size(), 2u);
  for (const auto& t : json["tiers"]) {
    uint64_t sum = 0;
    for (const char* part : {"weights", "kv", "activations", "staging", "scratch", "overhead"})
      sum += t[part].get<uint64_t>();
    EXPECT_EQ(t["total"], sum);
  }
  EXPECT_EQ(json["tiers"][0]["read_bytes_per_s"], 50e9);
  EXPECT_EQ(json["tiers"][1]["read_bytes_per_s"], 900e9);
  EXPECT_GE(json["plans"].size(), 1u);
}

// What GPUs keep, what memory holds of the rest, and what both are expected to have, with the assumption.
TEST_F(PlanCommand, ExpectsHitsOfExperts) {
  TANDEM_NEED_BINARY();
  const std::string machine = "qwen3-30b-a3b -c 4096 --vram-bw 360 --pcie-bw 25 --ram-bw 60 --disk-bw 5 ";
  const auto json = [&](const std::string& arguments) {
    const test::Outcome page = run(machine + arguments + " --json");
    EXPECT_EQ(page.exit_code, 0) << page.out;
    return nlohmann::json::parse(page.out);
  };
  const auto cached = json("--vram 12GiB --cpu-moe --expert-cache 8GiB");
  EXPECT_FALSE(cached.contains("experts"));
  const auto& kept = cached.at("experts_on_gpus");
  const int n_kept = cached["plans"][0]["n_cached_experts"];
  EXPECT_GT(n_kept, 50);
  EXPECT_EQ(kept["slots"], 48 * n_kept);
  EXPECT_EQ(kept["experts"], 48 * 128);
  EXPECT_GT(kept["hit_rate"].get<double>(), n_kept / 128.0);
  EXPECT_LT(kept["hit_rate"].get<double>(), 1);
  EXPECT_THAT(kept["assumption"], HasSubstr("Zipf's law with exponent 0.7"));
  const std::string text = run(machine + "--vram 12GiB --cpu-moe --expert-cache 8GiB").out;
  EXPECT_THAT(text, AllOf(HasSubstr("experts on GPUs: " + std::to_string(48 * n_kept) + " of 6144 experts;"),
                          HasSubstr("experts    kept "), Not(HasSubstr("1073741824"))));
  EXPECT_FALSE(json("--vram 12GiB --cpu-moe --expert-cache off").contains("experts_on_gpus"));

  // With less memory of both, some are on disk.
  const std::string little = "--vram 8GiB --max-ram 6GiB --cpu-moe --expert-cache 2GiB";
  const auto tiers = json(little);
  EXPECT_TRUE(tiers["plans"][0]["chosen_experts"].get<bool>());
  EXPECT_GT(tiers.at("experts_on_gpus")["slots"], 0);
  EXPECT_LT(tiers.at("experts")["hit_rate"], 1);
  EXPECT_GT(tiers["disk"]["read_per_token"], 0);
  std::istringstream lines(run(machine + little).out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 90u) << line;
}

TEST_F(PlanCommand, RejectsInvalidOptions) {
  TANDEM_NEED_BINARY();
  EXPECT_EQ(plan("--gpu voodoo2").exit_code, 2);
  EXPECT_EQ(plan("--vram 0").exit_code, 2);
  EXPECT_EQ(plan("--vram 8parsecs").exit_code, 2);
  EXPECT_EQ(plan("--gpu h100 --vram-bw -3").exit_code, 2);
  EXPECT_EQ(plan("--vram-bw 100").exit_code, 2);
  EXPECT_EQ(plan("--gpu h100 --gpu-weights-percent 10 -ngl 3").exit_code, 2);
  EXPECT_EQ(plan("--gpu h100 --gpu-weights-percent 101").exit_code, 2);
  const test::Outcome small = plan("--gpu h100 --max-vram 10KiB");
  EXPECT_EQ(small.exit_code, 4);
  EXPECT_THAT(small.out, AllOf(HasSubstr("--max-vram: h100 cannot hold one layer: the minimum is"),
                               HasSubstr("-ngl 0 uses no GPU")));
}

// The library's messages name settings, the program's name flags.
TEST_F(PlanCommand, ContradictionsNameBothFlags) {
  TANDEM_NEED_BINARY();
  const std::pair<const char*, const char*> kSentences[] = {
      {"--gpu-weights-percent 9 --cpu-offload-gb 1",
       "--gpu-weights-percent and --cpu-offload-gb contradict each other: both say how much the host holds"},
      {"--gpu-weights-percent 9 -ngl 3",
       "--gpu-weights-percent and -ngl contradict each other: both say how much stays on the GPU"},
      {"--cpu-offload-gb 1 -ngl 3",
       "--cpu-offload-gb and -ngl contradict each other: both say how much stays on the GPU"},
      {"--cpu-offload-gb 1 --stream-weights off",
       "--cpu-offload-gb and --stream-weights off contradict each other: what the host holds of it is "
       "streamed"},
      {"--gpu-rows 50 --stream-weights off",
       "--gpu-rows and --stream-weights off contradict each other: the GPU's rows are streamed to it"},
      {"--max-vram 1G --gpu-memory-utilization 0.5",
       "--max-vram and --gpu-memory-utilization contradict each other: both say how much of the GPU may be "
       "used"},
      {"--kv-offload prefetch -nkvo",
       "--kv-offload prefetch and -nkvo contradict each other: one attends on the GPU, the other on the CPU"},
      {"--kv-offload prefetch --kv-layers-gpu 3",
       "--kv-offload prefetch and --kv-layers-gpu contradict each other: one keeps the cache off the GPU, "
       "the "
       "other on it"},
      {"--kv-split 9 -nkvo",
       "--kv-split and -nkvo contradict each other: one keeps a part of the cache on the GPU, the other "
       "none"},
      {"--kv-split 9 --kv-offload prefetch",
       "--kv-split and --kv-offload prefetch contradict each other: both say how a cache in host memory is "
       "used"},
      {"--kv-split 9 --kv-layers-gpu 3",
       "--kv-split and --kv-layers-gpu contradict each other: one divides the cache by tokens, the other by "
       "layers"},
      {"-nkvo --kv-layers-gpu 3",
       "-nkvo and --kv-layers-gpu contradict each other: one keeps the cache off the GPU, the other on it"},
      {"--disk-tier --no-mmap",
       "--disk-tier and --no-mmap contradict each other: one leaves weights on disk, the other loads them "
       "all"},
      {"--disk-tier --mlock",
       "--disk-tier and --mlock contradict each other: one leaves weights on disk, the other loads them all"},
      {"--kv-split 9 -np 2", "--kv-split divides the cache of one sequence, and there are to be 2 (-np)"},
      {"-ts 1,2", "-ts gives 2 shares, but there are 1 GPUs"},
      {"-ts 0", "-ts: the shares must add up to more than 0"},
      {"-sm tensor --kv-split 9",
       "-sm tensor and --kv-split contradict each other: heads of the cache are divided over GPUs, and its "
       "tokens are not"},
      {"-sm none -mg 1", "-mg 1: there are 1 GPUs, numbered from 0"},
      {"-ot a=GPU9", "-ot: there is no device GPU9; there is: CPU, h100"},
      {"-ot '[=CPU'",
       "-ot: '[' is not a regular expression: missing terminating ] for character class (at offset 1)"},
      {"-ot nothing=CPU", "-ot: 'nothing' matches no tensor of this model"},
  };
  for (const auto& [arguments, sentence] : kSentences) {
    const test::Outcome refused = plan(std::string("-c 64 --gpu h100 --log-disable ") + arguments);
    EXPECT_EQ(refused.exit_code, 2) << arguments;
    EXPECT_EQ(refused.out, std::string("tandem: error: ") + sentence + " (try 'tandem plan --help')\n");
  }
}

TEST_F(PlanCommand, KnowsModelsByName) {
  TANDEM_NEED_BINARY();
  const test::Outcome page =
      run("llama-3.1-70b --type Q4_K_M --gpu rtx4090 --max-ram 64GiB --ram-bw 80 --log-disable --json");
  ASSERT_EQ(page.exit_code, 0) << page.out;
  const auto json = nlohmann::json::parse(page.out);
  EXPECT_EQ(json["file"], "llama-3.1-70b");
  EXPECT_THAT(json["model"].get<std::string>(), HasSubstr("70.6B weights as Q4_K_M, a file of 39.59 GiB"));
  EXPECT_EQ(json["n_ctx_trained"], 131072);
  EXPECT_EQ(json["tiers"][1]["name"], "rtx4090");
  EXPECT_GT(json["tiers"][1]["weights"].get<double>(), 18e9);
  EXPECT_LE(json["tiers"][1]["total"].get<double>(), 24.0 * (1 << 30));
  EXPECT_LE(json["largest_context"].get<int64_t>(), 131072);
  EXPECT_GE(json["n_ctx"].get<int64_t>(), 4096);
}

TEST_F(PlanCommand, NamesAreForgiving) {
  TANDEM_NEED_BINARY();
  const char* rest = " -c 512 --max-ram 64GiB --ram-bw 80 --log-disable";
  for (const char* same : {"SmolLM2-135M --gpu 'RTX 4090'", "smollm2_135m-Instruct --gpu 4090",
                           "smollm2-135m --gpu 'NVIDIA GeForce RTX 4090'"}) {
    const test::Outcome page = run(same + std::string(rest));
    EXPECT_EQ(page.exit_code, 0) << page.out;
    EXPECT_THAT(page.out, HasSubstr("rtx4090"));
  }
  const std::pair<const char*, const char*> mistakes[] = {
      {"lama-3.1-8b", "found 'lama-3.1-8b', did you mean llama-3.1-8b"},
      {"llama-3.1", "did you mean llama-3.1-8b, llama-3.1-70b or llama-3.1-405b?"},
      {"smollm2-135m --gpu rtx4091", "--gpu: found 'rtx4091', did you mean rtx4090"},
      {"smollm2-135m --gpu voodoo2", "--gpu: found 'voodoo2', needed one of "},
      {"smollm2-135m --type Q4_K_N", "--type: found 'Q4_K_N', did you mean Q4_K_"},
      {"zzz.gguf", "zzz.gguf"},
      {"", "name a GGUF file, a known model such as llama-3.1-8b"},
  };
  for (const auto& [arguments, sentence] : mistakes) {
    const test::Outcome refused = run(arguments + std::string(rest));
    EXPECT_NE(refused.exit_code, 0) << arguments;
    EXPECT_THAT(refused.out, HasSubstr(sentence));
    EXPECT_EQ(std::count(refused.out.begin(), refused.out.end(), '\n'), 1) << refused.out;
  }
  EXPECT_THAT(plan("--type Q8_0 -dev none").out,
              HasSubstr("--type is for models that are named without a file"));
}

TEST_F(PlanCommand, PlansTheLargestContextInsteadOfFailing) {
  TANDEM_NEED_BINARY();
  const char* arguments = "llama-3.2-1b -c 131072 -dev none --max-ram 2GiB --ram-bw 40 --log-disable";
  const test::Outcome page = run(std::string(arguments) + " --json");
  ASSERT_EQ(page.exit_code, 0) << page.out;
  const auto json = nlohmann::json::parse(page.out);
  EXPECT_EQ(json["n_ctx_that_does_not_fit"], 131072);
  EXPECT_LT(json["n_ctx"].get<int64_t>(), 131072);
  EXPECT_LE(json["tiers"][0]["total"].get<double>(), 2.0 * (1 << 30));
  EXPECT_THAT(run(arguments).out,
              HasSubstr(format("a context of 131072 tokens does not fit; the largest that does with "
                               "all weights in memory has {}",
                               json["n_ctx"].get<int64_t>())));
}

TEST_F(PlanCommand, LargestContextIsAtMostTheTrainedOne) {
  TANDEM_NEED_BINARY();
  EXPECT_THAT(plan("-dev none").out,
              HasSubstr("largest context: 128 tokens on the CPU, 128 tokens with placement 1"));
  EXPECT_THAT(plan("-dev none -c 4096").out, Not(HasSubstr("largest context: 128 tokens")));
  EXPECT_THAT(plan("-dev none -c 2000000000").out,
              AllOf(HasSubstr("a context of 2000000000 tokens does not fit; one of 128 does, which the model "
                              "was trained with"),
                    HasSubstr("largest context: 128 tokens on the CPU, 128 tokens with placement 1")));
}

// The driver's part is in the table of memories and in that of placements.
TEST_F(PlanCommand, SizesHaveOneUnitAndAddUp) {
  TANDEM_NEED_BINARY();
  const test::Outcome page = run("llama-3.2-1b -c 4096 --gpu rtx4090 --ram-bw 40 --log-disable");
  ASSERT_EQ(page.exit_code, 0) << page.out;
  EXPECT_THAT(page.out.substr(page.out.find("\n\n")), Not(HasSubstr("MiB")));
  std::smatch tier, placement;
  ASSERT_TRUE(std::regex_search(page.out, tier, std::regex("\nrtx4090 .* ([0-9.]+) +([0-9.]+)\n")))
      << page.out;
  ASSERT_TRUE(
      std::regex_search(page.out, placement, std::regex("\n1 .* ([0-9.]+) +[0-9.]+ +[0-9.]+ +[0-9.]+\n")));
  EXPECT_EQ(tier[1], placement[1]);
  EXPECT_EQ(tier[2], "24.00");
}

TEST_F(PlanCommand, WhatWouldFitIsSaidInFlags) {
  TANDEM_NEED_BINARY();
  // 820 KiB beside the overhead of 256 MiB: one layer fits, all of them need about 890 KiB.
  const test::Outcome large = plan(
      "-c 4096 -ub 512 -nkvo --gpu h100 --max-vram 269275136 -ngl all "
      "--override-kv llama.context_length=int:4096");
  EXPECT_EQ(large.exit_code, 4);
  EXPECT_THAT(large.out, testing::ContainsRegex("h100: -ngl [0-9]+ needs [0-9]+ bytes and [0-9]+ are free of "
                                                "--max-vram; -ngl [0-9]+(, -c [0-9]+)?.* would fit"));
  const test::Outcome host = plan("-dev none --max-ram 10KiB");
  EXPECT_EQ(host.exit_code, 4);
  EXPECT_THAT(host.out, HasSubstr("--max-ram: "));
}

}  // namespace
}  // namespace tandem
