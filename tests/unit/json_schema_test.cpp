// Schemas: sampled outputs validate, unsupported keywords are rejected by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "sample/json_schema/json_schema.h"
#include "support/grammar_text.h"
#include "support/schema_validator.h"
#include "support/schemas.h"

namespace tandem {
namespace {

using test::accepts;
using testing::HasSubstr;

bool schema_accepts(const std::string& schema, std::string_view text) {
  return accepts(json_schema_to_gbnf(schema), text);
}

std::string schema_refusal(const std::string& schema) {
  try {
    Grammar::parse(json_schema_to_gbnf(schema));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_file);
    return e.what();
  }
  return "";
}

// Samples n texts of a grammar at temperature 1.5 with different chains.
std::vector<std::string> sample_texts(const std::string& gbnf, size_t n, uint32_t seed) {
  static const test::GrammarVocab vocab = test::grammar_vocab();
  std::mt19937 random(seed);
  SamplerParams params;
  params.temp = 1.5f;
  params.seed = seed;
  params.grammar = Grammar::parse(gbnf);
  if (seed % 3 == 1) params.top_k = 0;
  if (seed % 3 == 2) params.mirostat = 2;
  Sampler sampler(params, vocab.model());
  std::vector<std::string> texts;
  for (size_t i = 0; i < n; ++i) {
    texts.push_back(test::sample_text(vocab, sampler, random));
    sampler.reset();
  }
  return texts;
}

TEST(JsonSchema, SampledOutputsParseAndValidate) {
  ASSERT_GE(std::size(test::kSchemas), 30u);
  const size_t n = (1000 + std::size(test::kSchemas) - 1) / std::size(test::kSchemas);
  for (size_t i = 0; i < std::size(test::kSchemas); ++i) {
    SCOPED_TRACE(test::kSchemas[i]);
    const test::SchemaValidator validator(nlohmann::json::parse(test::kSchemas[i]));
    for (const std::string& text :
         sample_texts(json_schema_to_gbnf(test::kSchemas[i]), n, static_cast<uint32_t>(i))) {
      const auto value = nlohmann::json::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << text;
      ASSERT_TRUE(validator.valid(value)) << text;
    }
  }
}

// The grammar of JSON as it is usually written.
TEST(JsonSchema, TheJsonGrammarGivesJson) {
  const std::string json = R"(
    root   ::= object
    value  ::= object | array | string | number | ("true" | "false" | "null") ws
    object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
    array  ::= "[" ws ( value ("," ws value)* )? "]" ws
    string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-cA-C] [0-9a-fA-F]{3}) )* "\"" ws
    number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,1})? ws
    # optional space, but not for ever
    ws ::= | " " | "\n" [ \t]{0,20}
  )";
  for (const std::string& text : sample_texts(json, 1000, 3)) {
    ASSERT_TRUE(nlohmann::json::accept(text)) << text;
  }
}

TEST(JsonSchema, IntegersBetweenBounds) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const int range = round < 20 ? 40 : 30000;
    const int a = static_cast<int>(random() % static_cast<unsigned>(range)) - range / 2;
    const int b = a + static_cast<int>(random() % static_cast<unsigned>(range));
    GrammarStates states(Grammar::parse(json_schema_to_gbnf(
        R"({"type":"integer","minimum":)" + std::to_string(a) + R"(,"maximum":)" + std::to_string(b) + "}")));
    for (const int near : {a, b, 0, 10, 100, 1000, -10, -100, 9999}) {
      for (int x = near - 12; x <= near + 12; ++x) {
        EXPECT_EQ(accepts(states, std::to_string(x)), a <= x && x <= b) << a << " " << x << " " << b;
      }
    }
    EXPECT_FALSE(accepts(states, "00"));
    EXPECT_FALSE(accepts(states, "1.5"));
  }
  EXPECT_TRUE(schema_accepts(R"({"type":"integer","minimum":5})", "123456789012"));
  EXPECT_FALSE(schema_accepts(R"({"type":"integer","exclusiveMinimum":5})", "5"));
  EXPECT_TRUE(schema_accepts(R"({"type":"integer","exclusiveMinimum":4.5})", "5"));
}

