// Commands that write a file, as processes: what they may replace is a file of the same kind or an empty one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "gguf/writer.h"
#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "support/process.h"
#include "support/text_files.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using test::file_bytes;
using test::Outcome;
using testing::HasSubstr;

struct WritingCommand {
  const char* arguments;  // they write `output`
  const char* output;
  const char* kind;  // what an existing file must be
};

constexpr const char* kModel = "a GGUF model";
constexpr const char* kImatrix = "an importance matrix";
constexpr const char* kLogits = "a file of saved logits";

constexpr WritingCommand kCommands[] = {
    {"quantize m.gguf out Q8_0 2", "out", kModel},
    {"quantize --keep-split part-00001-of-00002.gguf out Q8_0 2", "out-00002-of-00002.gguf", kModel},
    {"merge part-00001-of-00002.gguf out", "out", kModel},
    {"split m.gguf out --split-max-tensors 12", "out-00001-of-00002.gguf", kModel},
    {"split m.gguf out --split-max-tensors 12", "out-00002-of-00002.gguf", kModel},
    {"convert hf -o out", "out", kModel},
    {"convert hf --vocab-only -o out", "out", kModel},
    {"imatrix -m m.gguf -f t.txt -c 64 --chunks 1 -o out", "out", kImatrix},
    {"imatrix -m m.gguf -f t.txt -c 64 --chunks 2 --save-frequency 1 -o out", "out.at_2", kImatrix},
    {"imatrix --in-file i.gguf -o out", "out", kImatrix},
    {"perplexity -m m.gguf -f t.txt -c 64 --chunks 2 --kl-divergence-base out", "out", kLogits},
};
constexpr WritingCommand kSynth = {"synth tinyllama-1.1b --layers 1 --type Q4_0 -o out", "out", kModel};

struct ExistingFile {
  const char* name;
  const char* kind;
};

constexpr ExistingFile kFiles[] = {
    {"empty", nullptr},  // every command may replace it
    {"m.gguf", kModel},
    {"part-00001-of-00002.gguf", kModel},
    {"part-00002-of-00002.gguf", kModel},
    {"i.gguf", kImatrix},
    {"i.dat", kImatrix},
    {"base", kLogits},
    {"t.txt", "a text"},
    {"talk", "a session"},
    {"adapter.gguf", "an adapter"},
    {"cut.gguf", "the start of a model"},
    {"data", "something else"},
};

class Overwrite : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::tiny_llama({.n_embd = 256, .n_ff = 512, .dtype = DType::F16}).write(path("m.gguf"));
    std::string text;
    for (int i = 0; i < 60; ++i) text += "some words of no meaning, line " + std::to_string(i) + "\n";
    test::write_file(path("t.txt"), text);
    test::write_file(path("empty"), "");
    test::write_file(path("data"), std::string("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", 16));
    test::write_file(path("cut.gguf"), file_bytes(path("m.gguf")).substr(0, 10000));
    test::ByteString dat;
    dat.u32(1).u32(1).raw("b").u32(0).u32(1).number(3.0f).u32(9).u32(4).raw("text");
    test::write_file(path("i.dat"), dat.bytes());
    write_adapter(path("adapter.gguf"));
    test::family_folder(test::load_family("llama")).write(path("hf"));
    for (const char* arguments :
         {"split m.gguf part --split-max-tensors 12", "run m.gguf -p 'a b' -n 1 --prompt-cache talk",
          "imatrix -m m.gguf -f t.txt -c 64 --chunks 1 -o i.gguf",
          "perplexity -m m.gguf -f t.txt -c 64 --chunks 2 --kl-divergence-base base"}) {
      const Outcome made = tandem(arguments);
      ASSERT_EQ(made.exit_code, 0) << arguments << ": " << made.out;
    }
    ASSERT_TRUE(std::filesystem::exists(path("part-00002-of-00002.gguf")));
  }

  static void write_adapter(const std::string& path) {
    GgufWriter writer(path);
    writer.metadata().set("general.architecture", Value("llama"));
    writer.metadata().set("general.type", Value("adapter"));
    writer.finish();
  }

  std::string path(const std::string& name) const { return directory_.path(name); }
  Outcome tandem(const std::string& arguments) const {
    return test::shell("cd '" + path("") + "' &&", arguments + " 2>&1");
  }

  void expect_kept_or_replaced(const WritingCommand& command, const ExistingFile& file) {
    SCOPED_TRACE(std::string(command.arguments) + ", where " + command.output + " is a copy of " + file.name);
    for (const auto& entry : std::filesystem::directory_iterator(path(""))) {
      if (entry.path().filename().string().starts_with("out")) std::filesystem::remove(entry.path());
    }
    const std::string output = path(command.output), before = file_bytes(path(file.name));
    std::filesystem::copy_file(path(file.name), output);
    const Outcome got = tandem(command.arguments);
    if (file.kind == nullptr || file.kind == std::string(command.kind)) {
      EXPECT_EQ(got.exit_code, 0) << got.out;
      EXPECT_NE(file_bytes(output), "");
      return;
    }
    EXPECT_EQ(got.exit_code, 2) << got.out;
    EXPECT_THAT(got.out, HasSubstr("tandem: error: " + std::string(command.output) + ": exists and is not " +
                                   command.kind + "; write to another file"));
    EXPECT_EQ(std::count(got.out.begin(), got.out.end(), '\n'), 1) << got.out;  // and nothing else
    EXPECT_TRUE(file_bytes(output) == before);
  }

  test::TempDir directory_;
};

TEST_F(Overwrite, OnlyAFileOfTheSameKindIsReplaced) {
  for (const WritingCommand& command : kCommands) {
    for (const ExistingFile& file : kFiles) expect_kept_or_replaced(command, file);
  }
  for (const ExistingFile& file : kFiles) {
    if (file.kind != kModel) expect_kept_or_replaced(kSynth, file);
  }
}

}  // namespace
}  // namespace tandem
