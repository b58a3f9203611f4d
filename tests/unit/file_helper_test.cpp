// The process that writes files for a confined program.
#include "sandbox/file_helper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/output_file.h"
#include "sandbox/sandbox.h"
#include "support/confined.h"
#include "support/text_files.h"

namespace tandem::sandbox {
namespace {

namespace fs = std::filesystem;
using test::file_bytes;
using test::in_child;

// "ok", or the message of the error.
std::string writing(const std::string& path, const std::string& text) {
  try {
    OutputFile file(path);
    file.write(std::as_bytes(std::span(text)));
    file.publish();
    return "ok";
  } catch (const Error& e) {
    return e.what();
  }
}

class Helper : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/tandem-helper-XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override {
    set_create_temporary({});
    fs::remove_all(folder_);
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  // All OutputFiles are written through it.
  std::shared_ptr<FileHelper> start(std::vector<OutputName> outputs) {
    auto helper = FileHelper::start(std::move(outputs));
    set_create_temporary([helper](const std::string& p, const std::string& t, int& error) {
      return helper->create(p, t, error);
    });
    return helper;
  }
  size_t n_files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  std::string folder_;
};

TEST_F(Helper, WritesWhatIsNamedAndNothingElse) {
  const auto helper = start({{path("out")}});
  ASSERT_TRUE(helper);
  EXPECT_EQ(writing(path("out"), "one"), "ok");
  EXPECT_EQ(file_bytes(path("out")), "one");
  EXPECT_EQ(writing(path("out"), "two"), "ok");
  EXPECT_EQ(file_bytes(path("out")), "two");
  EXPECT_EQ(writing(path("other"), "x"), path("other") + ": cannot create: Permission denied");
  EXPECT_EQ(writing(path("out2"), "x"), path("out2") + ": cannot create: Permission denied");
  int error = 0;
  for (const char* temporary : {"secret", "out.tmp-1/../secret"})
    EXPECT_EQ(helper->create(path("out"), path(temporary), error), nullptr);
  EXPECT_EQ(error, EACCES);
  EXPECT_EQ(n_files(), 1u);
}

// What the program wrote is a new file, which no rule of before names.
TEST_F(Helper, OpensOutputsAsTheyAreNow) {
  const auto helper = start({{path("out")}});
  ASSERT_TRUE(helper);
  EXPECT_EQ(helper->open(path("out"), 0), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(writing(path("out"), "text"), "ok");
  const int fd = helper->open(path("out"), 0);
  char text[8];
  EXPECT_EQ(read(fd, text, sizeof text), 4);
  EXPECT_EQ(write(fd, text, 1), -1);
  close(fd);
  EXPECT_EQ(helper->open("/etc/passwd", 0), -1);
  EXPECT_EQ(errno, EACCES);
}

// Allows to read what it is told, as if a user had typed it there.
class TypedNames : public HelperHandler {
 public:
  explicit TypedNames(Channel& channel) : channel_(channel) {}
  void start() override {}
  bool answer(const Message& question, HelperFiles& files) override {
    files.allow_reading(question.text);
    return channel_.send({.kind = kFirstOwnKind});
  }

 private:
  Channel& channel_;
};

TEST_F(Helper, OpensWhatWasTypedAndNothingElse) {
  for (const char* name : {"notes", "secret", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"})
    std::ofstream(path(name)) << name;
  const auto helper =
      FileHelper::start({}, [](Channel& channel) { return std::make_unique<TypedNames>(channel); });
  ASSERT_TRUE(helper);
  const auto opens = [&](const std::string& name) {
    const int fd = helper->open(path(name), 0);
    if (fd >= 0) close(fd);
    return fd >= 0;
  };
  EXPECT_FALSE(opens("notes"));
  for (const char* name : {"notes", "m-00001-of-00002.gguf"}) {
    Message answer;
    ASSERT_TRUE(helper->channel().send({.kind = kFirstOwnKind, .text = path(name)}));
    ASSERT_TRUE(helper->channel().receive(answer));
  }
  EXPECT_TRUE(opens("notes"));
  EXPECT_TRUE(opens("m-00002-of-00002.gguf"));  // of a split model, all parts
  EXPECT_FALSE(opens("secret"));
  EXPECT_FALSE(opens("notes/../secret"));
  int error = 0;
  EXPECT_EQ(helper->create(path("notes"), path("notes.tmp-1"), error), nullptr);  // reading is not writing
  EXPECT_EQ(error, EACCES);
}

TEST_F(Helper, NumberedNames) {
  const OutputName parts{"a/model", true, ".gguf"};
  EXPECT_TRUE(parts.allows("a/model-00001-of-00003.gguf"));
  EXPECT_TRUE(parts.allows("a/model.gguf"));
  EXPECT_FALSE(parts.allows("a/model-x.gguf"));
  EXPECT_FALSE(parts.allows("a/model/1.gguf"));
  EXPECT_FALSE(parts.allows("a/model1.txt"));
  EXPECT_FALSE(parts.allows("a/mode.gguf"));
  const OutputName overlapping{"aba", true, "ba"};
  EXPECT_FALSE(overlapping.allows("aba"));
  const OutputName copies{"m.at_", true, ""};
  EXPECT_TRUE(copies.allows("m.at_12"));
  EXPECT_FALSE(copies.allows("m.at_1.txt"));
}

TEST_F(Helper, KeepsTheModeAndTheOwnFolder) {
  const auto helper = start({{"relative-name"}});
  ASSERT_TRUE(helper);
  const std::string before = fs::current_path();
  fs::current_path(folder_);  // the helper does not follow
  EXPECT_EQ(writing("relative-name", "x"), "ok");
  fs::current_path(before);
  struct stat info {};
  ASSERT_EQ(stat("relative-name", &info), 0);
  const mode_t mask = umask(0);
  umask(mask);
  EXPECT_EQ(info.st_mode & 0777, 0666 & ~mask);
  fs::remove("relative-name");
}

TEST_F(Helper, LargeFilesAndManyAtOnce) {
  std::vector<OutputName> outputs;
  for (int i = 0; i < 8; ++i) outputs.push_back({path(std::to_string(i))});
  const auto helper = start(outputs);
  ASSERT_TRUE(helper);
  std::vector<std::string> texts(8), said(8);
  std::mt19937 random(std::random_device{}());
  for (std::string& text : texts) {
    text.resize(random() % 3'000'000);
    for (char& c : text) c = static_cast<char>(random());
  }
  std::vector<std::thread> writers;
  for (size_t i = 0; i < 8; ++i)
    writers.emplace_back([&, i] { said[i] = writing(outputs[i].path, texts[i]); });
  for (std::thread& writer : writers) writer.join();
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(said[i], "ok");
    EXPECT_TRUE(file_bytes(outputs[i].path) == texts[i]) << i;
  }
  EXPECT_EQ(n_files(), 8u);
}

TEST_F(Helper, ReportsErrorsAsWithoutIt) {
  fs::create_directory(path("folder"));
  for (const std::string name : {"no such folder/out", "folder"}) {
    const std::string without = writing(path(name), "x");
    EXPECT_NE(without, "ok");
    const auto helper = start({{path(name)}});
    ASSERT_TRUE(helper);
    EXPECT_EQ(writing(path(name), "x"), without);
    set_create_temporary({});
  }
  const auto helper = start({{path("late")}});
  OutputFile late(path("late"));
  fs::create_directory(path("late"));  // cannot be replaced
  EXPECT_THROW(late.publish(), Error);
}

TEST_F(Helper, RemovesWhatIsNotPublished) {
  const auto helper = start({{path("out")}});
  ASSERT_TRUE(helper);
  { OutputFile file(path("out")); }
  EXPECT_EQ(n_files(), 0u);
  const std::string said = in_child([&] {
    OutputFile file(path("out"));
    raise(SIGKILL);
    return std::string();
  });
  EXPECT_EQ(said, "killed by 9");
  EXPECT_EQ(n_files(), 0u);
}

// A pipe to the program's reader ends with the program, and the helper ends too.
TEST_F(Helper, EndsWithTheProgram) {
  int ends[2], kept[2];
  ASSERT_EQ(pipe(ends) + pipe(kept), 0);
  const pid_t program = fork();
  if (program == 0) {
    close(ends[0]);
    const auto helper = FileHelper::start({{path("out")}});
    const pid_t pid = helper->pid();
    (void)!write(kept[1], &pid, sizeof pid);
    raise(SIGKILL);
  }
  close(ends[1]);
  pollfd end{ends[0], POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 20'000), 1);
  pid_t pid = 0;
  ASSERT_EQ(read(kept[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  int status = 0;
  waitpid(program, &status, 0);
  for (int i = 0; i < 2000 && kill(pid, 0) == 0; ++i) {
    if (file_bytes("/proc/" + std::to_string(pid) + "/stat").find(") Z ") != std::string::npos)
      break;  // nobody waits for it
    usleep(10'000);
  }
  const std::string state = file_bytes("/proc/" + std::to_string(pid) + "/stat");
  EXPECT_TRUE(state.empty() || state.find(") Z ") != std::string::npos) << state;
  for (const int fd : {ends[0], kept[0], kept[1]}) close(fd);
}

TEST_F(Helper, IgnoresSignalsOfTheTerminal) {
  const auto helper = start({{path("out")}});
  ASSERT_TRUE(helper);
  EXPECT_EQ(writing(path("out"), "one"), "ok");  // it is ready
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP}) kill(helper->pid(), signal);
  EXPECT_EQ(writing(path("out"), "two"), "ok");
}

TEST_F(Helper, WritesForAConfinedProgram) {
  if (!why_never_confined().empty()) GTEST_SKIP() << why_never_confined();
  EXPECT_EQ(in_child([&] {
              start({{path("out")}});
              confine({});
              const std::string beside =
                  open(path("beside").c_str(), O_CREAT | O_WRONLY, 0600) >= 0 ? "ok" : strerrorname_np(errno);
              return writing(path("out"), "text") + " " + beside;
            }),
            landlock_abi() > 0 ? "ok EACCES" : "ok ok");
  EXPECT_EQ(file_bytes(path("out")), "text");
}

}  // namespace
}  // namespace tandem::sandbox
