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

TEST(ExpertStatistics, AreFields) {
  GenerateStats stats;
  stats.prompt_experts = {6, 5, 4, 3, 2, 1};
  stats.answer_experts = {16, 15, 14, 13, 12, 11};
  const nlohmann::ordered_json expected = {{"prompt",
                                            {{"n_used", 6},
                                             {"n_found", 5},
                                             {"n_read", 4},
                                             {"read_bytes", 3},
                                             {"n_ahead", 2},
                                             {"n_ahead_used", 1}}},
                                           {"answer",
                                            {{"n_used", 16},
                                             {"n_found", 15},
                                             {"n_read", 14},
                                             {"read_bytes", 13},
                                             {"n_ahead", 12},
                                             {"n_ahead_used", 11}}}};
  EXPECT_EQ(experts_used_json(stats), expected);
}

}  // namespace
}  // namespace tandem::tools
