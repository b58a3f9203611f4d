// Shards of a batch as processes: together they answer what one run does, and the merge notices what is not there.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/text_files.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;
using test::file_bytes;
using test::Outcome;
using test::shell;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class BatchShards : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::tiny_llama().write(model_);
    write_prompts(20, "p");
  }

  void write_prompts(int n, const std::string& id) {
    std::string text;
    for (int i = 1; i <= n; ++i) {
      if (i == 5) text += "\n";  // line 5 is empty
      const std::string d(static_cast<size_t>(i % 7), 'd');
      text += Json{{"prompt", "a b c " + d}, {"id", id + std::to_string(i)}}.dump() + "\n";
    }
    test::write_file(input_, text);
  }

  // Greedy, on one thread, one after the other: the same bits in every run.
  Outcome batch(const std::string& more, const std::string& output = "", const std::string& before = "") {
    return shell(before, "batch -m " + model_ + " -t 1 --temp 0 -np 1 -n 5 -i " + input_ + " -o " +
                             (output.empty() ? output_ : output) + " " + more + " 2>&1");
  }
  Outcome merge(const std::string& more = "") {
    return shell("", "batch --merge -i " + input_ + " -o " + output_ + " " + more + " 2>&1");
  }
  void answer_all(int n) {
    for (int i = 1; i <= n; ++i) {
      const Outcome o = batch("--shard " + std::to_string(i) + "/" + std::to_string(n));
      ASSERT_EQ(o.exit_code, 0) << o.out;
    }
  }
  std::string shard(int i, int n) const {
    return directory_.path("out-0000" + std::to_string(i) + "-of-0000" + std::to_string(n) + ".jsonl");
  }

  test::TempDir directory_;
  std::string model_ = directory_.path("tiny.gguf"), input_ = directory_.path("in.jsonl"),
              output_ = directory_.path("out.jsonl"), whole_ = directory_.path("whole.jsonl");
};

TEST_F(BatchShards, TogetherAnswerWhatOneRunDoes) {
  ASSERT_EQ(batch("", whole_).exit_code, 0);
  for (const int n : {2, 3}) {
    answer_all(n);
    EXPECT_FALSE(std::filesystem::exists(output_));
    const Outcome merged = merge();
    EXPECT_EQ(merged.exit_code, 0) << merged.out;
    EXPECT_THAT(merged.out, HasSubstr("20 answers of " + std::to_string(n) + " shards"));
    EXPECT_EQ(file_bytes(output_), file_bytes(whole_));
    for (int i = 1; i <= n; ++i) std::filesystem::remove(shard(i, n));
    std::filesystem::remove(output_);
  }
}

TEST_F(BatchShards, MoreShardsThanLines) {
  write_prompts(2, "p");
  answer_all(5);
  std::filesystem::remove(shard(4, 5));  // which has no lines
  EXPECT_EQ(merge().exit_code, 0);
  EXPECT_EQ(merge().exit_code, 0);  // replaces the answers
  ASSERT_EQ(batch("", whole_).exit_code, 0);
  EXPECT_EQ(file_bytes(output_), file_bytes(whole_));
  // A run without shards takes the merged answers for done.
  EXPECT_THAT(batch("").out, HasSubstr("2 lines already done"));
}

TEST_F(BatchShards, TheMergeNamesWhatIsMissing) {
  answer_all(3);
  ASSERT_EQ(merge().exit_code, 0);
  const std::string whole = file_bytes(output_), second = file_bytes(shard(2, 3));
  std::filesystem::remove(output_);
  std::filesystem::remove(shard(3, 3));
  // Shard 2 was killed in its last line.
  test::write_file(shard(2, 3), second.substr(0, second.size() - 4));
  const Outcome o = merge();
  EXPECT_EQ(o.exit_code, 3);
  EXPECT_THAT(o.out, AllOf(HasSubstr("shard 3/3: " + shard(3, 3) + " is missing (7 lines)"),
                           HasSubstr("shard 2/3: " + shard(2, 3) + " lacks the answers to 1 of 6 lines, the first of them line 20"),
                           HasSubstr("2 of 3 shards are incomplete"), Not(HasSubstr("shard 1/3"))));
  EXPECT_FALSE(std::filesystem::exists(output_));
  for (const char* i : {"2", "3"}) ASSERT_EQ(batch(std::string("--shard ") + i + "/3").exit_code, 0);
  EXPECT_EQ(merge().exit_code, 0);
  EXPECT_EQ(file_bytes(output_), whole);
}