TEST(JsonSchema, NumbersBetweenBounds) {
  std::mt19937 random(6);
  const auto text_of = [](int thousandths) {
    std::string text = std::to_string(std::abs(thousandths) / 1000);
    std::string fraction = std::to_string(1000 + std::abs(thousandths) % 1000).substr(1);
    while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
    if (!fraction.empty()) text += "." + fraction;
    return (thousandths < 0 ? "-" : "") + text;
  };
  for (int round = 0; round < 80; ++round) {
    const int range = round % 2 == 0 ? 3000 : 40000;
    const int a = static_cast<int>(random() % static_cast<unsigned>(range)) - range / 2;
    const int b = a + 1 + static_cast<int>(random() % static_cast<unsigned>(range));
    const bool open_low = random() % 2, open_high = random() % 2;
    const std::string schema = std::string(R"({"type":"number",)") +
                               (open_low ? R"("exclusiveMinimum":)" : R"("minimum":)") + text_of(a) +
                               (open_high ? R"(,"exclusiveMaximum":)" : R"(,"maximum":)") + text_of(b) + "}";
    GrammarStates states(Grammar::parse(json_schema_to_gbnf(schema)));
    for (const int near : {a, b, 0, 1000, -1000, (a + b) / 2}) {
      for (int x = near - 25; x <= near + 25; ++x) {
        if (x == 0) continue;
        const bool inside = (open_low ? a < x : a <= x) && (open_high ? x < b : x <= b);
        EXPECT_EQ(accepts(states, text_of(x)), inside) << schema << " " << text_of(x);
      }
    }
  }
}

TEST(JsonSchema, ObjectsHaveTheirPropertiesInOrder) {
  const std::string schema =
      R"({"properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"}},"required":["b"]})";
  EXPECT_TRUE(schema_accepts(schema, R"({"b":null})"));
  EXPECT_TRUE(schema_accepts(schema, R"({"a": null, "b": null, "c": null})"));
  EXPECT_TRUE(schema_accepts(schema, R"({"b":null,"c":null})"));
  EXPECT_FALSE(schema_accepts(schema, R"({"a":null})"));
  EXPECT_FALSE(schema_accepts(schema, R"({"b":null,"a":null})"));
  EXPECT_FALSE(schema_accepts(schema, R"({"b":null,})"));
  EXPECT_FALSE(schema_accepts(schema, R"({"b":null,"x":null})"));
  const std::string optional = R"({"properties":{"a":{"type":"null"},"b":{"type":"null"}}})";
  for (const char* text : {"{}", R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"}) {
    EXPECT_TRUE(schema_accepts(optional, text)) << text;
  }
  EXPECT_FALSE(schema_accepts(optional, R"({,"b":null})"));
  const std::string others =
      R"({"properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"boolean"}})";
  for (const char* text :
       {R"({"ab":null,"abc":true})", R"({"a":true})", R"({"":true,"b":false})", R"({"é":true})"}) {
    EXPECT_TRUE(schema_accepts(others, text)) << text;
  }
  for (const char* text : {R"({"ab":true})", R"({"\u0061b":true})", R"({"ab":null,"ab":true})"}) {
    EXPECT_FALSE(schema_accepts(others, text)) << text;
  }
}

TEST(JsonSchema, PatternsMatchWhereTheySay) {
  const auto matches = [](const std::string& pattern, const std::string& json) {
    return schema_accepts(nlohmann::json{{"pattern", pattern}}.dump(), json);
  };
  EXPECT_TRUE(matches("b", "\"abc\""));
  EXPECT_FALSE(matches("^b", "\"abc\""));
  EXPECT_TRUE(matches("^a|c$", "\"xc\""));
  EXPECT_TRUE(matches("^a|c$", "\"ax\""));
  EXPECT_FALSE(matches("^a|c$", "\"xcx\""));
  EXPECT_TRUE(matches("^\\d{2,3}\\w\\s$", "\"12_ \""));
  EXPECT_TRUE(matches("^\\s$", "\"\\t\""));
  EXPECT_TRUE(matches("^[\"\\\\]+$", "\"\\\"\\\\\""));
  EXPECT_FALSE(matches("^[\"\\\\]+$", "\"\"\""));
  EXPECT_TRUE(matches("^(?:ab|c)*?d$", "\"abccabd\""));
  EXPECT_TRUE(matches("^[^a-c]$", "\"\xc3\xa9\""));
  EXPECT_FALSE(matches("^.$", "\"\\n\""));
  EXPECT_TRUE(matches("^[\\]a-]$", "\"-\""));
  EXPECT_TRUE(matches("^\\u00e9\\x41$",
                      "\"\xc3\xa9"
                      "A\""));
  EXPECT_TRUE(schema_accepts(R"({"pattern":"^a{2,3}$","minLength":2,"maxLength":3})", "\"aa\""));
}

