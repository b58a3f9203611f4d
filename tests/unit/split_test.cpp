// Models in several files: distribution of tensors, names, metadata; split and merge as processes.
#include "tools/split/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "gguf/parse.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/text_files.h"
#include "support/tiny_model.h"

namespace tandem::tools {
namespace {

using test::file_bytes;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(PlanSplit, ByTensors) {
  const std::vector<uint64_t> sizes(5, 100);
  EXPECT_THAT(assign_parts(sizes, {}), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(assign_parts(sizes, {.max_tensors = 2}), ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(assign_parts(sizes, {.max_tensors = 5}), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(assign_parts(sizes, {.max_tensors = 2, .first_without_tensors = true}),
              ElementsAre(1, 1, 2, 2, 3));
  EXPECT_TRUE(assign_parts({}, {.max_tensors = 2, .first_without_tensors = true}).empty());
}

TEST(PlanSplit, BySize) {
  const std::vector<uint64_t> sizes{60, 40, 1, 200, 99, 1, 1};
  EXPECT_THAT(assign_parts(sizes, {.max_bytes = 100}), ElementsAre(0, 0, 1, 2, 3, 3, 4));
  EXPECT_THAT(assign_parts(sizes, {.max_bytes = 1}), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(assign_parts(sizes, {.max_bytes = UINT64_MAX}), ElementsAre(0, 0, 0, 0, 0, 0, 0));
}

TEST(SplitNames, CountFromOne) {
  EXPECT_EQ(split_path("a/model.gguf", 1, 12), "a/model-00002-of-00012.gguf");
  EXPECT_EQ(split_path("model", 0, 1), "model-00001-of-00001.gguf");
}

TEST(SplitSize, IsInPowersOfAThousand) {
  EXPECT_EQ(parse_split_size("--split-max-size", "4G"), 4'000'000'000u);
  EXPECT_EQ(parse_split_size("--split-max-size", "500M"), 500'000'000u);
  for (const char* wrong : {"", "G", "4", "0M", "-1G", "4K", "4.5G", "99999999999999999999G"}) {
    EXPECT_THROW(parse_split_size("--split-max-size", wrong), Error) << wrong;
  }
}

class Split : public testing::Test {
 protected:
  void SetUp() override {
    in = directory.path("in.gguf");
    test::tiny_llama().write(in);
  }
  test::Outcome run(const std::string& arguments) {
    return test::shell("cd '" + directory.path("") + "' &&", arguments + " 2>&1");
  }
  test::TempDir directory;
  std::string in;
};

TEST_F(Split, PartsOpenAsOneAndMergeToTheSameBytes) {
  const GgufFile whole(in);
  for (const SplitLimits& limits : {SplitLimits{.max_tensors = 5}, SplitLimits{.max_bytes = 50'000},
                                    SplitLimits{.max_tensors = 7, .first_without_tensors = true}}) {
    const std::string out = directory.path("out.gguf");
    const std::vector<SplitPart> parts = list_parts(whole, limits, out);
    ASSERT_GT(parts.size(), 1u);
    write_parts(whole, limits, out);
    const GgufFile split(parts.front().path);
    EXPECT_EQ(split.n_parts(), parts.size());
    ASSERT_EQ(split.tensors().size(), whole.tensors().size());
    EXPECT_EQ(split.metadata().get<int32_t>("split.tensors.count"),
              static_cast<int32_t>(whole.tensors().size()));
    for (size_t i = 0; i < parts.size(); ++i) {
      const MappedFile mapped = MappedFile::open(parts[i].path, {});
      const ParsedGguf part = parse_gguf(mapped.bytes(), parts[i].path);
      EXPECT_EQ(part.tensors.size(), parts[i].n_tensors);
      EXPECT_EQ(part.metadata.get<uint16_t>("split.no"), i);
      EXPECT_EQ(part.metadata.has("general.architecture"), i == 0);
      if (limits.max_bytes > 0) {
        EXPECT_TRUE(parts[i].n_bytes <= limits.max_bytes || parts[i].n_tensors == 1);
      }
    }
    write_parts(split, {}, directory.path("merged.gguf"));
    EXPECT_TRUE(file_bytes(directory.path("merged.gguf")) == file_bytes(in));
  }
}

TEST_F(Split, NeverOverwritesItsInput) {
  const GgufFile file(in);
  EXPECT_THROW(write_parts(file, {}, in), Error);
  std::filesystem::create_symlink(in, directory.path("link.gguf"));
  std::filesystem::create_hard_link(in, directory.path("hard.gguf"));
  EXPECT_THROW(write_parts(file, {}, directory.path("link.gguf")), Error);
  EXPECT_THROW(write_parts(file, {}, directory.path("hard.gguf")), Error);
  write_parts(file, {.max_tensors = 8}, directory.path("part"));
  const GgufFile split(split_path(directory.path("part"), 0, 3));
  EXPECT_THROW(write_parts(split, {}, split_path(directory.path("part"), 2, 3)), Error);
}

TEST_F(Split, RunsAsCommands) {
  TANDEM_NEED_BINARY();
  const test::Outcome dry = run("split in.gguf a.gguf --split-max-tensors 10 --dry-run");
  EXPECT_EQ(dry.exit_code, 0) << dry.out;
  EXPECT_THAT(dry.out, HasSubstr("a-00001-of-00003.gguf: 10 tensors"));
  EXPECT_FALSE(std::filesystem::exists(directory.path("a-00001-of-00003.gguf")));
  EXPECT_EQ(run("split in.gguf a --split-max-tensors 10 --no-tensor-first-split").exit_code, 0);
  EXPECT_EQ(run("merge a-00001-of-00004.gguf b.gguf").exit_code, 0);
  EXPECT_TRUE(file_bytes(directory.path("b.gguf")) == file_bytes(in));
  EXPECT_EQ(run("merge a-00002-of-00004.gguf b.gguf").exit_code, 3);
  EXPECT_EQ(run("split in.gguf a --split-max-tensors 10 --split-max-size 1M").exit_code, 2);
  std::filesystem::remove(directory.path("a-00003-of-00004.gguf"));
  EXPECT_EQ(run("split in.gguf one").exit_code, 0) << "it has fewer tensors than a part may have";
  EXPECT_TRUE(std::filesystem::exists(directory.path("one-00001-of-00001.gguf")));
  EXPECT_EQ(run("merge one-00001-of-00001.gguf one.gguf").exit_code, 0);
  EXPECT_TRUE(file_bytes(directory.path("one.gguf")) == file_bytes(in));
  const test::Outcome missing = run("merge a-00001-of-00004.gguf c.gguf");
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_THAT(missing.out, HasSubstr("a-00003-of-00004.gguf"));
  EXPECT_FALSE(std::filesystem::exists(directory.path("c.gguf")));
}

TEST_F(Split, SaysWhenAPartIsLargerThanAskedFor) {
  TANDEM_NEED_BINARY();
  test::TinyModel model = test::tiny_llama();
  model.add("large.weight", DType::F32, {600, 600}, 1);
  model.write(in);
  const test::Outcome o = run("split in.gguf a --split-max-size 1M --dry-run");
  EXPECT_EQ(o.exit_code, 0) << o.out;
  EXPECT_THAT(o.out, HasSubstr("more than --split-max-size 1M: a tensor is never divided"));
  EXPECT_THAT(o.out, HasSubstr(": 1 tensor, "));
  EXPECT_THAT(run("split in.gguf a --split-max-size 2M --dry-run").out,
              testing::Not(HasSubstr("never divided")));
}

TEST_F(Split, QuantizeKeepsTheParts) {
  TANDEM_NEED_BINARY();
  ASSERT_EQ(run("split in.gguf a --split-max-tensors 10").exit_code, 0);
  ASSERT_EQ(run("quantize --keep-split a-00001-of-00003.gguf q.gguf Q8_0 2").exit_code, 0);
  ASSERT_EQ(run("quantize a-00001-of-00003.gguf q.gguf Q8_0 2").exit_code, 0);
  const GgufFile parts(directory.path("q-00001-of-00003.gguf")), whole(directory.path("q.gguf"));
  EXPECT_EQ(parts.n_parts(), 3u);
  ASSERT_EQ(parts.tensors().size(), whole.tensors().size());
  for (const TensorInfo& tensor : whole.tensors()) {
    const TensorInfo& same = parts.tensor(tensor.name);
    ASSERT_EQ(same.n_bytes, tensor.n_bytes);
    EXPECT_EQ(std::memcmp(same.data, tensor.data, tensor.n_bytes), 0);
  }
  EXPECT_FALSE(whole.metadata().has("split.count"));
}

}  // namespace
}  // namespace tandem::tools