TEST_F(BatchShards, ErrorsAreAnswersToo) {
  test::write_file(input_, "{\"prompt\": \"a\"}\nnonsense\n{\"prompt\": \"b\", \"id\": 3}\n");
  EXPECT_EQ(batch("--shard 1/2").exit_code, 0);
  EXPECT_EQ(batch("--shard 2/2").exit_code, 3);
  const Outcome o = merge();
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_THAT(o.out, HasSubstr("3 answers of 2 shards, 1 of them with an error"));
}

TEST_F(BatchShards, RefusesAnswersThatDoNotBelong) {
  answer_all(2);
  const std::string first = file_bytes(shard(1, 2));
  // Another shard's file.
  std::filesystem::copy_file(shard(2, 2), shard(1, 2), std::filesystem::copy_options::overwrite_existing);
  for (const Outcome& o : {merge(), batch("--shard 1/2")}) {
    EXPECT_EQ(o.exit_code, 3);
    EXPECT_THAT(o.out, HasSubstr("which is not in shard 1/2"));
  }
  // No answers.
  test::write_file(shard(1, 2), first + "my diary\n");
  EXPECT_THAT(merge().out, HasSubstr("line 11 is not an answer of tandem batch"));
  test::write_file(shard(1, 2), first);
  // An output that holds something else.
  test::write_file(output_, "my diary\n");
  EXPECT_EQ(merge().exit_code, 3);
  EXPECT_EQ(file_bytes(output_), "my diary\n");
  std::filesystem::remove(output_);
  // Another input: other ids, fewer lines, an answer to an empty line.
  write_prompts(20, "q");
  EXPECT_THAT(merge().out, HasSubstr("line 1 and its answer have different ids"));
  write_prompts(10, "p");
  EXPECT_THAT(merge().out, HasSubstr("line 12 is empty or not there, but has an answer"));
  write_prompts(20, "p");
  const std::string prompts = file_bytes(input_);
  test::write_file(input_, "\n" + prompts.substr(prompts.find('\n') + 1));
  EXPECT_THAT(merge().out, HasSubstr("line 1 is empty or not there, but has an answer"));
  EXPECT_FALSE(std::filesystem::exists(output_));
}

TEST_F(BatchShards, TheMergeRefusesWhatItCannotMean) {
  EXPECT_EQ(merge().exit_code, 2);  // no shards
  EXPECT_THAT(merge().out, HasSubstr(shard(1, 4)));
  answer_all(2);
  EXPECT_EQ(merge("--shard 1/2").exit_code, 2);
  EXPECT_EQ(shell("", "batch --merge -i " + input_ + " 2>&1").exit_code, 2);
  EXPECT_EQ(shell("", "batch --merge -i " + output_ + " -o " + output_ + " 2>&1").exit_code, 5);  // no such input
  const int fd = open(shard(2, 2).c_str(), O_RDWR);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  const Outcome written = merge();
  close(fd);
  EXPECT_EQ(written.exit_code, 5);
  EXPECT_THAT(written.out, HasSubstr("is still writing it"));
  ASSERT_EQ(batch("--shard 1/3").exit_code, 0);
  const Outcome mixed = merge();
  EXPECT_EQ(mixed.exit_code, 2);
  EXPECT_THAT(mixed.out, HasSubstr("different divisions"));
}

TEST_F(BatchShards, ATaskOfASlurmArrayAnswersItsShard) {
  const auto task = [](int id, int n) {
    const std::string number = std::to_string(n);
    return "SLURM_ARRAY_TASK_ID=" + std::to_string(id) + " SLURM_ARRAY_TASK_COUNT=" + number +
           " SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=" + number;
  };
  for (const int i : {1, 2}) {
    const Outcome o = batch("", "", task(i, 2));
    ASSERT_EQ(o.exit_code, 0);
    EXPECT_THAT(o.out, HasSubstr("shard " + std::to_string(i) + "/2 of the Slurm job array: answers go to " + shard(i, 2)));
  }
  EXPECT_EQ(merge().exit_code, 0);
  ASSERT_EQ(batch("--shard off", whole_, task(2, 2)).exit_code, 0);
  EXPECT_EQ(file_bytes(output_), file_bytes(whole_));
  EXPECT_EQ(batch("", "", task(1, 1)).exit_code, 2);  // would answer all lines again
}

}  // namespace
}  // namespace tandem
