#include "gguf/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>

#include "base/error.h"
#include "gguf/quants.h"
#include "gguf/writer.h"
#include "support/gguf_bytes.h"
#include "support/paths.h"
#include "support/text_files.h"

namespace tandem {
namespace {

using test::file_bytes;
using testing::ElementsAre;

std::string text_of(const TensorInfo& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.n_bytes)};
}

void expect_small_file(const GgufFile& file) {
  const Metadata& m = file.metadata();
  EXPECT_EQ(m.entries().size(), 16u);
  EXPECT_EQ(m.get<std::string_view>("general.architecture"), "llama");
  EXPECT_EQ(m.get<uint8_t>("a.u8"), 200);
  EXPECT_EQ(m.get<int8_t>("a.i8"), -100);
  EXPECT_EQ(m.get<uint16_t>("a.u16"), 60000);
  EXPECT_EQ(m.get<int16_t>("a.i16"), -30000);
  EXPECT_EQ(m.get<uint32_t>("a.u32"), 4000000000u);
  EXPECT_EQ(m.get<int32_t>("a.i32"), -2000000000);
  EXPECT_EQ(m.get<float>("a.f32"), 1.5f);
  EXPECT_EQ(m.get<bool>("a.bool"), true);
  EXPECT_EQ(m.get<uint64_t>("a.u64"), uint64_t{1} << 63);
  EXPECT_EQ(m.get<int64_t>("a.i64"), -5);
  EXPECT_EQ(m.get<double>("a.f64"), 0.1);
  EXPECT_THAT(m.get_strings("a.strings"), ElementsAre("one", "", "three"));
  EXPECT_THAT(m.get_vector<float>("a.floats"), ElementsAre(0.5f, -2.0f));
  EXPECT_TRUE(m.get_array<bool>("a.bools")[0]);
  EXPECT_FALSE(m.get_array<bool>("a.bools")[1]);
  EXPECT_TRUE(m.get_array<int32_t>("a.empty").empty());

  ASSERT_EQ(file.tensors().size(), 2u);
  const TensorInfo& first = file.tensors()[0];
  EXPECT_EQ(first.name, "first");
  EXPECT_EQ(first.dtype, DType::F32);
  EXPECT_THAT(first.dims, ElementsAre(4, 3, 1, 1));
  EXPECT_EQ(first.n_dims, 2);
  EXPECT_EQ(first.n_bytes, 48u);
  EXPECT_EQ(first.n_elements(), 12);
  EXPECT_EQ(first.shape_text(), "[4, 3]");
  const std::string data = test::small_gguf().data;
  EXPECT_EQ(text_of(first), data.substr(0, 48));
  EXPECT_EQ(text_of(file.tensor("second")), data.substr(64, 36));
  EXPECT_EQ(file.find_tensor("third"), nullptr);
  EXPECT_THROW(file.tensor("third"), Error);
  EXPECT_EQ(file.n_tensor_bytes(), 84u);
}

TEST(GgufFile, OpensInEveryWay) {
  const test::TempDir directory;
  const std::string path = directory.path("small.gguf"), bytes = test::small_gguf().bytes();
  test::write_file(path, bytes);
  expect_small_file(GgufFile(path));
  expect_small_file(GgufFile(path, {.mmap = false}));
  expect_small_file(GgufFile(path, {.mlock = true}));
  expect_small_file(GgufFile(path, {.numa = true}));
  expect_small_file(GgufFile(path, {.metadata_only = true}));
  expect_small_file(GgufFile(test::as_bytes(bytes), "memory"));
  EXPECT_EQ(GgufFile(path).path(), path);
  EXPECT_EQ(GgufFile(path).n_file_bytes(), bytes.size());
}

TEST(GgufFile, MovingKeepsEverything) {
  const test::TempDir directory;
  const std::string path = directory.path("small.gguf");
  test::write_file(path, test::small_gguf().bytes());
  GgufFile first(path);
  GgufFile second(std::move(first));
  expect_small_file(second);
  GgufFile third(path);
  third = std::move(second);
  expect_small_file(third);
}

TEST(GgufFile, AlignmentOfTheFileIsUsed) {
  test::RawGguf raw;
  raw.alignment = 128;
  raw.pairs = {test::kv_u32("general.alignment", 128)};
  raw.tensors = {test::tensor_info("t", {2}, 0, 128)};
  raw.data = std::string(128, 'x') + "12345678";
  const std::string bytes = raw.bytes();
  const GgufFile file(test::as_bytes(bytes), "memory");
  EXPECT_EQ(file.alignment(), 128u);
  EXPECT_EQ(text_of(file.tensor("t")), "12345678");
}

