// Reading lines of files and pipes, complete and incomplete.
#include "tools/batch/line_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "support/gguf_bytes.h"

namespace tandem::tools {
namespace {

using Result = LineReader::Result;
using Wait = LineReader::Wait;

TEST(LineReader, GivesTheLinesOfAFile) {
  const test::TempDir directory;
  const std::string path = directory.path("lines");
  const std::string large(300'000, 'x');
  test::write_file(path, "one\n\nthree\r\n" + large + "\nlast");
  const int fd = open(path.c_str(), O_RDONLY);
  LineReader reader(fd, "lines");
  std::string line;
  for (const std::string& expected : {std::string("one"), std::string(), std::string("three\r"), large}) {
    ASSERT_EQ(reader.next(line), Result::line);
    EXPECT_EQ(line, expected);
    EXPECT_TRUE(reader.ended());
  }
  const uint64_t before = reader.n_bytes();
  EXPECT_EQ(before, 4 + 1 + 7 + large.size() + 1);
  ASSERT_EQ(reader.next(line), Result::line);
  EXPECT_EQ(line, "last");
  EXPECT_FALSE(reader.ended());
  EXPECT_EQ(reader.n_lines(), 5);
  EXPECT_EQ(reader.next(line), Result::end);
  EXPECT_EQ(reader.next(line), Result::end);
  close(fd);
}

TEST(LineReader, DoesNotWaitForASlowPipe) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  LineReader reader(ends[0], "pipe");
  std::string line;
  EXPECT_EQ(reader.next(line, Wait::no), Result::not_yet);
  ASSERT_EQ(write(ends[1], "ha", 2), 2);
  EXPECT_EQ(reader.next(line, Wait::no), Result::not_yet);
  ASSERT_EQ(write(ends[1], "lf\nmo", 5), 5);
  ASSERT_EQ(reader.next(line, Wait::no), Result::line);
  EXPECT_EQ(line, "half");
  EXPECT_EQ(reader.next(line, Wait::no), Result::not_yet);
  close(ends[1]);
  ASSERT_EQ(reader.next(line, Wait::no), Result::line);
  EXPECT_EQ(line, "mo");
  EXPECT_EQ(reader.next(line, Wait::no), Result::end);
  close(ends[0]);
}

TEST(LineReader, SkipsALineThatIsTooLong) {
  const test::TempDir directory;
  const std::string path = directory.path("long");
  test::write_file(path, std::string(LineReader::kMaxBytes + 70'000, 'x') + "\nnext\n");
  const int fd = open(path.c_str(), O_RDONLY);
  LineReader reader(fd, "long");
  std::string line;
  ASSERT_EQ(reader.next(line), Result::line);
  EXPECT_TRUE(reader.too_long());
  EXPECT_EQ(reader.n_bytes(), LineReader::kMaxBytes + 70'001);
  ASSERT_EQ(reader.next(line), Result::line);
  EXPECT_FALSE(reader.too_long());
  EXPECT_EQ(line, "next");
  EXPECT_EQ(reader.n_lines(), 2);
  close(fd);
}

TEST(LineReader, ReportsReadErrors) {
  const test::TempDir directory;
  const int fd = open(directory.path("").c_str(), O_RDONLY);
  LineReader reader(fd, "a folder");
  std::string line;
  EXPECT_THROW(reader.next(line), Error);
  close(fd);
}

}  // namespace
}  // namespace tandem::tools
