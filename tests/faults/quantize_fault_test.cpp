// Failures while writing a model: an interrupt, a kill, a full disk, failing system calls. The target is
// always either the old file or the complete new one.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <random>
#include <thread>

#include "base/error.h"
#include "gguf/parse.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/text_files.h"
#include "support/tiny_model.h"
#include "tools/quantize/quantize.h"
#include "tools/split/split.h"

// These replace libc's functions in the whole program; once armed, the n-th call from now fails.
namespace {
int g_calls_until_failure = -1;  // negative: never
bool fails() {
  return g_calls_until_failure >= 0 && g_calls_until_failure-- == 0;
}
int failed() {
  errno = ENOSPC;
  return -1;
}
}  // namespace

extern "C" {
ssize_t write(int fd, const void* data, size_t n) {
  return fails() ? failed() : syscall(SYS_write, fd, data, n);
}
int fsync(int fd) {
  return fails() ? failed() : static_cast<int>(syscall(SYS_fsync, fd));
}
int rename(const char* from, const char* to) noexcept {
  return fails() ? failed() : static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
}

namespace tandem::tools {
namespace {

using test::file_bytes;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kOld = test::small_gguf().bytes();  // what was there before: another model

class WriteFaults : public testing::Test {
 protected:
  void SetUp() override {
    in = directory.path("in.gguf");
    std::filesystem::create_directory(directory.path("to"));
    out = directory.path("to/out.gguf");
    test::tiny_llama({.n_embd = 256, .n_ff = 512, .dtype = DType::F16}).write(in);
  }

  std::vector<std::string> files_beside_out() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path("to"))) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  // Runs the program and sends it a signal after a delay. Returns the status of waitpid.
  int run_and_signal(const std::vector<std::string>& arguments, int signal, std::chrono::microseconds after) {
    std::vector<const char*> argv;
    const std::string program = test::binary_path();
    argv.push_back(program.c_str());
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    argv.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      execv(program.c_str(), const_cast<char**>(argv.data()));
      _exit(127);
    }
    std::this_thread::sleep_for(after);
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  // The outputs of undisturbed commands that write models, and their run times.
  struct Job {
    std::vector<std::string> arguments;
    std::string expected;  // bytes of out
    std::chrono::microseconds time;
  };
  Job job(const std::vector<std::string>& arguments) {
    const auto start = std::chrono::steady_clock::now();
    std::string line;
    for (const std::string& argument : arguments) line += " '" + argument + "'";
    EXPECT_EQ(test::shell("", line).exit_code, 0);
    const auto time = std::chrono::steady_clock::now() - start;
    Job job{arguments, file_bytes(out), std::chrono::duration_cast<std::chrono::microseconds>(time)};
    std::filesystem::remove(out);
    return job;
  }

  void disturb(const Job& job, int signal) {
    std::mt19937 random(static_cast<unsigned>(signal));
    for (int i = 0; i < 12; ++i) {
      test::write_file(out, kOld);
      const auto after = std::chrono::microseconds(
          std::uniform_int_distribution<int64_t>(0, job.time.count() * 5 / 4)(random));
      const int status = run_and_signal(job.arguments, signal, after);
      const std::string now = file_bytes(out);
      EXPECT_TRUE(now == kOld || now == job.expected)
          << now.size() << " bytes after " << after.count() << " us";
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        EXPECT_TRUE(now == job.expected);
      }
      if (signal == SIGINT) {
        EXPECT_THAT(files_beside_out(), ElementsAre("out.gguf"));
      }
      for (const std::string& name : files_beside_out()) {  // a killed program cannot clean up
        EXPECT_THAT(name, testing::StartsWith("out.gguf"));
        if (name != "out.gguf") std::filesystem::remove(directory.path("to/" + name));
      }
    }
  }

  test::TempDir directory;
  std::string in, out;
};

TEST_F(WriteFaults, InterruptedOrKilledAtAnyPoint) {
  TANDEM_NEED_BINARY();
  test::tiny_llama({.n_embd = 512, .n_ff = 1024, .n_vocab = 1000, .dtype = DType::F16}).write(in);
  const std::vector<std::vector<std::string>> commands = {{"quantize", "--log-disable", in, out, "Q2_K", "1"},
                                                          {"merge", "--log-disable", in, out}};
  for (const auto& command : commands) {
    const Job undisturbed = job(command);
    ASSERT_FALSE(undisturbed.expected.empty());
    disturb(undisturbed, SIGKILL);
    disturb(undisturbed, SIGINT);
  }
}

// Every call that writes, syncs or renames fails in turn.
template <class Fn>
int fail_each_call(const Fn& run, const std::function<void()>& check) {
  for (int n = 0;; ++n) {
    g_calls_until_failure = n;
    try {
      run();
      g_calls_until_failure = -1;
      return n;
    } catch (const Error& error) {
      g_calls_until_failure = -1;
      EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("No space left"));
      EXPECT_THAT(error.what(), HasSubstr("out"));
    }
    check();
    if (n > 10000) ADD_FAILURE() << "never succeeds";
  }
}

