// --kv-memory and --kv-spill as a user has them: the same text, what is said of bytes, the sandbox, a file that is gone
// whatever happens, and one line for a folder that cannot be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/sanitized.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class KvSpillCommand : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::TinyShape shape;
    shape.n_layer = 6;
    shape.n_head = 2;  // heads of 32
    test::tiny_llama(shape).write(model_);
    fs::create_directories(folder_);
  }

  // A prompt of 400 tokens and an answer of 60: 14 of 16 blocks, of which three are in memory.
  std::string arguments(const std::string& more, const std::string& command = "run") const {
    return command + " -m " + model_ + " -c 512 -ub 16 -dev none " + more;
  }
  test::Outcome run(const std::string& more, int n = 60) const {
    const std::string text =
        " -p '" + std::string(400, 'a') + "' --temp 0 --ignore-eos -n " + std::to_string(n);
    return test::shell("", arguments(more + text));
  }
  std::string spill() const { return "--kv-memory 380KiB --kv-spill " + folder_; }

  test::TempDir directory_;
  std::string model_ = directory_.path("tiny.gguf"), folder_ = directory_.path("spill");
};

TEST_F(KvSpillCommand, WritesTheSameText) {
  const std::string right = run("2>/dev/null").out;
  ASSERT_FALSE(right.empty());
  for (const std::string more : {"", " --no-sandbox", " -ctk q8_0"}) {
    const std::string expected = more.starts_with(" -c") ? run(more + " 2>/dev/null").out : right;
    const test::Outcome spilled = run(spill() + more + " 2>&1");
    EXPECT_EQ(spilled.exit_code, 0);
    EXPECT_THAT(spilled.out, HasSubstr(expected)) << more;
  }
  if (!kSanitized) {
    EXPECT_THAT(run(spill() + " -v 2>&1", 1).out, ContainsRegex("sandbox: .*io_uring is allowed"));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_EQ(run("--kv-memory auto --kv-spill off 2>/dev/null").out, right);
}

TEST_F(KvSpillCommand, SaysWhatIsWhere) {
  // 13 blocks of 32 tokens with 256 bytes in each of 6 layers.
  EXPECT_THAT(run(spill() + " --explain 2>&1", 1).out,
              HasSubstr("KV cache: the newest 96 tokens in memory; with a full context 0.6 MiB on disk, of "
                        "which a token reads 0.6 MiB"));
  const std::string plan = arguments("--kv-memory 380KiB --ram-bw 60 --disk-bw 1 -o json", "plan");
  const Json page = Json::parse(test::shell("", plan + " 2>/dev/null").out);
  EXPECT_EQ(page["disk"]["kv"], 13 * 32 * 256 * 6);
  EXPECT_EQ(page["disk"]["kv_read_per_token"], 13 * 32 * 256 * 6);
  EXPECT_EQ(page["tiers"][0]["kv"], 3 * 32 * 256 * 6);
  EXPECT_EQ(page["tiers"][0]["staging"], 2 * 2 * 14 * 4096);  // keys and values of 14 blocks, in whole pages
}

TEST_F(KvSpillCommand, WhatCannotBeUsed) {
  const auto expect = [&](const std::string& options, int exit_code, const std::string& what) {
    const test::Outcome outcome = run(options + " 2>&1 >/dev/null");
    EXPECT_EQ(outcome.exit_code, exit_code) << options;
    EXPECT_THAT(outcome.out, HasSubstr(what));
    const size_t line = outcome.out.find("tandem: error: ");  // the last one
    EXPECT_EQ(outcome.out.find('\n', line), outcome.out.size() - 1) << outcome.out;
  };
  expect("--kv-memory 380KiB", 2, "--kv-memory needs a folder for the rest of the cache: --kv-spill DIR");
  expect("--kv-memory 380KiB --kv-spill " + folder_ + "/none", 5, "No such file or directory");
  expect("--kv-memory 380KiB --kv-spill " + model_, 5, "Not a directory");
  expect("--kv-memory 380KiB --kv-spill /proc", 5, "--kv-spill /proc: cannot make a file there");
  expect("--kv-memory 1KiB --kv-spill " + folder_, 4, "needs at least");
  expect("--kv-memory much --kv-spill " + folder_, 2, "--kv-memory");
  if (geteuid() == 0) return;
  chmod(folder_.c_str(), 0500);
  expect(spill(), 5, "Permission denied");
}

// The limit of a file's size is another way to fill a disk.
TEST_F(KvSpillCommand, AFullDisk) {
  const test::Outcome outcome =
      test::shell("trap '' XFSZ; ulimit -f 8;",
                  arguments(spill() + " -p '" + std::string(400, 'a') + "' -n 9 2>&1 >/dev/null"));
  EXPECT_EQ(outcome.exit_code, 5) << outcome.out;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("--kv-spill"),
                                 HasSubstr("cannot make a file of this size there: File too large")));
}

TEST_F(KvSpillCommand, TheFileIsGoneAfterKill) {
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string text(400, 'a');
    const std::string binary = test::binary_path();
    freopen("/dev/null", "w", stdout);
    freopen("/dev/null", "w", stderr);
    execl(binary.c_str(), binary.c_str(), "run", "-m", model_.c_str(), "-c", "20000", "-ub", "16", "-dev",
          "none", "--kv-memory", "12MiB", "--kv-spill", folder_.c_str(), "-p", text.c_str(), "--ignore-eos",
          "-n", "19000", nullptr);
    _exit(127);
  }
  // Until it has the file open, which has no name any more.
  bool is_open = false;
  for (int i = 0; i < 500 && !is_open && waitpid(pid, nullptr, WNOHANG) == 0; ++i) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", ignored))
      is_open |= fs::read_symlink(entry.path(), ignored).string().starts_with(folder_ + "/tandem-kv-");
    usleep(20000);
  }
  EXPECT_TRUE(is_open);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace tandem
