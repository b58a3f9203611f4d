// Regular expressions of users: the usual ones match, hostile ones end with an error.
#include "base/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tandem {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string regex_refusal(const std::string& pattern, const std::string& text = "blk.0.attn_q.weight") {
  try {
    (void)Regex(pattern, "-ot").found_in(text);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    return e.what();
  }
}

TEST(Regex, FindsWhatModelCardsWrite) {
  const std::string name = "blk.17.ffn_up_exps.weight";
  for (const char* pattern :
       {"exps", "\\.ffn_.*_exps\\.", "blk\\.(1[0-9]|2[0-3])\\.ffn", ".ffn_(up|down)_exps.", "^blk", "weight$",
        "ffn_up_exps=?", "[[:digit:]]+", "blk\\.\\d+\\.ffn_(?!gate)"}) {
    EXPECT_TRUE(Regex(pattern, "").found_in(name)) << pattern;
  }
  for (const char* pattern : {"blk\\.1\\.", "^ffn", "_exps$", "EXPS"}) {
    EXPECT_FALSE(Regex(pattern, "").found_in(name)) << pattern;
  }
  const Regex first("a+", "");
  const Regex copy = first;  // shares the compiled pattern
  EXPECT_TRUE(copy.found_in("caat"));
}

TEST(Regex, RefusesWhatItCannotMatch) {
  EXPECT_THAT(regex_refusal("("), AllOf(HasSubstr("-ot: '('"), HasSubstr("not a regular expression")));
  EXPECT_THAT(regex_refusal(std::string(4000, '(') + std::string(4000, ')')),
              HasSubstr("not a regular expression"));
  EXPECT_THAT(regex_refusal(std::string(20000, '(')), HasSubstr("needed at most 10000"));
  EXPECT_THAT(regex_refusal("(([a-z.]*)*)*[XY]", std::string(200, 'a')), HasSubstr("cannot be matched"));
  EXPECT_THAT(regex_refusal("(a?){65535}a{65535}"), HasSubstr("-ot: "));
  EXPECT_THAT(regex_refusal("\xff"), HasSubstr("not a regular expression"));
  EXPECT_THAT(regex_refusal("a", "\xff"), HasSubstr("cannot be matched"));
}

}  // namespace
}  // namespace tandem
