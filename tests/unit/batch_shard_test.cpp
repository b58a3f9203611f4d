// Shards of a batch: how they are named and divided, on the command line and by Slurm.
#include "tools/batch/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/error.h"
#include "support/errors.h"
#include "support/gguf_bytes.h"

namespace tandem::tools {
namespace {

using test::error_of;
using testing::HasSubstr;

// Sets the variables of a task of a Slurm job array, and removes them again.
class SlurmTask {
 public:
  SlurmTask(const std::string& id, const std::string& count, const std::string& min, const std::string& max) {
    for (const auto& [name, value] : std::map<std::string, std::string>{{"ID", id}, {"COUNT", count}, {"MIN", min},
                                                                        {"MAX", max}}) {
      const std::string variable = "SLURM_ARRAY_TASK_" + name;
      if (value != "-") setenv(variable.c_str(), value.c_str(), 1);
    }
  }
  ~SlurmTask() {
    for (const char* name : {"ID", "COUNT", "MIN", "MAX"}) unsetenv((std::string("SLURM_ARRAY_TASK_") + name).c_str());
  }
};

TEST(BatchShard, ShardsDivideTheLines) {
  for (const int64_t count : {1, 2, 3, 7, 100}) {
    for (int64_t line = 1; line <= 250; ++line) {
      int n = 0;
      for (int64_t number = 1; number <= count; ++number) n += Shard{number, count}.has(line);
      EXPECT_EQ(n, 1) << line << " of " << count;
    }
  }
  EXPECT_TRUE((Shard{3, 8}.has(3) && Shard{3, 8}.has(11) && !Shard{3, 8}.has(4)));
}

TEST(BatchShard, ParsesTheOption) {
  EXPECT_EQ(parse_shard("--shard", "3/8").text(), "3/8");
  EXPECT_EQ(parse_shard("--shard", "1/1").text(), "1/1");
  EXPECT_TRUE(parse_shard("--shard", "off").is_whole());
  for (const char* bad : {"", "3", "/", "3/", "/8", "0/8", "9/8", "-1/8", "3/0", "3/-8", "3/8/2", "a/b", "3/8x", "1/100000",
                          "1/99999999999999999999", " 3/8"}) {
    EXPECT_THAT(error_of(ErrorCode::usage, [&] { parse_shard("--shard", bad); }), HasSubstr("--shard"))
        << bad;
  }
}

TEST(BatchShard, NamesTheFilesOfTheShards) {
  EXPECT_EQ(shard_path("answers.jsonl", {3, 8}), "answers-00003-of-00008.jsonl");
  EXPECT_EQ(shard_path("a.b/answers", {12, 345}), "a.b/answers-00012-of-00345");
  EXPECT_EQ(shard_path("answers.jsonl", {}), "answers.jsonl");
  EXPECT_EQ(shard_path("-", {3, 8}), "-");
  EXPECT_EQ(shard_path("/dev/null", {3, 8}), "/dev/null");
}

TEST(BatchShard, FindsTheFilesOfTheShards) {
  const test::TempDir directory;
  for (const char* name : {"out-00010-of-00010.jsonl", "out-00002-of-00010.jsonl", "out.jsonl", "out-00003-of-00010.txt",
                           "out-3-of-10.jsonl", "out-00011-of-00010.jsonl", "out-00000-of-00010.jsonl",
                           "out2-00001-of-00010.jsonl", "out-00001-of-00010-of-00010.jsonl", "out-00001-of-.jsonl",
                           "out-00001-of-99999999999999999999.jsonl"}) {
    test::write_file(directory.path(name), "");
  }
  const auto files = shard_files(directory.path("out.jsonl"));
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].shard.text(), "2/10");
  EXPECT_EQ(files[0].path, directory.path("out-00002-of-00010.jsonl"));
  EXPECT_EQ(files[1].shard.text(), "10/10");
}

TEST(BatchShard, TakesTheShardOfASlurmTask) {
  const test::TempDir directory;
  const std::string output = directory.path("out.jsonl");
  EXPECT_TRUE(slurm_shard(output).is_whole());
  const struct {
    const char *id, *count, *min, *max, *shard;
  } good[] = {{"1", "8", "1", "8", "1/8"}, {"8", "8", "1", "8", "8/8"}, {"0", "8", "0", "7", "1/8"},
              {"7", "8", "0", "7", "8/8"}, {"1", "1", "1", "1", "1/1"}, {"0", "1", "0", "0", "1/1"}};
  for (const auto& task : good) {
    const SlurmTask here(task.id, task.count, task.min, task.max);
    EXPECT_EQ(slurm_shard(output).text(), task.shard);
  }
  const struct {
    const char *id, *count, *min, *max;
  } bad[] = {{"3", "1", "3", "3"},  {"3", "2", "3", "7"}, {"1", "4", "1", "7"},  {"9", "8", "1", "8"}, {"0", "8", "1", "8"},
             {"x", "8", "1", "8"},  {"1", "-", "1", "8"}, {"1", "8", "-", "8"},  {"1", "8", "1", "-"}, {"", "8", "1", "8"},
             {"1", "0", "1", "0"},  {"1", "8", "1", "99999999999999999999"},     {"-1", "8", "-1", "6"}};
  for (const auto& task : bad) {
    const SlurmTask here(task.id, task.count, task.min, task.max);
    EXPECT_THAT(error_of(ErrorCode::usage, [&] { slurm_shard(output); }), HasSubstr("give --shard"))
        << task.id << " of " << task.count;
  }
}

// sbatch --array=1 to answer shard 1 of 8 again would else answer everything.
TEST(BatchShard, ASlurmArrayOfSomeShardsAgainIsRefused) {
  const test::TempDir directory;
  const std::string output = directory.path("out.jsonl");
  test::write_file(shard_path(output, {2, 8}), "");
  const SlurmTask here("1", "1", "1", "1");
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { slurm_shard(output); }), HasSubstr("give --shard I/8"));
  EXPECT_TRUE(slurm_shard("-").is_whole());
  EXPECT_TRUE(slurm_shard(directory.path("other.jsonl")).is_whole());
}

}  // namespace
}  // namespace tandem::tools