TEST(JsonSchema, UnsupportedKeywordsAreRejectedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not":{}})", "'not'"},
      {R"({"type":"array","uniqueItems":true})", "'uniqueItems'"},
      {R"({"type":"array","contains":{}})", "'contains'"},
      {R"({"if":{},"then":{}})", "'if'"},
      {R"({"patternProperties":{}})", "'patternProperties'"},
      {R"({"properties":{"a":{"multipleOf":3}}})", "#/properties/a: keyword 'multipleOf'"},
      {R"({"type":"strnig"})", "strnig"},
      {R"({"type":"string","format":"iban"})", "format 'iban'"},
      {R"j({"pattern":"(?=a)"})j", "(?"},
      {R"({"pattern":"(a)\\1"})", "escape"},
      {R"({"pattern":"\\bword"})", "escape"},
      {R"({"pattern":"[a"})", "]"},
      {R"({"pattern":"(a"})", ")"},
      {R"j({"pattern":"a)"})j", "("},
      {R"({"pattern":"a{1000000}"})", "repetition"},
      {R"({"pattern":"a+","maxLength":3})", "maxLength"},
      {R"({"maxLength":1000000})", "#/maxLength"},
      {R"({"minLength":-1})", "#/minLength"},
      {R"({"minLength":5,"maxLength":3})", "minLength is larger"},
      {R"({"minimum":5,"maximum":3})", "between"},
      {R"({"minimum":1e300})", "1e15"},
      {R"({"$ref":"http://example.com/x"})", "within the document"},
      {R"({"$ref":"#/$defs/none"})", "does not exist"},
      {R"({"$ref":"#"})", "back to themselves"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "left recursion"},
      {R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", "no end"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "branches 0 and 1"},
      {R"({"oneOf":[{"type":"object","properties":{"a":{}}},{"type":"object","properties":{"b":{}}}]})",
       "branches 0 and 1"},
      {R"({"enum":[]})", "no value"},
      {R"({"enum":["a"],"minLength":3})", "'minLength'"},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "two different 'pattern'"},
      {R"({"type":"string","allOf":[{"type":"null"}]})", "no value"},
      {R"({"properties":{"a":false},"required":["a"]})", "'a'"},
      {R"({"minProperties":2})", "minProperties"},
      {R"({"properties":[]})", "#/properties"},
      {R"({"required":"a"})", "#/required"},
      {R"({"type":"array","items":[{}]})", "prefixItems"},
      {"false", "no value"},
      {"3", "a schema must be"},
      {"{", "invalid JSON"},
      {"", "invalid JSON"},
      {R"({"enum":3})", "#/enum"},
      {R"({"allOf":[{"required":3},{"required":["a"]}]})", "wrong value"},
  };
  for (const auto& [schema, expected] : cases)
    EXPECT_THAT(schema_refusal(schema), HasSubstr(expected)) << schema;
}

TEST(JsonSchema, HostileSizesAreRefused) {
  const auto nested = [](size_t n) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += R"({"items":)";
    return text + "{}" + std::string(n, '}');
  };
  EXPECT_EQ(schema_refusal(nested(90)), "");
  EXPECT_THAT(schema_refusal(nested(10000)), HasSubstr("nested more than"));
  EXPECT_THAT(schema_refusal(std::string(1 << 20, ' ')), HasSubstr("the limit is"));
  // Doubles in size with each reference.
  std::string doubling = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 25; ++i) {
    const std::string next = R"({"$ref":"#/$defs/)" + std::to_string(i + 1) + "\"}";
    doubling += "\"" + std::to_string(i) + R"(":{"allOf":[)" + next + "," + next + "]},";
  }
  EXPECT_THAT(schema_refusal(doubling + R"("25":{"type":"null"}}})"), HasSubstr("too many expansions"));
  // A long chain of references costs no stack.
  std::string chain = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 3000; ++i) {
    chain += "\"" + std::to_string(i) + R"(":{"type":"array","items":{"$ref":"#/$defs/)" +
             std::to_string(i + 1) + "\"}},";
  }
  EXPECT_EQ(schema_refusal(chain + R"("3000":{"type":"null"}}})"), "");
}

TEST(JsonSchema, ComposedSchemas) {
  EXPECT_TRUE(schema_accepts(R"({"allOf":[{"type":["integer","null"]},{"minimum":3}],"maximum":5})", "4"));
  EXPECT_TRUE(schema_accepts(R"({"allOf":[{"type":["integer","null"]},{"minimum":3}],"maximum":5})", "null"));
  EXPECT_FALSE(schema_accepts(R"({"allOf":[{"type":["integer","null"]},{"minimum":3}],"maximum":5})", "6"));
  const std::string closed =
      R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})";
  EXPECT_TRUE(schema_accepts(closed, R"({"a":1})"));
  EXPECT_FALSE(schema_accepts(closed, R"({"b":1})"));
  EXPECT_TRUE(
      schema_accepts(R"({"oneOf":[{"type":"string"},{"type":"integer"},{"enum":[null,true]}]})", "true"));
  EXPECT_TRUE(
      schema_accepts(R"({"oneOf":[{"required":["a"],"properties":{"a":{"type":"null"}},"type":"object"},
      {"required":["b"],"properties":{"b":{"type":"null"}},"type":"object"}]})",
                     R"({"b":null})"));
  EXPECT_TRUE(schema_accepts(R"({"$defs":{"a/b":{"type":"null"}},"$ref":"#/$defs/a~1b"})", "null"));
}

}  // namespace
}  // namespace tandem
