// Every allocation and every system call fails once, in the commands that load, compute and write.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "stress/failing_calls.h"
#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem::test {
namespace {

using Json = nlohmann::ordered_json;

class FailingCalls : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    TinyModel model = tiny_llama();
    add_chat_template(model);
    model.write(model_);
  }

  void fail_every_call(const Workload& workload) { test::fail_every_call(workload, directory_.path("jobs")); }
  // A command that only writes stdout and complete files.
  void fail_every_call(const std::string& name, const Job& job) {
    fail_every_call(
        {name, job, name == "version", [&job](const Ended& ended, const Ended& whole, const JobFolder&) {
           return beginning_or_whole(job, ended, whole);
         }});
  }
  std::string one_file(const std::string& name, const Job& job) const {
    return JobFolder(directory_.path("before")).run(job).files.at(name);
  }

  TempDir directory_;
  std::string model_ = directory_.path("tiny.gguf");
};

TEST_F(FailingCalls, Version) {
  fail_every_call("version", {{"version"}});
}

TEST_F(FailingCalls, Run) {
  fail_every_call("run",
                  {{"run", "-m", model_, "-c", "64", "-t", "2", "--temp", "0", "-n", "20", "-p", "a b c d"}});
}

TEST_F(FailingCalls, RunWithAPromptFromStdin) {
  fail_every_call("stdin",
                  {{"run", "-m", model_, "-c", "64", "-t", "1", "--temp", "0", "-n", "2", "-f", "-"}, "a b"});
}

TEST_F(FailingCalls, RunFromDisk) {
  TinyShape shape;
  shape.n_layer = 12;
  shape.n_embd = 128;
  shape.n_ff = 512;
  const std::string path = directory_.path("large.gguf");
  tiny_llama(shape).write(path);
  const std::string quarter = std::to_string(std::filesystem::file_size(path) / 4);
  fail_every_call("disk", {{"run", "-m", path, "-c", "64", "-t", "1", "--temp", "0", "-n", "3", "-p", "a b",
                            "-dev", "none", "--max-ram", quarter, "--disk-tier"}});
}

// The cache is no reason to refuse the answer, so it may be missing; but not silently.
TEST_F(FailingCalls, SavePromptCache) {
  const Job job{{"run", "-m", model_, "-c", "64", "-t", "1", "--temp", "0", "-n", "2", "-p", "a b c d",
                 "--prompt-cache", "cache.bin", "--prompt-cache-all"}};
  fail_every_call({"cache", job, false, [&job](const Ended& ended, const Ended& whole, const JobFolder&) {
                     Ended with_cache = ended;
                     if (ended.err.find("the prompt will not be saved") != std::string::npos)
                       with_cache.files.insert(*whole.files.begin());
                     return beginning_or_whole(job, with_cache, whole);
                   }});
}

// Blocks may be missing from a store, never torn; and what cannot be read is computed.
TEST_F(FailingCalls, KeepInAStore) {
  const Job job{{"run", "-m", model_, "-c", "128", "-t", "1", "--temp", "0", "-n", "2", "-p",
                 "a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h i j k l m n o p q r s t u v w x", "--kv-store", "kv"}};
  Job again = job;
  again.files = JobFolder(directory_.path("whole")).run(job).files;
  ASSERT_EQ(again.files.size(), 3u) << "two blocks and the lock file";
  for (const Job& j : {job, again}) {
    fail_every_call({j.files.empty() ? "keep" : "load", j, false,
                     [&j](const Ended& ended, const Ended& whole, const JobFolder&) -> std::string {
                       Ended with_blocks = ended;
                       with_blocks.files.insert(whole.files.begin(), whole.files.end());
                       return beginning_or_whole(j, with_blocks, whole);
                     }});
  }
}

TEST_F(FailingCalls, ChatTurn) {
  fail_every_call(
      "chat", {{"chat", "-m", model_, "-c", "128", "-t", "1", "--temp", "0", "-n", "6", "--session", "s.bin"},
               "a b c"});
}

TEST_F(FailingCalls, ContinueAChat) {
  Job job{{"chat", "-m", model_, "-c", "128", "-t", "1", "--temp", "0", "-n", "6", "--session", "s.bin"},
          "a b c"};
  job.files["s.bin"] = one_file("s.bin", job);
  fail_every_call("continue", job);
}

TEST_F(FailingCalls, Quantize) {
  Job job{{"quantize", model_, "out.gguf", "Q8_0", "2"}};
  job.files["out.gguf"] = small_gguf().bytes();
  fail_every_call("quantize", job);
}

TEST_F(FailingCalls, Convert) {
  HfFolder folder = family_folder(load_family("llama"));
  folder.write(directory_.path("hf"));
  fail_every_call("convert", {{"convert", directory_.path("hf"), "-o", "out.gguf", "-t", "2"}});
}

TEST_F(FailingCalls, ListDownloads) {
  Job job{{"list", "-v"}};
  job.environment = {"HF_HUB_CACHE=hub"};
  for (const char* repo : {"one", "two", "three"}) {
    const std::string folder = "hub/models--user--" + std::string(repo) + "-GGUF/";
    job.files[folder + "refs/main"] = "0123";
    job.files[folder + "snapshots/0123/model-Q8_0.gguf"] = "GGUF";
  }
  job.files["hub/models--user--two-GGUF/blobs/4567.incomplete"] = "GG";
  fail_every_call("list", job);
}

// The complete lines of the answers, by index. Empty on a repeated line or one that is no answer.
std::optional<std::map<int64_t, std::string>> whole_answers(const std::string& text) {
  std::map<int64_t, std::string> all;
  std::istringstream lines(text.substr(0, text.rfind('\n') + 1));
  for (std::string line; std::getline(lines, line);) {
    const Json answer = Json::parse(line, nullptr, false);
    if (!answer.is_object() || !answer.contains("index")) return std::nullopt;
    if (!all.emplace(answer["index"].get<int64_t>(), line).second) return std::nullopt;
  }
  return all;
}

TEST_F(FailingCalls, Batch) {
  std::string lines;
  for (int i = 0; i < 5; ++i)
    lines += Json{{"prompt", "a b " + std::string(i, 'c')}, {"id", i}}.dump() + "\n";
  write_file(directory_.path("in.jsonl"), lines);
  const Workload batch{
      "batch",
      {{"batch", "-m", model_, "-t", "1", "--temp", "0", "-n", "4", "-np", "2", "-c", "256", "-i",
        directory_.path("in.jsonl"), "-o", "out.jsonl"}},
      false,
      [&batch](const Ended& ended, const Ended& whole, const JobFolder& folder) -> std::string {
        const auto right = whole_answers(whole.files.at("out.jsonl"));
        Ended end = ended;
        for (int run = 0; run < 2; ++run) {
          const auto found = whole_answers(end.files["out.jsonl"]);
          if (!found) return "an answer is there twice, or torn";
          for (const auto& [index, answer] : *found) {
            if (right->at(index) != answer)
              return "the answer to line " + std::to_string(index) + " is wrong";
          }
          if (end.files.size() != 1) return "other files are left";
          if (end.exit_code == 0) return found == right ? "" : "exit code 0, but an answer is lost";
          Job again = batch.job;  // continues
          again.files = end.files;
          end = folder.run(again);
        }
        return "the rerun fails: " + end.err;
      }};
  fail_every_call(batch);
}

}  // namespace
}  // namespace tandem::test