TEST(GgufFile, UnsupportedDtypesLoadAndAreRejectedByName) {
  test::RawGguf raw;
  raw.tensors = {test::tensor_info("q", {256}, 9, 0), test::tensor_info("f", {1}, 0, 288)};
  raw.data.resize(292);
  const std::string bytes = raw.bytes();
  const GgufFile file(test::as_bytes(bytes), "m.gguf");
  EXPECT_NO_THROW(file.require_readable(file.tensor("f")));
  try {
    file.require_readable(file.tensor("q"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "m.gguf: tensor q is Q8_1, which this program cannot compute with");
  }
}

TEST(GgufFile, SplitPartsBecomeOneModel) {
  const test::TempDir directory;
  for (uint16_t i = 0; i < 3; ++i) {
    test::RawGguf raw;
    raw.pairs = {test::kv_u16("split.no", i), test::kv_u16("split.count", 3),
                 test::kv_i32("split.tensors.count", 3)};
    if (i == 0) raw.pairs.push_back(test::kv_string("general.architecture", "llama"));
    raw.tensors = {test::tensor_info("t" + std::to_string(i), {1}, 0, 0)};
    raw.data = "abc" + std::to_string(i);
    test::write_file(directory.path("m-0000" + std::to_string(i + 1) + "-of-00003.gguf"), raw.bytes());
  }
  const std::string first = directory.path("m-00001-of-00003.gguf");
  for (const bool mmap : {true, false}) {
    GgufFile opened(first, {.mmap = mmap});
    const GgufFile file(std::move(opened));
    EXPECT_EQ(file.n_parts(), 3u);
    EXPECT_EQ(file.metadata().get<std::string>("general.architecture"), "llama");
    ASSERT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(text_of(file.tensor("t0")), "abc0");
    EXPECT_EQ(text_of(file.tensor("t2")), "abc2");
    EXPECT_EQ(file.tensor("t2").part, 2);
    EXPECT_EQ(file.part_path(2), directory.path("m-00003-of-00003.gguf"));
  }
  EXPECT_EQ(GgufFile(first, {.metadata_only = true}).tensors().size(), 1u);
}

TEST(GgufFile, ReadsAModelOfAnotherProgram) {
  const GgufFile file(
      (test::test_data("golden") / "gguf_package.gguf").string());  // scripts/reference_gguf.py
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.alignment(), 64u);
  const Metadata& m = file.metadata();
  EXPECT_EQ(m.get<std::string>("general.architecture"), "llama");
  EXPECT_EQ(m.get<std::string>("general.name"), "w\xc3\xb6rter");
  EXPECT_EQ(m.get<uint8_t>("a.u8"), 200);
  EXPECT_EQ(m.get<int8_t>("a.i8"), -100);
  EXPECT_EQ(m.get<uint16_t>("a.u16"), 60000);
  EXPECT_EQ(m.get<int16_t>("a.i16"), -30000);
  EXPECT_EQ(m.get<uint32_t>("a.u32"), 4000000000u);
  EXPECT_EQ(m.get<int32_t>("a.i32"), -2000000000);
  EXPECT_EQ(m.get<uint64_t>("a.u64"), uint64_t{1} << 63);
  EXPECT_EQ(m.get<int64_t>("a.i64"), INT64_MIN);
  EXPECT_EQ(m.get<float>("a.f32"), 1.5f);
  EXPECT_EQ(m.get<double>("a.f64"), -0.1);
  EXPECT_TRUE(m.get<bool>("a.bool"));
  EXPECT_THAT(m.get_vector<int32_t>("a.ints"), testing::ElementsAre(1, -2, 3));
  EXPECT_EQ(m.get_strings("tokenizer.ggml.tokens").size(), 3u);
  ASSERT_EQ(file.tensors().size(), 4u);
  // The package quantizes them itself; value i of a tensor is (i mod 7 - 3) / 4.
  const std::pair<const char*, DType> tensors[] = {
      {"t.f32", DType::F32}, {"t.f16", DType::F16}, {"t.bf16", DType::BF16}, {"t.q8_0", DType::Q8_0}};
  for (const auto& [name, dtype] : tensors) {
    const TensorInfo& t = file.tensor(name);
    EXPECT_EQ(t.dtype, dtype) << name;
    EXPECT_EQ(t.shape_text(), "[64, 3]") << name;
    std::vector<float> values(static_cast<size_t>(t.n_elements()));
    for (int64_t row = 0; row < 3; ++row) {
      dequantize_row(dtype, t.data + static_cast<size_t>(row) * row_bytes(dtype, 64),
                     values.data() + row * 64, 64);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], (static_cast<float>(i % 7) - 3) / 4, 0.004) << name << " " << i;
    }
  }
}

