// The store of computed blocks: names, damage, the limit of its size, and folders that are something else.
#include "kv/block_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "support/gguf_bytes.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr size_t kBytes = 1000, kFileBytes = kBytes + BlockHeader::kBytes;

Sha256 name_of(int i) {
  return sha256("block " + std::to_string(i));
}

std::vector<std::byte> block_bytes(int i, size_t n = kBytes) {
  std::vector<std::byte> bytes(n);
  for (size_t k = 0; k < n; ++k) bytes[k] = static_cast<std::byte>(k * 7 + static_cast<size_t>(i));
  return bytes;
}

class BlockStores : public testing::Test {
 protected:
  // Block i of a text that was used at `time_s`.
  static void write(BlockStore& store, int i, int64_t time_s = 1'000'000, const char* root = "model",
                    BlockKind kind = BlockKind::rows) {
    BlockHeader header;
    header.kind = kind;
    header.name = name_of(i);
    header.root = sha256(root);
    header.n_tokens = static_cast<uint32_t>(32 * (i + 1));
    header.model = root;
    store.write(header, block_bytes(i), {time_s * 1'000'000'000, i});
    store.flush();
  }
  std::string file_of(int i) const { return folder_ + "/" + hex_text(name_of(i)) + ".rows"; }
  static std::string message(const std::string& folder) {
    try {
      const BlockStore store(folder);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return e.what();
    }
    return "";
  }
  size_t n_files() const { return files_in(folder_).size() - 1; }  // the lock file aside

  test::TempDir directory_;
  std::string folder_ = directory_.path("deep/store");
};

TEST(Hashes, KnownAnswer) {
  EXPECT_EQ(hex_text(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(BlockStores, GivesBackWhatItGot) {
  {
    BlockStore store(folder_);
    EXPECT_FALSE(store.has(name_of(1), BlockKind::rows));
    EXPECT_FALSE(store.read(name_of(1), BlockKind::rows, kBytes));
    write(store, 1);
    EXPECT_EQ(store.counts().n_written, 1);
  }
  BlockStore store(folder_);
  EXPECT_TRUE(store.has(name_of(1), BlockKind::rows));
  EXPECT_FALSE(store.has(name_of(1), BlockKind::state));
  EXPECT_EQ(store.read(name_of(1), BlockKind::rows, kBytes), block_bytes(1));
  const std::vector<StoredModel> contents = store.contents();
  ASSERT_EQ(contents.size(), 1u);
  EXPECT_EQ(contents[0].model, "model");
  EXPECT_EQ(contents[0].n_blocks, 1);
  EXPECT_EQ(contents[0].n_bytes, kFileBytes);
  EXPECT_EQ(contents[0].used_s, 999'999);  // a microsecond for the block before it
}

TEST_F(BlockStores, NobodyElseReadsIt) {
  BlockStore store(folder_);
  write(store, 1);
  for (const auto& [path, mode] : {std::pair(folder_, 0700), std::pair(file_of(1), 0600)}) {
    struct stat info {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, static_cast<mode_t>(mode)) << path;
  }
}

// A bit of every part of the header, and of the bytes; each time the file goes.
TEST_F(BlockStores, FindsEveryFlippedBit) {
  BlockStore store(folder_);
  for (size_t at = 0; at < kFileBytes; at += at < BlockHeader::kBytes ? 1 : 37) {
    write(store, 1);
    std::fstream file(file_of(1), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const auto flipped = static_cast<char>(file.get() ^ (1 << at % 8));
    file.seekp(static_cast<std::streamoff>(at));
    file.put(flipped);
    file.close();
    EXPECT_FALSE(store.read(name_of(1), BlockKind::rows, kBytes)) << at;
    EXPECT_FALSE(file_exists(file_of(1))) << at;
  }
}

TEST_F(BlockStores, FindsOtherSizesNamesAndKinds) {
  BlockStore store(folder_);
  for (const size_t n : {size_t{0}, size_t{100}, BlockHeader::kBytes, kFileBytes - 1, kFileBytes + 1}) {
    write(store, 1);
    fs::resize_file(file_of(1), n);
    EXPECT_FALSE(store.read(name_of(1), BlockKind::rows, kBytes)) << n;
  }
  write(store, 1);
  EXPECT_FALSE(store.read(name_of(1), BlockKind::rows, kBytes - 1)) << "of another cache";
  write(store, 1);
  fs::rename(file_of(1), file_of(2));
  EXPECT_FALSE(store.read(name_of(2), BlockKind::rows, kBytes)) << "under another name";
  write(store, 1);
  fs::rename(file_of(1), folder_ + "/" + hex_text(name_of(1)) + ".state");
  EXPECT_FALSE(store.read(name_of(1), BlockKind::state, kBytes)) << "of another kind";
  EXPECT_EQ(n_files(), 0u);
}

TEST_F(BlockStores, RemovesTheLeastRecentlyUsed) {
  BlockStore store(folder_, 10 * kFileBytes);
  for (int i = 0; i < 10; ++i) write(store, i, 1'000'000 + i);
  store.touch(name_of(0), BlockKind::rows, {BlockStore::now_ns(), 0});
  write(store, 10, 1'000'100);
  EXPECT_TRUE(file_exists(file_of(0))) << "was used again";
  EXPECT_FALSE(file_exists(file_of(1)));
  EXPECT_FALSE(file_exists(file_of(2))) << "down to 90%";
  EXPECT_TRUE(file_exists(file_of(3)));
  EXPECT_TRUE(file_exists(file_of(10)));
  EXPECT_EQ(store.counts().n_removed, 2);
}

// Of one text, its beginning stays longest: without it, the rest cannot be used.
TEST_F(BlockStores, RemovesTextsFromTheirEnds) {
  BlockStore store(folder_, 10 * kFileBytes);
  for (int i = 0; i < 12; ++i) write(store, i);
  EXPECT_TRUE(file_exists(file_of(0)));
  EXPECT_LE(n_files(), 10u);
  EXPECT_FALSE(file_exists(file_of(9)));
}

TEST_F(BlockStores, NeverLargerThanItsLimit) {
  BlockStore store(folder_, 7 * kFileBytes + 5);
  for (int i = 0; i < 60; ++i) {
    write(store, i, 1'000'000 + i);
    ASSERT_LE(n_files(), 7u);
  }
  BlockStore small(folder_, kFileBytes - 1);
  write(small, 99);
  EXPECT_FALSE(file_exists(file_of(99))) << "alone larger than the limit";
}

TEST_F(BlockStores, RemovesOldTemporaries) {
  {
    const BlockStore store(folder_);
  }
  const std::string old = folder_ + "/tmp-1-1", fresh = folder_ + "/tmp-1-2";
  std::ofstream(old) << "torn";
  std::ofstream(fresh) << "torn";
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(1));
  BlockStore store(folder_);
  write(store, 1);
  EXPECT_FALSE(file_exists(old));
  EXPECT_TRUE(file_exists(fresh));
}

TEST_F(BlockStores, RefusesFoldersOfOthers) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/thesis.txt") << "text";
  EXPECT_THAT(message(folder_), HasSubstr("found thesis.txt"));
  EXPECT_THAT(message(folder_ + "/thesis.txt"), HasSubstr("not a folder"));
  EXPECT_EQ(files_in(folder_).size(), 1u);
}

// What is there besides, under whatever name, stays.
TEST_F(BlockStores, RemovesOnlyItsOwn) {
  BlockStore store(folder_, 3 * kFileBytes);
  std::ofstream(folder_ + "/notes.txt") << std::string(10 * kFileBytes, 'x');
  std::ofstream(folder_ + "/" + std::string(64, 'a') + ".txt") << "text";
  for (int i = 0; i < 9; ++i) write(store, i, 1'000'000, i < 8 ? "one" : "two");
  store.remove({sha256("two")});
  EXPECT_FALSE(file_exists(file_of(8)));
  ASSERT_EQ(store.contents().size(), 1u);
  EXPECT_EQ(store.contents()[0].model, "one");
  EXPECT_GT(store.remove({}), 0u);
  EXPECT_EQ(n_files(), 2u);
}

// One warning, and nothing more is tried.
TEST_F(BlockStores, GoesOnWhereNothingCanBeWritten) {
  BlockStore store(folder_);
  fs::remove_all(folder_);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) write(store, i);
  EXPECT_FALSE(store.takes_blocks());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

}  // namespace
}  // namespace tandem
