// Limits of JSON that a stranger may have written.
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using testing::HasSubstr;

std::string json_refusal(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "f.json", ErrorCode::usage, limits);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    return e.what();
  }
}

std::string nested(size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(Json, LimitsDepth) {
  EXPECT_EQ(json_refusal(nested(200)), "");
  EXPECT_EQ(json_refusal(nested(201)), "f.json: JSON nested more than 200 deep");
  EXPECT_EQ(json_refusal(nested(5), {.max_depth = 5}), "");
  EXPECT_THAT(json_refusal(R"({"a":{"b":[1]}})", {.max_depth = 2}), HasSubstr("more than 2 deep"));
  EXPECT_EQ(json_refusal(R"(["[[[[", "\\\"[[[", "]"])", {.max_depth = 1}), "");  // brackets in strings
  EXPECT_THAT(json_refusal(std::string(10'000'000, '[')), HasSubstr("nested"));
  EXPECT_TRUE(parse_json_or_null(nested(100000)).is_null());
}

TEST(Json, LimitsTheNumberOfValues) {
  EXPECT_EQ(json_refusal("[1,2,3]", {.max_values = 7}), "");
  EXPECT_THAT(json_refusal("[1,2,3,4]", {.max_values = 7}), HasSubstr("more than 7 values"));
  EXPECT_EQ(json_refusal(R"({"a": 1, "b": []})", {.max_values = 18}), "");
  EXPECT_THAT(json_refusal(R"({"a": 1, "b": []})", {.max_values = 17}), HasSubstr("more than 17 values"));
  std::string many = "[[]";
  for (int i = 0; i < (1 << 22); ++i) many += ",[]";
  EXPECT_THAT(json_refusal(many + "]"), HasSubstr("more than 16777216 values"));
}

TEST(Json, ErrorsAreInPlainWords) {
  const std::string text = json_refusal("{\n  \"a\": }");
  EXPECT_THAT(text, testing::StartsWith("f.json: invalid JSON: line 2, column 8:"));
  EXPECT_THAT(text, testing::Not(HasSubstr("exception")));
  EXPECT_THAT(json_refusal("{\"a\": }"), testing::StartsWith("f.json: invalid JSON: column 7:"));
  EXPECT_THROW(parse_json("", ""), Error);
  EXPECT_EQ(parse_json<nlohmann::ordered_json>(R"({"b":1,"a":2})", "").dump(), R"({"b":1,"a":2})");
  EXPECT_TRUE(parse_json_or_null("{").is_null());
}

}  // namespace
}  // namespace tandem
