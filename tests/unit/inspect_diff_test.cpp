// tandem inspect --diff: the comparison of two files as text, as JSON and as exit code.
#include "tools/inspect/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;

class Diff : public testing::Test {
 protected:
  void SetUp() override {
    model.write(a);
    model.write(b);
  }
  FileDifference compared() {
    model.write(b);
    files = {std::make_unique<GgufFile>(a), std::make_unique<GgufFile>(b)};
    return compare(*files.first, *files.second);
  }
  float* values(const std::string& name) {
    return reinterpret_cast<float*>(model.tensors.at(name).data.data());
  }

  test::TempDir directory;
  std::string a = directory.path("a.gguf"), b = directory.path("b.gguf");
  test::TinyModel model = test::tiny_llama();
  std::pair<std::unique_ptr<GgufFile>, std::unique_ptr<GgufFile>> files;
};

TEST_F(Diff, SameFiles) {
  const FileDifference d = compared();
  EXPECT_TRUE(d.none());
  EXPECT_EQ(d.n_same_tensors, model.tensors.size());
  EXPECT_EQ(d.n_same_metadata, files.first->metadata().entries().size());
}

TEST_F(Diff, Metadata) {
  model.metadata.set("general.name", Value("other"));
  model.metadata.set("only.b", Value(uint32_t{7}));
  model.metadata.remove("llama.block_count");
  model.metadata.set("llama.context_length", Value(int32_t{5}));  // another type too
  const FileDifference d = compared();
  EXPECT_TRUE(d.tensors.empty());
  std::map<std::string_view, std::pair<bool, bool>> found;
  for (const MetadataDifference& m : d.metadata) found[m.key] = {m.a != nullptr, m.b != nullptr};
  EXPECT_EQ(found["only.b"], std::pair(false, true));
  EXPECT_EQ(found["llama.block_count"], std::pair(true, false));
  EXPECT_EQ(found["llama.context_length"], std::pair(true, true));
  EXPECT_TRUE(found.contains("general.name"));
  EXPECT_EQ(d.metadata.size(), 4u);
}

TEST_F(Diff, TensorValues) {
  values("blk.0.attn_q.weight")[5] += 0.5f;
  values("blk.0.attn_q.weight")[6] -= 0.25f;
  const FileDifference d = compared();
  ASSERT_EQ(d.tensors.size(), 1u);
  EXPECT_TRUE(d.metadata.empty());
  const TensorDifference& t = d.tensors[0];
  EXPECT_EQ(t.a->name, "blk.0.attn_q.weight");
  EXPECT_TRUE(t.compared);
  EXPECT_EQ(t.n_different, 2);
  EXPECT_NEAR(t.max_abs, 0.5, 1e-6);
  EXPECT_NEAR(t.rms, std::sqrt((0.25 + 0.0625) / (64 * 64)), 1e-7);
  EXPECT_GT(t.rms_of_a, 0);
  values("blk.0.attn_q.weight")[7] = NAN;
  EXPECT_EQ(compared().tensors[0].max_abs, std::numeric_limits<double>::infinity());
}

TEST_F(Diff, ShapesDtypesAndAbsence) {
  model.add("blk.0.attn_q.weight", DType::F16, {64, 64}, 99);
  model.add("blk.0.attn_k.weight", DType::F32, {64, 16}, 99);
  model.tensors.erase("blk.1.attn_v.weight");
  model.add("new", DType::Q8_0, {32, 2}, 1);
  const FileDifference d = compared();
  ASSERT_EQ(d.tensors.size(), 4u);
  std::map<std::string_view, TensorDifference> found;
  for (const TensorDifference& t : d.tensors) found[(t.a ? t.a : t.b)->name] = t;
  EXPECT_TRUE(found["blk.0.attn_q.weight"].compared);
  EXPECT_FALSE(found["blk.0.attn_k.weight"].compared);
  EXPECT_EQ(found["blk.1.attn_v.weight"].b, nullptr);
  EXPECT_EQ(found["new"].a, nullptr);
  const std::string page = difference_page(d, a, b);
  EXPECT_THAT(page, HasSubstr("F32 [64, 64] -> F16 [64, 64]"));
  EXPECT_THAT(page, HasSubstr("only in A  blk.1.attn_v.weight"));
  EXPECT_THAT(page, HasSubstr("only in B  new"));
}

TEST_F(Diff, Command) {
  TANDEM_NEED_BINARY();
  const std::string both = " '" + a + "' '" + b + "' 2>&1";
  EXPECT_EQ(test::shell("", "inspect --diff" + both).exit_code, 0);
  EXPECT_EQ(test::shell("", "inspect" + both).exit_code, 2);
  EXPECT_EQ(test::shell("", "inspect --diff '" + a + "' 2>&1").exit_code, 2);
  values("output.weight")[0] += 1;
  model.write(b);
  const test::Outcome page = test::shell("", "inspect --diff" + both);
  EXPECT_EQ(page.exit_code, 1);
  EXPECT_THAT(page.out, HasSubstr("output.weight  F32 [64, 300]  1 of 19200 values differ, max 1"));
  const test::Outcome json = test::shell("", "inspect --json --diff" + both);
  EXPECT_EQ(json.exit_code, 1);
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_EQ(parsed["same"], false);
  EXPECT_EQ(parsed["tensors"][0]["name"], "output.weight");
  EXPECT_EQ(parsed["tensors"][0]["n_different"], 1);
  // Splitting a model into several files makes no difference.
  model.write(a);
  ASSERT_EQ(
      test::shell("", "split '" + a + "' '" + directory.path("s") + "' --split-max-tensors 9 2>&1").exit_code,
      0);
  const std::string parts = directory.path("s-00001-of-00003.gguf");
  EXPECT_EQ(test::shell("", "inspect --diff '" + a + "' '" + parts + "' 2>&1").exit_code, 0);
}

}  // namespace
}  // namespace tandem::tools