// ---- writer

size_t n_files(const test::TempDir& directory) {
  const std::filesystem::directory_iterator files(directory.path(""));
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

// Writes the model in `source`, tensor data in pieces of `piece` bytes.
void copy_model(const GgufFile& source, const std::string& path, size_t piece) {
  GgufWriter writer(path, source.alignment());
  for (const Metadata::Entry& entry : source.metadata().entries())
    writer.metadata().set(entry.key, entry.value);
  for (const TensorInfo& t : source.tensors()) {
    writer.add_tensor(t.name, t.dtype, std::span(t.dims, static_cast<size_t>(t.n_dims)));
  }
  EXPECT_EQ(writer.n_tensor_bytes(), source.n_tensor_bytes());
  for (const TensorInfo& t : source.tensors()) {
    writer.begin_tensor(t.name);
    const std::span bytes(t.data, t.n_bytes);
    for (size_t at = 0; at < bytes.size(); at += piece) {
      writer.append(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    }
  }
  writer.finish();
}

TEST(GgufWriter, WritesWhatTheReaderReads) {
  const test::TempDir directory;
  const std::string bytes = test::small_gguf().bytes(), path = directory.path("copy.gguf");
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{1000}}) {
    copy_model(GgufFile(test::as_bytes(bytes), "memory"), path, piece);
    expect_small_file(GgufFile(path));
    const std::string header = test::small_gguf().header();
    EXPECT_EQ(file_bytes(path).substr(0, header.size()), header);  // byte for byte
  }
  EXPECT_EQ(n_files(directory), 1u);
}

TEST(GgufWriter, LargerThanItsBufferAndAnotherAlignment) {
  const test::TempDir directory;
  const std::string path = directory.path("large.gguf");
  std::vector<std::byte> data(3 << 20);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  {
    GgufWriter writer(path, 4096);
    writer.add_tensor("a", DType::I8, std::vector<int64_t>{5});
    writer.add_tensor("b", DType::I8, std::vector<int64_t>{3 << 10, 1 << 10});
    writer.write_tensor("a", std::span(data).first(5));
    writer.write_tensor("b", data);
    writer.finish();
  }
  const GgufFile file(path);
  EXPECT_EQ(file.alignment(), 4096u);
  EXPECT_EQ(file.tensor("b").offset % 4096, 0u);
  EXPECT_EQ(std::memcmp(file.tensor("b").data, data.data(), data.size()), 0);
}

TEST(GgufWriter, NoTensorsIsAFileOfMetadata) {
  const test::TempDir directory;
  const std::string path = directory.path("vocab.gguf");
  GgufWriter writer(path);
  writer.metadata().set("key", Value("value"));
  writer.finish();
  const GgufFile file(path);
  EXPECT_EQ(file.metadata().get<std::string>("key"), "value");
  EXPECT_TRUE(file.tensors().empty());
}

TEST(GgufWriter, LeavesNothingBehindWhenNotFinished) {
  const test::TempDir directory;
  const std::string path = directory.path("model.gguf");
  test::write_file(path, "what was there before");
  {
    GgufWriter writer(path);
    writer.add_tensor("a", DType::F32, std::vector<int64_t>{4});
    writer.begin_tensor("a");
    EXPECT_LE(n_files(directory), 2u);  // the temporary file may be unnamed
    EXPECT_EQ(file_bytes(path), "what was there before");
  }
  EXPECT_EQ(n_files(directory), 1u);
  EXPECT_EQ(file_bytes(path), "what was there before");
}

TEST(GgufWriter, RefusesWhatItCannotWrite) {
  const test::TempDir directory;
  EXPECT_THROW(GgufWriter(directory.path("no/such/folder.gguf")), Error);
  EXPECT_THROW(GgufWriter("/dev/null"), Error);
  EXPECT_THROW(GgufWriter(directory.path("")), Error);
  EXPECT_EQ(n_files(directory), 0u);
}

}  // namespace
}  // namespace tandem
