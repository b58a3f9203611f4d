// Models copied into the memory of several NUMA nodes: the same model, each node's rows in ranges of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "gguf/node_ranges.h"
#include "gguf/writer.h"
#include "support/gguf_bytes.h"

namespace tandem {
namespace {

// The second node need not exist: the system then places its pages as it likes.
NodeShares two_nodes() {
  return NodeShares({{numa_nodes()[0].id, {0, 1, 2}}, {63, {3}}});
}

std::string random_words(size_t n, std::mt19937& rng) {
  std::string bytes(n, '\0');
  for (size_t i = 0; i + 4 <= n; i += 4) {
    const auto word = static_cast<uint32_t>(rng());
    memcpy(bytes.data() + i, &word, 4);
  }
  return bytes;
}

// A matrix of 40 MB, which several threads read, experts, and small tensors.
test::RawGguf large_model(std::mt19937& rng) {
  test::RawGguf raw;
  raw.pairs = {test::kv_string("general.architecture", "llama")};
  raw.tensors = {test::tensor_info("matrix", {1000, 10007}, 0, 0),
                 test::tensor_info("experts", {512, 64, 8}, 0, 40028032)};
  raw.data = random_words(40028032 + 512 * 64 * 8 * 4, rng);
  return raw;
}

void expect_equal(const GgufFile& a, const GgufFile& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    const TensorInfo &x = a.tensors()[i], &y = b.tensors()[i];
    EXPECT_EQ(x.name, y.name);
    ASSERT_EQ(x.n_bytes, y.n_bytes);
    EXPECT_EQ(memcmp(x.data, y.data, x.n_bytes), 0) << x.name;
  }
}

TEST(NodeCopy, HasTheBytesOfTheFile) {
  std::mt19937 rng(std::random_device{}());
  const test::TempDir folder;
  const std::string path = folder.path("m.gguf");
  test::write_file(path, large_model(rng).bytes());
  const GgufFile mapped(path);
  EXPECT_TRUE(mapped.is_mapped());
  const GgufFile copy(path, {.nodes = two_nodes()});
  EXPECT_FALSE(copy.is_mapped());
  EXPECT_EQ(copy.metadata().get<std::string>("general.architecture"), "llama");
  expect_equal(mapped, copy);
  expect_equal(mapped, GgufFile(path, {.mmap = false}));
  // A file that is larger stays mapped, unless it is to be read into memory anyway.
  const uint64_t less = mapped.n_file_bytes() - 1;
  EXPECT_TRUE(GgufFile(path, {.nodes = two_nodes(), .node_copy_limit = less}).is_mapped());
  EXPECT_FALSE(GgufFile(path, {.mmap = false, .nodes = two_nodes(), .node_copy_limit = less}).is_mapped());
  EXPECT_TRUE(GgufFile(path, {.metadata_only = true, .nodes = two_nodes()}).is_mapped());
  EXPECT_TRUE(GgufFile(path, {.nodes = NodeShares(numa_nodes())}).is_mapped() || numa_nodes().size() > 1);
}

TEST(NodeCopy, HasAllPartsOfASplitModel) {
  std::mt19937 rng(std::random_device{}());
  const test::TempDir folder;
  for (uint16_t i = 0; i < 2; ++i) {
    test::RawGguf raw;
    raw.pairs = {test::kv_u16("split.no", i), test::kv_u16("split.count", 2),
                 test::kv_i32("split.tensors.count", 2)};
    raw.tensors = {test::tensor_info("t" + std::to_string(i), {256, 300}, 0, 0)};
    raw.data = random_words(256 * 300 * 4, rng);
    test::write_file(folder.path("m-0000" + std::to_string(i + 1) + "-of-00002.gguf"), raw.bytes());
  }
  const std::string first = folder.path("m-00001-of-00002.gguf");
  const GgufFile copy(first, {.nodes = two_nodes()});
  EXPECT_EQ(copy.n_parts(), 2u);
  EXPECT_EQ(copy.path(), first);
  EXPECT_EQ(copy.tensor("t1").part, 1);
  expect_equal(GgufFile(first), copy);
}

TEST(NodeCopy, RangesAreTheRowsOfEachNode) {
  std::mt19937 rng(std::random_device{}());
  const std::string bytes = large_model(rng).bytes();
  const GgufFile file(test::as_bytes(bytes), "memory");
  const TensorInfo& matrix = file.tensor("matrix");
  const std::vector<NodeRange> ranges = node_ranges(file.tensors(), 0, two_nodes());
  ASSERT_EQ(ranges.size(), 2u) << "experts are interleaved";
  EXPECT_EQ(ranges[0].offset, matrix.offset);
  EXPECT_EQ(ranges[0].n_bytes, 7505u * 4000) << "three quarters of 10007 rows";
  EXPECT_EQ(ranges[1].offset, matrix.offset + ranges[0].n_bytes);
  EXPECT_EQ(ranges[0].n_bytes + ranges[1].n_bytes, matrix.n_bytes);
  EXPECT_EQ(ranges[1].node_id, 63);
  EXPECT_TRUE(node_ranges(file.tensors(), 1, two_nodes()).empty()) << "another part";
}

TEST(NodeCopy, DamagedFilesAreReportedAsWhenMapped) {
  std::mt19937 rng(std::random_device{}());
  const test::TempDir folder;
  const std::string path = folder.path("m.gguf"), bytes = large_model(rng).bytes();
  test::write_file(path, bytes.substr(0, bytes.size() - 5000));
  const auto refusal = [&](const OpenOptions& options) -> std::string {
    try {
      GgufFile file(path, options);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_NE(refusal({}), "");
  EXPECT_EQ(refusal({.nodes = two_nodes()}), refusal({}));
}

}  // namespace
}  // namespace tandem
