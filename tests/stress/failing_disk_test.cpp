// A disk that fails while the program runs a mixture whose experts are on it: run and chat end with exit code 5 and one line
// that names the file and the place, a saved conversation stays as it was, and a chat at a terminal goes on.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "stress/failing_calls.h"
#include "support/chat_terminal.h"

namespace tandem::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kPlainReads = "uring:1+";  // which the library can make fail

class FailingDisk : public ChatTerminal {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    path_ = directory_.path("mixture.gguf");
    TinyShape shape;
    shape.n_layer = 8;
    shape.n_expert = 16;
    shape.n_expert_used = 2;
    TinyModel model = tiny_llama(shape);
    add_chat_template(model);
    model.write(path_);
    half_ = std::to_string(std::filesystem::file_size(path_) / 2);
  }

  Job job(const std::string& command, const std::string& failing_call) const {
    return {.arguments = {command, "-m", path_, "-c", "256", "-t", "1", "-s", "1", "-n", "12", "-dev", "none",
                          "-p", "a b c", "--max-ram", half_},
            .failing_call = failing_call};
  }
  static void expect_a_line_about_the_disk(const Ended& ended, const std::string& path) {
    EXPECT_EQ(ended.exit_code, 5) << ended.err;
    EXPECT_THAT(ended.err,
                ContainsRegex("error: " + path + ": reading [0-9]+ bytes at offset [0-9]+ failed: "));
    const size_t first = ended.err.find("error: ");
    EXPECT_EQ(ended.err.find('\n', first), ended.err.size() - 1) << ended.err;  // the last line
  }

  std::string half_;
};

TEST_F(FailingDisk, RunAndChatEndWithALine) {
  for (const std::string command : {"run", "chat"}) {
    SCOPED_TRACE(command);
    const JobFolder folder(directory_.path(command));
    const Ended whole = folder.run(job(command, kPlainReads));
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    const uint64_t n = whole.calls.n_calls[kRead];
    ASSERT_GT(n, 100u);
    const Ended failed =
        folder.run(job(command, std::string(kPlainReads) + ",read:" + std::to_string(n / 2) + "+"));
    expect_a_line_about_the_disk(failed, path_);
    const std::string text = failed.out.substr(0, failed.out.find_last_not_of('\n') + 1);
    EXPECT_THAT(whole.out, StartsWith(text));
    EXPECT_LT(text.size(), whole.out.size());
  }
}

TEST_F(FailingDisk, EveryCall) {
  const Job whole = job("run", "");
  fail_every_call({"experts", whole, false,
                   [&whole](const Ended& ended, const Ended& right, const JobFolder&) {
                     return beginning_or_whole(whole, ended, right);
                   }},
                  directory_.path("jobs"));
}

TEST_F(FailingDisk, ASavedConversationStays) {
  const JobFolder folder(directory_.path("chat"));
  const auto turn = [&](const std::string& failing_call, const std::map<std::string, std::string>& files) {
    Job j = job("chat", failing_call);
    j.arguments.insert(j.arguments.end(), {"--session", "session.bin"});
    j.files = files;
    return folder.run(j);
  };
  const Ended first = turn(kPlainReads, {});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Ended second = turn(kPlainReads, first.files);
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const Ended failed =
      turn(std::string(kPlainReads) + ",read:" + std::to_string(second.calls.n_calls[kRead] / 2) + "+",
           first.files);
  expect_a_line_about_the_disk(failed, path_);
  EXPECT_EQ(failed.files, first.files);
  EXPECT_EQ(turn(kPlainReads, failed.files).out, second.out);
}

// Lets all reads of experts fail while it exists.
class BrokenDisk {
 public:
  explicit BrokenDisk(const std::string& report) : report_(report) { set(1); }
  ~BrokenDisk() { set(0); }
  BrokenDisk(const BrokenDisk&) = delete;
  BrokenDisk& operator=(const BrokenDisk&) = delete;

 private:
  void set(uint64_t preads_fail) {
    const int fd = open(report_.c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(pwrite(fd, &preads_fail, sizeof preads_fail, offsetof(CallReport, preads_fail)),
              static_cast<ssize_t>(sizeof preads_fail));
    close(fd);
  }
  std::string report_;
};

TEST_F(FailingDisk, AChatAtATerminalGoesOn) {
  const std::string report = directory_.path("report");
  std::ofstream(report, std::ios::binary) << std::string(sizeof(CallReport), '\0');
  const auto t = start({"-c", "256", "-n", "8", "-dev", "none", "--max-ram", half_},
                       {.environment = {"LD_PRELOAD=" + library_path(), "TANDEM_FAILING_CALL=uring:1+",
                                        "TANDEM_FAILING_CALLS_REPORT=" + report}});
  ASSERT_TRUE(t->wait_for(kReady)) << t->seen();
  t->type("first" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 8 tokens")) << t->seen();
  ASSERT_TRUE(t->wait_for(kReady));
  {
    const BrokenDisk broken(report);
    t->type("second" + kEnter);
    ASSERT_TRUE(t->wait_for("error: ")) << t->seen();
    ASSERT_TRUE(t->wait_for("failed: ")) << t->seen();
    ASSERT_TRUE(t->wait_for(kReady));
  }
  t->type("/regen" + kEnter);  // the message that has no answer
  ASSERT_TRUE(t->wait_for(" reused)")) << t->seen();
  ASSERT_TRUE(t->wait_for(kReady));
  EXPECT_THAT(t->seen(), Not(HasSubstr("error: ")));
  const std::string saved = directory_.path("saved.bin");
  t->type("/save " + saved + kEnter);
  ASSERT_TRUE(t->wait_for(kReady)) << t->seen();
  t->type("/exit" + kEnter);
  EXPECT_EQ(t->wait_for_exit(), 0);
  std::ifstream file(saved, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(bytes, HasSubstr("first"));
  EXPECT_THAT(bytes, HasSubstr("second"));
}

}  // namespace
}  // namespace tandem::test
