// Broken GGUF files: each must give one Error that names the file and the fault, mapped or read into memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "gguf/file.h"
#include "support/gguf_bytes.h"

namespace tandem {
namespace {

using test::ByteString;
using test::kv_string;
using test::kv_u32;
using test::RawGguf;
using test::small_gguf;
using test::tensor_info;
using testing::HasSubstr;
using testing::StartsWith;

// The message when opening `path` fails with `code`; fails the test otherwise.
std::string open_error(const std::string& path, ErrorCode code, const OpenOptions& options = {}) {
  try {
    GgufFile file(path, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), StartsWith(path));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << path << " opened";
  return {};
}

class GgufBadFile : public testing::Test {
 protected:
  // Mapped and read into memory.
  void expect_bad(const std::string& bytes, const std::string& needle) {
    const std::string path = directory.path("bad.gguf");
    test::write_file(path, bytes);
    EXPECT_THAT(open_error(path, ErrorCode::bad_file), HasSubstr(needle));
    EXPECT_THAT(open_error(path, ErrorCode::bad_file, {.mmap = false}), HasSubstr(needle));
  }
  void expect_bad(const RawGguf& file, const std::string& needle) { expect_bad(file.bytes(), needle); }
  // The small file with an additional pair or tensor.
  void expect_bad_pair(const std::string& pair, const std::string& needle) {
    RawGguf file = small_gguf();
    file.pairs.push_back(pair);
    expect_bad(file, needle);
  }
  void expect_bad_tensor(const std::string& info, const std::string& needle) {
    RawGguf file = small_gguf();
    file.tensors.push_back(info);
    expect_bad(file, needle);
  }

  test::TempDir directory;
};

TEST_F(GgufBadFile, TheSmallFileIsValid) {
  const std::string path = directory.path("good.gguf");
  test::write_file(path, small_gguf().bytes());
  EXPECT_EQ(GgufFile(path).tensors().size(), 2u);
}

TEST_F(GgufBadFile, NotAFile) {
  EXPECT_THAT(open_error(directory.path("missing.gguf"), ErrorCode::io), HasSubstr("No such file"));
  EXPECT_THAT(open_error(directory.path(""), ErrorCode::bad_file), HasSubstr("a directory"));
  EXPECT_THAT(open_error("/dev/null", ErrorCode::bad_file), HasSubstr("a device"));
  const std::string fifo = directory.path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(open_error(fifo, ErrorCode::bad_file),
              HasSubstr("a FIFO"));  // and it does not wait for a writer
}

TEST_F(GgufBadFile, Start) {
  expect_bad("", "empty");
  expect_bad("GGU", "the magic needs 4 bytes");
  RawGguf file = small_gguf();
  file.magic = "GGML";
  expect_bad(file, "magic");
  for (const uint32_t version : {0u, 1u, 4u, 0xffffffffu}) {
    file = small_gguf();
    file.version = version;
    expect_bad(file, "version is " + std::to_string(version) + ", needed 2 or 3");
  }
  file.version = 0x03000000;
  expect_bad(file, "big-endian");
}

TEST_F(GgufBadFile, VersionTwoIsValid) {
  RawGguf file = small_gguf();
  file.version = 2;
  const std::string bytes = file.bytes();
  EXPECT_EQ(GgufFile(test::as_bytes(bytes), "two").version(), 2u);
}

// An exact-size copy on the heap, so that a sanitizer detects every read past its end.
void expect_truncated(const std::string& bytes, size_t n) {
  const auto copy = std::make_unique<std::byte[]>(n);
  std::memcpy(copy.get(), bytes.data(), n);
  try {
    GgufFile file(std::span<const std::byte>(copy.get(), n), "cut");
    ADD_FAILURE() << "opened with " << n << " of " << bytes.size() << " bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
    EXPECT_THAT(error.what(), StartsWith("cut: "));
  }
}

TEST_F(GgufBadFile, TruncatedAtEveryByte) {
  const std::string bytes = small_gguf().bytes();
  for (size_t n = 0; n < bytes.size(); ++n) expect_truncated(bytes, n);
  expect_bad(bytes.substr(0, bytes.size() - 1), "tensor second needs 36 bytes at data offset 64, found 99");
}

// A changed byte gives a file that opens or an Error(bad_file), nothing else.
TEST_F(GgufBadFile, EveryByteChanged) {
  const std::string good = small_gguf().bytes();
  size_t n_opened = 0, n_refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ change);
      try {
        GgufFile file(test::as_bytes(bytes), "changed");
        for (const Metadata::Entry& entry : file.metadata().entries()) entry.value.short_text();
        ++n_opened;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::bad_file) << error.what();
        ++n_refused;
      }
    }
  }
  EXPECT_GT(n_opened, 100u);
  EXPECT_GT(n_refused, 100u);
}

