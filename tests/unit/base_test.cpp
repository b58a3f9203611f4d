#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <sstream>

#include "base/checked.h"
#include "base/error.h"
#include "base/files.h"
#include "base/fp16.h"
#include "base/random_seed.h"
#include "base/terminal.h"
#include "support/gguf_bytes.h"

namespace tandem {
namespace {

TEST(Fp16, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = fp16_to_fp32(static_cast<fp16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(fp16_to_fp32(fp32_to_fp16(f))));
    } else {
      EXPECT_EQ(fp32_to_fp16(f), h);
    }
  }
}

TEST(Fp16, RoundsToNearestEvenAndOverflowsToInfinity) {
  EXPECT_EQ(fp32_to_fp16(1.0f + 0x1p-11f), 0x3c00);  // tie goes to even
  EXPECT_EQ(fp32_to_fp16(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);
  EXPECT_EQ(fp32_to_fp16(65504.0f), 0x7bff);
  EXPECT_EQ(fp32_to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(fp32_to_fp16(0x1p-24f), 0x0001);
  EXPECT_EQ(fp32_to_fp16(0x1p-26f), 0x0000);
  EXPECT_EQ(fp32_to_fp16(-0.0f), 0x8000);
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(fp32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(fp32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(fp32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_TRUE(std::isnan(bf16_to_fp32(fp32_to_bf16(NAN))));
}

TEST(RandomSeed, DiffersInBothHalves) {
  const uint64_t a = random_seed(), b = random_seed();
  EXPECT_NE(a >> 32, b >> 32);
  EXPECT_NE(static_cast<uint32_t>(a), static_cast<uint32_t>(b));
}

TEST(Checked, RefusesOverflow) {
  EXPECT_FALSE(checked_add(UINT64_MAX, 1));
  EXPECT_FALSE(checked_mul(UINT64_MAX / 2, 3));
  EXPECT_FALSE(checked_align(UINT64_MAX - 3, 32));
  EXPECT_EQ(checked_align(33, 32), 64u);
  EXPECT_EQ(checked_align(64, 32), 64u);
}

TEST(Files, BelowAFolderAreListedWithoutFollowingLinks) {
  const test::TempDir directory;
  const std::string root = directory.path("root");
  EXPECT_TRUE(files_below(root).empty());
  std::filesystem::create_directories(root + "/b/c");
  std::filesystem::create_directories(root + "/empty");
  std::filesystem::create_directory_symlink("..", root + "/b/loop");
  for (const char* name : {"/z", "/b/x", "/b/c/y"}) test::write_file(root + name, "1");
  const std::vector<std::string> expected = {root + "/b/c/y", root + "/b/loop", root + "/b/x", root + "/z"};
  EXPECT_EQ(files_below(root), expected);
  EXPECT_TRUE(files_below(root + "/z").empty());
}

TEST(Terminal, WrapsBetweenWords) {
  EXPECT_EQ(wrapped_words("", 5), "");
  EXPECT_EQ(wrapped_words("12345", 5), "12345");
  EXPECT_EQ(wrapped_words("123 5 7", 5), "123 5\n7");
  EXPECT_EQ(wrapped_words("123 56 8", 5), "123\n56 8");
  EXPECT_EQ(wrapped_words("1234567 9", 5), "1234567\n9");
  EXPECT_EQ(wrapped_words("1 1234567 9", 5), "1\n1234567\n9");
  EXPECT_EQ(wrapped_words("12345 ", 5), "12345 ");
  EXPECT_EQ(wrapped_words("1 2\n1234 6", 5), "1 2\n1234\n6");
  EXPECT_EQ(wrapped_words("\xc3\xa4\xc3\xa4\xc3\xa4 5 7", 5), "\xc3\xa4\xc3\xa4\xc3\xa4 5\n7");
  // Of any text: the words stay, and a line is too long only if it is one word.
  std::mt19937 random(7);
  for (int n = 0; n < 300; ++n) {
    std::string text = "x";
    while (text.size() < 60) text += random() % 4 == 0 && text.back() != ' ' ? ' ' : 'a';
    text += 'x';
    const size_t columns = 1 + random() % 20;
    std::string wrapped = wrapped_words(text, columns);
    std::istringstream lines(wrapped);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_TRUE(line.size() <= columns || line.find(' ') == std::string::npos)
          << text << "|" << columns << "|" << line;
    }
    std::ranges::replace(wrapped, '\n', ' ');
    EXPECT_EQ(wrapped, text);
  }
}

TEST(Error, CarriesCodeAndMessage) {
  try {
    throw_error(ErrorCode::bad_file, "{}: {}", "a.gguf", 7);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_file);
    EXPECT_STREQ(e.what(), "a.gguf: 7");
  }
  EXPECT_EQ(printable("a\nb\x7f"), "a\\x0ab\\x7f");
  EXPECT_EQ(printable("é€\U0001f600"), "é€\U0001f600");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m");  // one-character terminal control sequence
  EXPECT_EQ(printable("\xff"
                      "a\xc3"),
            "\\xffa\\xc3");                                                   // invalid and incomplete UTF-8
  EXPECT_EQ(printable("\xc0\x80\xed\xa0\x80"), "\\xc0\\x80\\xed\\xa0\\x80");  // overlong, surrogate
  EXPECT_EQ(printable("aé", 2), "a...");                                      // cuts between characters
}

}  // namespace
}  // namespace tandem