TEST_F(WriteFaults, EveryFailingCallLeavesTheOldFile) {
  const GgufFile file(in);
  const QuantizeOptions options{.type = FileType::Q8_0};
  const QuantizeJob plan = prepare_quantize(file, options, nullptr);
  test::write_file(out, kOld);
  const auto check = [&] {
    EXPECT_EQ(file_bytes(out), kOld);
    EXPECT_THAT(files_beside_out(), ElementsAre("out.gguf"));
  };
  const int n = fail_each_call([&] { write_quantized(file, plan, options, nullptr, out); }, check);
  EXPECT_GE(n, 3);  // at least one each
  EXPECT_NO_THROW(GgufFile{out});
}

TEST_F(WriteFaults, PartsGetTheirNamesOnlyWhenAllAreComplete) {
  const GgufFile file(in);
  const SplitLimits limits{.max_tensors = 8};
  const size_t n_parts = list_parts(file, limits, out).size();
  ASSERT_GT(n_parts, 1u);
  int n_published = 0;  // if a rename fails, the parts renamed before are complete
  fail_each_call([&] { write_parts(file, limits, out); },
                 [&] {
                   const std::vector<std::string> files = files_beside_out();
                   n_published += !files.empty();
                   for (const std::string& name : files) {
                     EXPECT_THAT(name, testing::Not(HasSubstr("tmp")));
                     const MappedFile part = MappedFile::open(directory.path("to/" + name), {});
                     EXPECT_NO_THROW(parse_gguf(part.bytes(), name));
                     EXPECT_THAT(name, testing::Not(HasSubstr("-00001-of")));  // the last to be renamed
                     std::filesystem::remove(directory.path("to/" + name));
                   }
                 });
  EXPECT_LT(n_published, static_cast<int>(n_parts));
  EXPECT_EQ(files_beside_out().size(), n_parts);
}

TEST_F(WriteFaults, AFileSizeLimit) {
  TANDEM_NEED_BINARY();
  test::write_file(out, kOld);
  for (const std::string& command :
       {"quantize '" + in + "' '" + out + "' Q8_0 1", "merge '" + in + "' '" + out + "'"}) {
    const test::Outcome got = test::shell("ulimit -f 64;", command + " --log-disable 2>&1");
    EXPECT_EQ(got.exit_code, 5) << got.out;
    EXPECT_THAT(got.out, HasSubstr("File too large"));
    EXPECT_THAT(got.out, HasSubstr("out.gguf"));
    EXPECT_EQ(file_bytes(out), kOld);
    EXPECT_THAT(files_beside_out(), ElementsAre("out.gguf"));
  }
}

TEST_F(WriteFaults, AFullDisk) {
  TANDEM_NEED_BINARY();
  const std::string disk = directory.path("disk");
  std::filesystem::create_directory(disk);
  if (mount("none", disk.c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "a small disk can only be mounted by root: " << strerror(errno);
  }
  const std::string small = disk + "/out.gguf";
  test::write_file(small, kOld);
  for (const std::string& command :
       {"quantize '" + in + "' '" + small + "' Q8_0 1",
        "split '" + in + "' '" + small + "' --split-max-tensors 9", "merge '" + in + "' '" + small + "'"}) {
    const test::Outcome got = test::shell("", command + " --log-disable 2>&1");
    EXPECT_EQ(got.exit_code, 5) << got.out;
    EXPECT_THAT(got.out, HasSubstr("No space left"));
    EXPECT_EQ(file_bytes(small), kOld);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(disk), std::filesystem::directory_iterator()),
              1);
  }
  umount2(disk.c_str(), MNT_DETACH);
}

TEST_F(WriteFaults, NeverOverwritesTheInput) {
  TANDEM_NEED_BINARY();
  const std::string before = file_bytes(in);
  std::filesystem::create_symlink(in, directory.path("to/link.gguf"));
  std::filesystem::create_hard_link(in, directory.path("to/hard.gguf"));
  for (const std::string& name : {in, directory.path("to/../in.gguf"), directory.path("to/link.gguf"),
                                  directory.path("to/hard.gguf")}) {
    const test::Outcome got = test::shell("", "quantize '" + in + "' '" + name + "' Q8_0 1 2>&1");
    EXPECT_EQ(got.exit_code, 2) << got.out;
    EXPECT_THAT(got.out, HasSubstr("the output is the input file"));
  }
  EXPECT_TRUE(file_bytes(in) == before);
}

TEST_F(WriteFaults, InvalidWeightsAreCountedAndNamed) {
  TANDEM_NEED_BINARY();
  test::TinyModel model = test::tiny_llama({.n_embd = 256, .n_ff = 512, .dtype = DType::F32});
  test::TinyTensor& tensor = model.tensors.at("blk.1.ffn_up.weight");
  const float bad[] = {NAN, INFINITY, -INFINITY, NAN, NAN};
  for (size_t i = 0; i < std::size(bad); ++i) {
    std::memcpy(tensor.data.data() + 4 * (1000 * i + 17), &bad[i], sizeof(float));
  }
  model.write(in);
  test::write_file(out, kOld);
  const test::Outcome got =
      test::shell("", "quantize '" + in + "' '" + out + "' Q4_K_M 2 --log-disable 2>&1");
  EXPECT_EQ(got.exit_code, 3);
  EXPECT_THAT(got.out, HasSubstr("blk.1.ffn_up.weight: found 3 NaN, 2 infinite of"));
  EXPECT_EQ(file_bytes(out), kOld);
  EXPECT_THAT(files_beside_out(), ElementsAre("out.gguf"));
}

}  // namespace
}  // namespace tandem::tools