TEST_F(GgufBadFile, CountsAndLengths) {
  for (const uint64_t huge :
       {uint64_t{1000}, uint64_t{1} << 32, uint64_t{1} << 60, uint64_t{1} << 61, ~uint64_t{0}}) {
    RawGguf file = small_gguf();
    file.n_tensors = huge;
    expect_bad(file, "the tensor count");
    file = small_gguf();
    file.n_pairs = huge;
    expect_bad(file, "metadata");
    expect_bad_pair(ByteString().u64(huge).raw("key").bytes(), "metadata key 16 needs");
    expect_bad_pair(ByteString().string("key").u32(8).u64(huge).bytes(), "metadata key needs");
    expect_bad_pair(ByteString().string("key").u32(9).u32(8).u64(huge).bytes(), "metadata key count is");
    expect_bad_pair(ByteString().string("key").u32(9).u32(4).u64(huge).bytes(), "metadata key count is");
    expect_bad_pair(ByteString().string("key").u32(9).u32(10).u64(huge).bytes(), "metadata key count is");
    expect_bad_pair(ByteString().string("key").u32(9).u32(0).u64(huge).bytes(), "metadata key count is");
    expect_bad_tensor(ByteString().u64(huge).raw("name").bytes(), "tensor name 2 needs");
  }
}

TEST_F(GgufBadFile, Metadata) {
  expect_bad_pair(kv_u32("a.u32", 1), "metadata key a.u32 appears twice");
  expect_bad_pair(ByteString().string("key").u32(13).u64(0).bytes(), "metadata key type is 13");
  expect_bad_pair(ByteString().string("key").u32(0xffffffff).u64(0).bytes(),
                  "metadata key type is 4294967295");
  expect_bad_pair(ByteString().string("key").u32(9).u32(77).u64(1).bytes(), "element type is 77");
  expect_bad_pair(ByteString().string("key").u32(9).u32(9).u64(1).u32(4).u64(0).bytes(), "array of arrays");
  expect_bad_pair(ByteString().string("key").u32(7).number(uint8_t{2}).bytes(), "a bool of 2");
  expect_bad_pair(ByteString().string("key").u32(9).u32(7).u64(2).number(uint16_t{0x0301}).bytes(),
                  "a bool of 3");
  expect_bad_pair(ByteString().string("k\n\x1b").u32(99).bytes(), "k\\x0a\\x1b");
}

TEST_F(GgufBadFile, Alignment) {
  for (const uint32_t alignment : {0u, 1u, 3u, 4u, 33u, 1u << 25, 1u << 31, 0xffffffffu}) {
    expect_bad_pair(kv_u32("general.alignment", alignment),
                    "metadata general.alignment: found " + std::to_string(alignment));
  }
  expect_bad_pair(kv_string("general.alignment", "32"), "metadata general.alignment: found string");
  expect_bad_pair(test::kv_i32("general.alignment", -32), "metadata general.alignment: found i32 -32");
  RawGguf file = small_gguf();
  file.pairs.push_back(
      kv_u32("general.alignment", 1u << 24));  // valid, but the data would start past the end
  file.tensors.pop_back();
  expect_bad(file, "tensor first needs 48 bytes at data offset 0, found 0");
}

TEST_F(GgufBadFile, Dimensions) {
  expect_bad_tensor(tensor_info("t", {}, 0, 128), "tensor t has 0 dimensions");
  expect_bad_tensor(tensor_info("t", {1, 1, 1, 1, 1}, 0, 128), "tensor t has 5 dimensions");
  expect_bad_tensor(ByteString().string("t").u32(0xffffffff).bytes() + std::string(64, 'x'),
                    "tensor t has 4294967295 dimensions");
  expect_bad_tensor(tensor_info("t", {0}, 0, 128), "tensor t dimension 0 is 0");
  expect_bad_tensor(tensor_info("t", {4, 0}, 0, 128), "tensor t dimension 1 is 0");
  expect_bad_tensor(tensor_info("t", {4, ~uint64_t{0}}, 0, 128), "tensor t dimension 1 is -1");
  expect_bad_tensor(tensor_info("t", {uint64_t{1} << 63}, 0, 128),
                    "tensor t dimension 0 is -9223372036854775808");
  expect_bad_tensor(tensor_info("t", {uint64_t{1} << 32, uint64_t{1} << 31}, 24, 128), "overflows");
  expect_bad_tensor(tensor_info("t", {uint64_t{1} << 32, uint64_t{1} << 32}, 24, 128), "overflows");
  expect_bad_tensor(tensor_info("t", {1u << 16, 1u << 16, 1u << 16, 1u << 16}, 24, 128), "overflows");
  expect_bad_tensor(tensor_info("t", {(uint64_t{1} << 62) - 1}, 0, 128), "size in bytes overflows");
  expect_bad_tensor(tensor_info("t", {uint64_t{1} << 61}, 0, 128), "size in bytes overflows");
  expect_bad_tensor(tensor_info("t", {uint64_t{1} << 60}, 0, 128),
                    "tensor t needs 4611686018427387904 bytes");
}

