// Texts that never end or are too large: each is refused with one line that names the source and the limit.
#include "base/text_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kTooMuch = ": more than 67108864 bytes from a device, which is no regular file";

template <class Action>
std::string refusal(const Action& action, ErrorCode code) {
  try {
    action();
    return "nothing was refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
}

class TextInput : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path(name); }
  // A file of this size that takes no room on the disk.
  std::string sparse(const std::string& name, uintmax_t n_bytes) const {
    test::write_file(path(name), "x");
    std::filesystem::resize_file(path(name), n_bytes);
    return path(name);
  }
  std::string fifo(const std::string& name) const {
    EXPECT_EQ(mkfifo(path(name).c_str(), 0600), 0);
    return path(name);
  }
  test::TempDir directory_;
};

TEST_F(TextInput, ReadsAllOfAFileOrPipe) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{65535}, size_t{65536}, size_t{65537}, size_t{300001}}) {
    std::string text(n, ' ');
    for (size_t i = 0; i < n; ++i) text[i] = static_cast<char>(i * 7);
    test::write_file(path("text"), text);
    EXPECT_TRUE(read_text(path("text")) == text) << n;
    EXPECT_TRUE(read_regular_file(path("text"), n) == text) << n;
    EXPECT_TRUE(read_optional_file(path("text"), n) == text) << n;
    const std::string pipe = fifo("pipe" + std::to_string(n));
    std::thread writer([&] { test::write_file(pipe, text); });
    EXPECT_TRUE(read_text(pipe) == text) << n;
    writer.join();
  }
}

TEST_F(TextInput, RefusesTooMuch) {
  test::write_file(path("text"), "12345");
  EXPECT_EQ(read_text(path("text"), 5), "12345");
  EXPECT_EQ(refusal([&] { read_text(path("text"), 4); }, ErrorCode::bad_file),
            path("text") + ": found 5 bytes, needed at most 4");
  EXPECT_EQ(read_optional_file(path("text"), 4), "");
  const std::string large = sparse("large", kMaxFileBytes + 1);
  EXPECT_EQ(refusal([&] { read_text(large); }, ErrorCode::bad_file),
            large + ": found 1073741825 bytes, needed at most 1073741824");
  EXPECT_THAT(refusal([&] { read_text("/dev/zero"); }, ErrorCode::bad_file),
              StartsWith(std::string("/dev/zero") + kTooMuch));
  EXPECT_THAT(refusal([&] { read_text("/dev/zero", 1000); }, ErrorCode::bad_file),
              StartsWith("/dev/zero: more than 1000 bytes from a device"));
  // A file that says that it is empty.
  EXPECT_THAT(refusal([&] { read_text("/proc/self/status", 10); }, ErrorCode::bad_file),
              StartsWith("/proc/self/status: found more than 10 bytes"));
}

TEST_F(TextInput, RefusesWhatCannotBeRead) {
  EXPECT_THAT(refusal([&] { read_text(path("none")); }, ErrorCode::io), HasSubstr("none: cannot open"));
  EXPECT_THAT(refusal([&] { read_text(path("")); }, ErrorCode::io), HasSubstr("cannot read"));
  EXPECT_THAT(refusal([&] { read_text(path("no\nne")); }, ErrorCode::io), HasSubstr("no\\x0ane"));
}

TEST_F(TextInput, OnlyRegularFilesWhereNobodyAskedForAnother) {
  const std::string pipe = fifo("pipe");  // nobody will ever write into it
  EXPECT_EQ(refusal([&] { read_regular_file(pipe); }, ErrorCode::bad_file),
            pipe + ": not a regular file: found a pipe");
  EXPECT_THAT(refusal([] { read_regular_file("/dev/zero"); }, ErrorCode::bad_file),
              HasSubstr("found a device"));
  EXPECT_THAT(refusal([&] { read_regular_file(path("")); }, ErrorCode::bad_file),
              HasSubstr("found a folder"));
  EXPECT_EQ(read_optional_file(pipe, 10), "");
  EXPECT_EQ(read_optional_file("/dev/zero", 10), "");
}

