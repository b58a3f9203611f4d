// A run whose cache is mostly on disk (--kv-memory, --kv-spill), with each call of the system failing in turn: a text that is
// right as far as it goes, one line, the right exit code, and no file left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stress/failing_calls.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class FailingSpill : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    TinyShape shape;
    shape.n_layer = 6;
    tiny_llama(shape).write(path_);
  }
  // 13 of 16 blocks are on disk, 10 in use.
  Job job(const std::string& failing_call) const {
    return {.arguments = {"run",         "-m",           path_,        "-c",   "512", "-ub",
                          "16",          "-t",           "1",          "-s",   "1",   "-n",
                          "36",          "--ignore-eos", "-dev",       "none", "-p",  std::string(360, 'a'),
                          "--kv-memory", "200KiB",       "--kv-spill", "."},
            .failing_call = failing_call};
  }

  TempDir directory_;
  std::string path_ = directory_.path("tiny.gguf");
};

TEST_F(FailingSpill, AFullOrBrokenDiskEndsTheText) {
  const std::string plain_reads = "uring:1+";
  const JobFolder folder(directory_.path("jobs"));
  const Ended whole = folder.run(job(plain_reads));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  for (const auto& [call, kind] : {std::pair("read", kRead), std::pair("write", kWrite)}) {
    const uint64_t n = whole.calls.n_calls[kind];
    ASSERT_GT(n, 100u) << call;
    // Of the writes one, as the program says on stdout what it has.
    const std::string which = kind == kWrite ? std::to_string(n / 4) : std::to_string(n * 3 / 4) + "+";
    const Ended failed = folder.run(job(plain_reads + "," + call + ":" + which));
    EXPECT_EQ(failed.exit_code, 5) << failed.err;
    EXPECT_THAT(failed.err,
                HasSubstr(kind == kWrite ? "error: --kv-spill .: cannot write the KV cache: No space left"
                                         : "Input/output error"));
    const std::string text = failed.out.substr(0, failed.out.find_last_not_of('\n') + 1);
    EXPECT_THAT(whole.out, StartsWith(text));
    EXPECT_TRUE(failed.files.empty());
  }
}

TEST_F(FailingSpill, EveryCall) {
  const Job whole = job("");
  fail_every_call({"spilled", whole, false,
                   [&whole](const Ended& ended, const Ended& right, const JobFolder&) {
                     return beginning_or_whole(whole, ended, right);
                   }},
                  directory_.path("jobs"));
}

}  // namespace
}  // namespace tandem::test
