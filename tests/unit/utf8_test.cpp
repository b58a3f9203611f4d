#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

void expect_step(std::string_view text, Utf8Status status, size_t n_bytes) {
  const Utf8Char next = next_utf8(text);
  EXPECT_EQ(next.status, status) << testing::PrintToString(std::string(text));
  EXPECT_EQ(next.n_bytes, n_bytes) << testing::PrintToString(std::string(text));
}

TEST(Utf8, TakesEveryLengthOfCharacter) {
  expect_step("a", Utf8Status::valid, 1);
  expect_step(std::string_view("\0", 1), Utf8Status::valid, 1);
  expect_step("\xc3\xa9!", Utf8Status::valid, 2);
  expect_step("\xe2\x82\xac", Utf8Status::valid, 3);
  expect_step("\xf0\x9f\xa6\x99", Utf8Status::valid, 4);
  expect_step("\xf4\x8f\xbf\xbf", Utf8Status::valid, 4);  // U+10FFFF
}

TEST(Utf8, RejectsInvalidBytes) {
  expect_step("\x80", Utf8Status::invalid, 1);
  expect_step("\xc0\x80", Utf8Status::invalid, 1);          // overlong NUL
  expect_step("\xc1\xbf", Utf8Status::invalid, 1);          // overlong
  expect_step("\xe0\x9f\xbf", Utf8Status::invalid, 1);      // overlong
  expect_step("\xf0\x8f\xbf\xbf", Utf8Status::invalid, 1);  // overlong
  expect_step("\xed\xa0\x80", Utf8Status::invalid, 1);      // a surrogate
  expect_step("\xf4\x90\x80\x80", Utf8Status::invalid, 1);  // past the last code point
  expect_step("\xf5\x80\x80\x80", Utf8Status::invalid, 1);
  expect_step("\xff", Utf8Status::invalid, 1);
  expect_step("\xe2\x82x", Utf8Status::invalid, 2);  // the two bytes are one error
}

TEST(Utf8, RecognizesAnIncompleteCharacter) {
  expect_step("\xc3", Utf8Status::incomplete, 1);
  expect_step("\xe2\x82", Utf8Status::incomplete, 2);
  expect_step("\xf0\x9f\xa6", Utf8Status::incomplete, 3);
}

// Against a simple encoder: the valid characters are exactly the encodings of code points.
TEST(Utf8, AgreesWithTheDefinitionForEveryCodePoint) {
  for (uint32_t c = 0x80; c < 0x110000; ++c) {
    std::string text;
    if (c < 0x800) {
      text = {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      text = {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
              static_cast<char>(0x80 | (c & 63))};
    } else {
      text = {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
              static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    const Utf8Char next = next_utf8(text);
    ASSERT_EQ(next.status == Utf8Status::valid && next.n_bytes == text.size(), !surrogate) << c;
  }
}

TEST(Utf8, FindsTheFirstMistake) {
  EXPECT_EQ(valid_utf8_prefix(""), 0u);
  EXPECT_EQ(valid_utf8_prefix("plain ASCII that is longer than eight bytes"), 43u);
  EXPECT_EQ(valid_utf8_prefix("plain ASCII \xc3\xa9\xff tail"), 14u);
  EXPECT_EQ(valid_utf8_prefix("12345678\xe2\x82"), 8u);
}

}  // namespace
}  // namespace tandem
