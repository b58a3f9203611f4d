// Moving parts of a mapped file to memory: same addresses, same bytes, also for those who read meanwhile; what has been moved
// no longer depends on the file.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gguf/mapped_file.h"
#include "support/paths.h"

namespace tandem {
namespace {

class HeldPagesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 rng(std::random_device{}());
    bytes_.resize((size_t{5} << 20) + 12345);
    for (size_t i = 0; i + 8 <= bytes_.size(); i += 8) {
      const uint64_t x = rng();
      std::memcpy(bytes_.data() + i, &x, 8);
    }
    std::ofstream(path_, std::ios::binary).write(reinterpret_cast<const char*>(bytes_.data()), size());
  }
  void TearDown() override { unlink(path_.c_str()); }

  std::streamsize size() const { return static_cast<std::streamsize>(bytes_.size()); }
  bool is_whole(const MappedFile& file) const {
    return std::memcmp(file.bytes().data(), bytes_.data(), bytes_.size()) == 0;
  }

  const std::string path_ = testing::TempDir() + "held-" + std::to_string(getpid());
  std::vector<std::byte> bytes_;
};

// Of /proc/self/maps: KiB of the mappings of a file.
size_t mapped_kib(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  size_t n = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) == std::string::npos) continue;
    size_t begin = 0, end = 0;
    sscanf(line.c_str(), "%zx-%zx", &begin, &end);
    n += (end - begin) / 1024;
  }
  return n;
}

TEST_F(HeldPagesTest, KeepsAddressesAndBytes) {
  const MappedFile file = MappedFile::open(path_, {});
  const std::byte* const at = file.bytes().data();
  const size_t n_kib = (bytes_.size() + 4095) / 4096 * 4;
  EXPECT_EQ(mapped_kib(path_), n_kib);
  const auto part = [&](size_t first, size_t n) { return file.bytes().subspan(first, n); };
  ASSERT_TRUE(file.hold(part(4096 * 3 + 5, 10)));  // in a page
  EXPECT_EQ(mapped_kib(path_), n_kib - 4);
  ASSERT_TRUE(file.hold(part(4096 * 3 + 5, 4096)));  // with the next
  EXPECT_EQ(mapped_kib(path_), n_kib - 8);
  ASSERT_TRUE(file.hold(part(4096 * 10, 4096 * 3)));
  ASSERT_TRUE(file.hold(part(0, 4096 * 20)));  // around all of them
  EXPECT_EQ(mapped_kib(path_), n_kib - 80);
  ASSERT_TRUE(file.hold(part(4096 * 5, 100)));  // again
  ASSERT_TRUE(file.hold(part(bytes_.size() - 1, 1)));
  ASSERT_TRUE(file.hold(part(4096 * 7, 0)));
  EXPECT_EQ(mapped_kib(path_), n_kib - 84);
  EXPECT_TRUE(is_whole(file));
  ASSERT_TRUE(file.hold(file.bytes()));
  EXPECT_EQ(mapped_kib(path_), 0u);
  EXPECT_EQ(file.bytes().data(), at);
  EXPECT_TRUE(is_whole(file));
}

TEST_F(HeldPagesTest, OthersReadMeanwhile) {
  const MappedFile file = MappedFile::open(path_, {});
  std::atomic<bool> stop{false};
  std::atomic<int> n_wrong{0}, n_read{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        n_wrong += !is_whole(file);
        ++n_read;
      }
    });
  }
  std::mt19937 rng(std::random_device{}());
  while (n_read < 2) std::this_thread::yield();
  for (int i = 0; i < 40; ++i) {
    const size_t first = rng() % bytes_.size();
    ASSERT_TRUE(file.hold(file.bytes().subspan(first, std::min<size_t>(bytes_.size() - first, rng() % 500000))));
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(n_wrong, 0);
}

// What is in memory survives a file that shrinks.
TEST_F(HeldPagesTest, NoLongerDependsOnTheFile) {
  const MappedFile file = MappedFile::open(path_, {});
  ASSERT_TRUE(file.hold(file.bytes()));
  ASSERT_EQ(truncate(path_.c_str(), 0), 0);
  EXPECT_TRUE(is_whole(file));
}

TEST_F(HeldPagesTest, WithoutMemoryTheFileStaysAsItIs) {
  const MappedFile file = MappedFile::open(path_, {});
  const auto child = [&] {
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = 1 << 20;  // less than there is already: nothing more is mapped
    setrlimit(RLIMIT_AS, &limit);
    const bool held = file.hold(file.bytes());
    _exit(!held && is_whole(file) ? 0 : 1);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

TEST_F(HeldPagesTest, WhatIsInMemoryStaysThere) {
  OpenOptions copied;
  copied.mmap = false;
  const MappedFile file = MappedFile::open(path_, copied), view = MappedFile::view(bytes_, "view");
  EXPECT_TRUE(file.hold(file.bytes()));
  EXPECT_TRUE(view.hold(view.bytes()));
  EXPECT_TRUE(is_whole(file));
}

}  // namespace
}  // namespace tandem
