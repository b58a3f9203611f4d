// The statistics of a generation, as people read them.
#include "tools/statistics.h"

#include <gtest/gtest.h>

namespace tandem::tools {
namespace {

TEST(ExpertStatistics, AreALine) {
  GenerateStats stats;
  stats.n_generated = 41;
  EXPECT_EQ(experts_used_text(stats), "");  // none are on disk
  EXPECT_TRUE(experts_used_json(stats).is_null());
  stats.prompt_experts = {512, 64, 448, 448 * (size_t{3} << 20), 0, 0};
  EXPECT_EQ(experts_used_text(stats), "experts: prompt 12% of 512 in memory, 1.31 GiB read");
  stats.answer_experts = {10240, 8192, 2091, size_t{6000} << 20, 355, 312};
  EXPECT_EQ(
      experts_used_text(stats),
      "experts: prompt 12% of 512 in memory, 1.31 GiB read; answer 80% of 10240 in memory, 5.86 GiB read "
      "(150.0 MiB a token), 312 of 355 read ahead were used");
  stats.answer_experts = {320, 320, 0, 0, 0, 0};
  EXPECT_EQ(
      experts_used_text(stats),
      "experts: prompt 12% of 512 in memory, 1.31 GiB read; answer 100% of 320 in memory, 0.0 KiB read");
}

TEST(ExpertStatistics, TellOfExpertsOnGpus) {
  GenerateStats stats;
  stats.n_generated = 5;
  stats.answer_experts.on_gpus = {1000, 620, 0, 0, 0};
  EXPECT_EQ(experts_used_text(stats), "experts: answer 62% of 1000 on GPUs");
  stats.answer_experts.on_gpus = {1000, 620, 120, 60, size_t{180} << 24};
  EXPECT_EQ(experts_used_text(stats),
            "experts: answer 62% of 1000 on GPUs, 120 more brought in time, 2.81 GiB brought");
  stats.prompt_experts = {512, 64, 448, 448 * (size_t{3} << 20), 0, 0};
  stats.answer_experts.n_used = stats.answer_experts.n_found = 7;
  EXPECT_EQ(experts_used_text(stats),
            "experts: prompt 12% of 512 in memory, 1.31 GiB read; answer 100% of 7 in memory, 0.0 KiB read, "
            "62% of 1000 on GPUs, 120 more brought in time, 2.81 GiB brought");
}

TEST(ExpertStatistics, AreFields) {
  GenerateStats stats;
  stats.prompt_experts = {6, 5, 4, 3, 2, 1};
  stats.answer_experts = {16, 15, 14, 13, 12, 11, {9, 8, 7, 6, 5}};
  const nlohmann::ordered_json expected = {
      {"prompt",
       {{"n_used", 6},
        {"n_found", 5},
        {"n_read", 4},
        {"read_bytes", 3},
        {"n_ahead", 2},
        {"n_ahead_used", 1},
        {"on_gpus", {{"n_used", 0}, {"n_found", 0}, {"n_fetched", 0}, {"n_kept", 0}, {"fetched_bytes", 0}}}}},
      {"answer",
       {{"n_used", 16},
        {"n_found", 15},
        {"n_read", 14},
        {"read_bytes", 13},
        {"n_ahead", 12},
        {"n_ahead_used", 11},
        {"on_gpus",
         {{"n_used", 9}, {"n_found", 8}, {"n_fetched", 7}, {"n_kept", 6}, {"fetched_bytes", 5}}}}}};
  EXPECT_EQ(experts_used_json(stats), expected);
}

}  // namespace
}  // namespace tandem::tools
