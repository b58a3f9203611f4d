// A mapped file that shrinks during reading: one line and exit code 5, not a crash.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "gguf/file.h"
#include "support/gguf_bytes.h"

namespace tandem {
namespace {

class GgufSigbus : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    test::RawGguf file;
    file.tensors = {test::tensor_info("t", {1 << 16}, 0, 0)};
    file.data.resize(4 << 16, 'x');
    path = directory.path("shrinks.gguf");
    test::write_file(path, file.bytes());
  }
  // Reads every byte of `file` after truncating it to one page.
  void cut_and_read(const GgufFile& file) {
    if (truncate(path.c_str(), 4096) != 0) _exit(99);
    volatile unsigned sum = 0;
    for (uint64_t i = 0; i < file.tensors()[0].n_bytes; ++i)
      sum = sum + static_cast<unsigned>(file.tensors()[0].data[i]);
    _exit(98);
  }

  test::TempDir directory;
  std::string path;
};

TEST_F(GgufSigbus, NamesTheFileAndTheOffset) {
  EXPECT_EXIT(
      {
        const GgufFile file(path);
        cut_and_read(file);
      },
      testing::ExitedWithCode(5),
      "^tandem: error: .*shrinks.gguf: reading failed at offset 4096: the file was trunc");
}

TEST_F(GgufSigbus, FollowsAMove) {
  EXPECT_EXIT(
      {
        GgufFile first(path);
        const GgufFile file(std::move(first));
        cut_and_read(file);
      },
      testing::ExitedWithCode(5), "shrinks.gguf: reading failed at offset 4096");
}

TEST_F(GgufSigbus, ACopyInMemoryIsSafe) {
  EXPECT_EXIT(
      {
        const GgufFile file(path, {.mmap = false});
        cut_and_read(file);
      },
      testing::ExitedWithCode(98), "");
}

TEST_F(GgufSigbus, OtherFaultsAreNotHandled) {
  EXPECT_EXIT(
      {
        signal(SIGBUS, [](int) { _exit(97); });  // the handler that was there before
        const GgufFile file(path);
        raise(SIGBUS);
        _exit(96);
      },
      testing::ExitedWithCode(97), "");
  EXPECT_EXIT(
      {
        signal(SIGBUS, [](int) { _exit(97); });
        { const GgufFile closed(path); }
        FILE* other = fopen(path.c_str(), "rb");
        void* map = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fileno(other), 0);
        if (truncate(path.c_str(), 4096) != 0) _exit(99);
        volatile char c = static_cast<char*>(map)[5000];
        (void)c;
        _exit(96);
      },
      testing::ExitedWithCode(97), "");
}

}  // namespace
}  // namespace tandem