TEST_F(GgufBadFile, Types) {
  for (const uint32_t type : {4u, 5u, 31u, 33u, 36u, 63u, 64u, 200u, 0xffffffffu}) {
    expect_bad_tensor(tensor_info("t", {32}, type, 128),
                      "tensor t has the unknown type " + std::to_string(type));
  }
  expect_bad_tensor(tensor_info("t", {33}, 2, 128), "rows of 33 elements, but Q4_0 needs a multiple of 32");
  expect_bad_tensor(tensor_info("t", {128, 2}, 12, 128),
                    "rows of 128 elements, but Q4_K needs a multiple of 256");
  expect_bad_tensor(tensor_info("t", {16, 2}, 39, 128), "MXFP4 needs a multiple of 32");
}

TEST_F(GgufBadFile, Offsets) {
  expect_bad_tensor(tensor_info("t", {1}, 0, 65),
                    "tensor t data offset is 65, needed a multiple of the alignment 32");
  expect_bad_tensor(tensor_info("t", {1}, 0, 32), "tensors first and t overlap");
  expect_bad_tensor(tensor_info("t", {1}, 0, 64), "overlap");
  expect_bad_tensor(tensor_info("t", {1}, 0, 0), "overlap");
  expect_bad_tensor(tensor_info("t", {1}, 0, 128), "tensor t needs 4 bytes at data offset 128, found 100");
  expect_bad_tensor(tensor_info("t", {1}, 0, ~uint64_t{31}), "tensor t needs 4 bytes");
  expect_bad_tensor(tensor_info("first", {1}, 0, 96), "tensor first appears twice");
}

// ---- split files

class GgufBadSplit : public GgufBadFile {
 protected:
  RawGguf part(uint16_t no, uint16_t count, int32_t n_tensors, const std::string& tensor) {
    RawGguf file;
    file.pairs = {test::kv_u16("split.no", no), test::kv_u16("split.count", count),
                  test::kv_i32("split.tensors.count", n_tensors)};
    file.tensors = {tensor_info(tensor, {4}, 0, 0)};
    file.data.resize(32);
    return file;
  }
  std::string write(const std::string& name, const RawGguf& file) {
    test::write_file(directory.path(name), file.bytes());
    return directory.path(name);
  }
};

TEST_F(GgufBadSplit, InconsistentParts) {
  const std::string one = write("m-00001-of-00002.gguf", part(0, 2, 2, "a"));
  EXPECT_THROW(GgufFile{one}, Error);
  const std::string two = directory.path("m-00002-of-00002.gguf");
  const auto second_part_error = [&](const RawGguf& file) {
    test::write_file(two, file.bytes());
    try {
      GgufFile opened(one);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_file);
      return std::string(error.what());
    }
    return std::string("opened");
  };
  EXPECT_EQ(second_part_error(part(1, 2, 2, "b")), "opened");
  EXPECT_EQ(second_part_error(part(0, 2, 2, "b")), two + ": metadata split.no: found 0, needed 1");
  EXPECT_EQ(second_part_error(part(1, 3, 2, "b")), two + ": metadata split.count: found 3, needed 2");
  EXPECT_EQ(second_part_error(part(1, 2, 2, "a")), two + ": tensor a is also in " + one);
  EXPECT_THAT(second_part_error(small_gguf()), StartsWith(two + ": metadata split.no: found nothing"));
  RawGguf extra = part(1, 2, 2, "b");
  extra.tensors.push_back(tensor_info("c", {4}, 0, 32));
  extra.data.resize(64);
  EXPECT_THAT(second_part_error(extra), HasSubstr("hold 3 tensors, needed 2"));
  test::write_file(two, "GGUF");
  EXPECT_THROW(GgufFile{one}, Error);
}

TEST_F(GgufBadSplit, MissingPart) {
  const std::string one = write("m-00001-of-00003.gguf", part(0, 3, 3, "a"));
  write("m-00002-of-00003.gguf", part(1, 3, 3, "b"));
  try {
    GgufFile file(one);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
    EXPECT_THAT(error.what(),
                StartsWith(directory.path("m-00003-of-00003.gguf") + ": cannot open: No such file"));
    EXPECT_THAT(error.what(), HasSubstr("part 3 of 3"));
  }
}

TEST_F(GgufBadSplit, WrongPartOrName) {
  const std::string two = write("m-00002-of-00002.gguf", part(1, 2, 2, "b"));
  EXPECT_THAT(open_error(two, ErrorCode::bad_file), HasSubstr("this is part 2 of 2; open the first part"));
  const std::string renamed = write("model.gguf", part(0, 2, 2, "a"));
  EXPECT_THAT(open_error(renamed, ErrorCode::bad_file), HasSubstr("must end in -00001-of-00002.gguf"));
  const std::string no_number = directory.path("n-00001-of-00002.gguf");
  RawGguf file = part(0, 2, 2, "a");
  file.pairs.erase(file.pairs.begin());
  test::write_file(no_number, file.bytes());
  EXPECT_THAT(open_error(no_number, ErrorCode::bad_file), HasSubstr("metadata split.no: found nothing"));
}

}  // namespace
}  // namespace tandem