class EndlessInput : public TextInput {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::TinyModel model = test::tiny_llama();
    test::add_chat_template(model);
    model.write(path("m.gguf"));
    test::write_file(path("messages.json"), R"([{"role": "user", "content": "hi"}])");
    test::write_file(path("t.jinja"), "{{ messages[0].content }}");
    test::write_file(path("in.jsonl"), "{\"prompt\": \"a\"}\n");
  }
  void expect_refused(const std::string& arguments, const std::string& message) {
    const test::Outcome o = test::shell("cd '" + path("") + "' && timeout 100", arguments + " 2>&1");
    EXPECT_EQ(o.exit_code, 3) << arguments << ": " << o.out;
    EXPECT_THAT(o.out, HasSubstr("tandem: error: ")) << arguments;
    EXPECT_THAT(o.out, HasSubstr(message)) << arguments;
  }
};

TEST_F(EndlessInput, IsRefusedByEveryCommand) {
  const std::string device = std::string("/dev/zero") + kTooMuch,
                    stdin_device = std::string("stdin") + kTooMuch;
  for (const char* arguments : {"run m.gguf -n 1 -f /dev/zero", "perplexity -m m.gguf -f /dev/zero",
                                "imatrix -m m.gguf -o i -f /dev/zero", "tokenize -m m.gguf -f /dev/zero",
                                "template --file t.jinja -i /dev/zero", "chat -m m.gguf -f /dev/zero"}) {
    expect_refused(arguments, device);
  }
  for (const char* arguments :
       {"run m.gguf -n 1 -f - < /dev/zero", "run m.gguf -n 1 < /dev/zero",
        "tokenize -m m.gguf --stdin < /dev/zero", "template --file t.jinja -i - < /dev/zero",
        "perplexity -m m.gguf -f - < /dev/zero"}) {
    expect_refused(arguments, stdin_device);
  }
  expect_refused("batch -m m.gguf -i /dev/zero -o out", "/dev/zero: line 1 is longer than 256 MiB");
  expect_refused("batch -m m.gguf -i - -o out < /dev/zero", "line 1 is longer than 256 MiB");
}

TEST_F(EndlessInput, IsRefusedWithASmallerLimitWhereOneIsKnown) {
  for (const char* arguments :
       {"run m.gguf -p a -n 1 --grammar-file /dev/zero", "run m.gguf -p a -n 1 --json-schema-file /dev/zero",
        "template --file /dev/zero -i messages.json"}) {
    expect_refused(arguments, "/dev/zero: more than ");
  }
  for (const char* arguments :
       {"chat -m m.gguf -p a -sysf /dev/zero", "chat -m m.gguf -p a --chat-template /dev/zero"}) {
    expect_refused(arguments, "/dev/zero: not a regular file: found a device");
  }
  const test::Outcome config = test::shell("env TANDEM_CONFIG=/dev/zero timeout 100", "run m.gguf -p a 2>&1");
  EXPECT_EQ(config.exit_code, 3) << config.out;
  EXPECT_THAT(config.out, HasSubstr("/dev/zero: more than "));
}

// These read files of a fixed layout, never a device.
TEST_F(EndlessInput, IsNoModelOrMatrix) {
  for (const char* arguments :
       {"run -m /dev/zero -p a", "inspect /dev/zero", "quantize --imatrix /dev/zero m.gguf out Q4_0",
        "imatrix --in-file /dev/zero -o out",
        "perplexity -m m.gguf --kl-divergence-base /dev/zero --kl-divergence"}) {
    const test::Outcome o =
        test::shell("cd '" + path("") + "' && timeout 100", std::string(arguments) + " 2>&1");
    EXPECT_THAT(o.exit_code, testing::AnyOf(2, 3, 5)) << arguments << ": " << o.out;
    EXPECT_THAT(o.out, HasSubstr("/dev/zero")) << arguments;
  }
}

}  // namespace
}  // namespace tandem
