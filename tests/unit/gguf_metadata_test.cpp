#include "gguf/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "support/errors.h"

namespace tandem {
namespace {

using test::error_of;
using testing::ElementsAre;

TEST(Metadata, IntegersConvertWithinTheirRange) {
  Metadata m("f.gguf");
  m.set("big", Value(uint64_t{1} << 40));
  m.set("minus", Value(int8_t{-1}));
  m.set("ok", Value(int64_t{255}));
  EXPECT_EQ(m.get<uint64_t>("big"), uint64_t{1} << 40);
  EXPECT_EQ(m.get<int64_t>("minus"), -1);
  EXPECT_EQ(m.get<uint8_t>("ok"), 255);
  EXPECT_EQ(m.get<int16_t>("ok"), 255);
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get<uint32_t>("big"); }),
            "f.gguf: metadata big: found u64 1099511627776, needed an integer from 0 to 4294967295");
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get<uint64_t>("minus"); }),
            "f.gguf: metadata minus: found i8 -1, needed an integer from 0 to 18446744073709551615");
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get<int8_t>("ok"); }),
            "f.gguf: metadata ok: found i64 255, needed an integer from -128 to 127");
}

TEST(Metadata, KindsDoNotConvert) {
  Metadata m("f");
  m.set("f32", Value(1.5f));
  m.set("bool", Value(true));
  m.set("text", Value("7"));
  m.set("list", Value(std::vector<float>{1, 2}));
  EXPECT_EQ(m.get<double>("f32"), 1.5);
  EXPECT_EQ(m.get<bool>("bool"), true);
  EXPECT_EQ(m.get<std::string>("text"), "7");
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get<int>("f32"); }),
            "f: metadata f32: found f32 1.5, needed an integer from -2147483648 to 2147483647");
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get<float>("bool"); }),
            "f: metadata bool: found bool true, needed f32 or f64");
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get<int>("text"); }),
            "f: metadata text: found string, needed an integer from -2147483648 to 2147483647");
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get<bool>("list"); }),
            "f: metadata list: found array of 2 f32, needed bool");
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get<std::string>("bool"); }),
            "f: metadata bool: found bool, needed a string");
}

TEST(Metadata, AbsentKeys) {
  Metadata m("f");
  EXPECT_EQ(m.get_or<uint32_t>("none", 9), 9u);
  EXPECT_EQ(m.get_optional<float>("none"), std::nullopt);
  EXPECT_EQ(m.find("none"), nullptr);
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get<float>("none"); }),
            "f: metadata none: found nothing, needed f32 or f64");
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get<std::string>("none"); }),
            "f: metadata none: found nothing, needed a string");
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get_strings("none"); }),
            "f: metadata none: found nothing, needed array of string");
  m.set("wrong", Value("text"));
  EXPECT_THROW(m.get_or<uint32_t>("wrong", 9), Error);
}

TEST(Metadata, Arrays) {
  Metadata m("f");
  m.set("floats", Value(std::vector<float>{1, 2.5f}));
  m.set("ints", Value(std::vector<int32_t>{-1, 300}));
  m.set("strings", Value(std::vector<std::string>{"a", "", "ccc"}));
  const ArrayView<float> floats = m.get_array<float>("floats");
  EXPECT_THAT(std::vector<float>(floats.begin(), floats.end()), ElementsAre(1.0f, 2.5f));
  EXPECT_THAT(m.get_vector<int64_t>("ints"), ElementsAre(-1, 300));
  EXPECT_THAT(m.get_vector<double>("floats"), ElementsAre(1.0, 2.5));
  EXPECT_THAT(m.get_strings("strings"), ElementsAre("a", "", "ccc"));
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get_array<float>("ints"); }),
            "f: metadata ints: found array of 2 i32, needed array of f32");
  EXPECT_EQ(error_of(ErrorCode::bad_file, [&] { m.get_vector<int8_t>("ints"); }),
            "f: metadata ints: found array of 2 i32 with 300, needed an array, each element an integer from "
            "-128 to 127");
  EXPECT_THROW(m.get_vector<float>("strings"), Error);
  EXPECT_THROW(m.get_strings("floats"), Error);
}

TEST(Metadata, ViewsReadAtAnyAlignment) {
  const unsigned char raw[] = {0xff, 1, 0, 0, 0, 2, 0, 0, 0};
  const Value value = Value::array_view(ValueType::u32, reinterpret_cast<const std::byte*>(raw + 1), 2);
  const ArrayView<uint32_t> view = value.elements<uint32_t>();
  EXPECT_THAT(std::vector<uint32_t>(view.begin(), view.end()), ElementsAre(1u, 2u));
}

TEST(Metadata, OrderReplaceAndRemove) {
  Metadata m("f");
  m.set("a", Value(1));
  m.set("b", Value(2));
  m.set("c", Value(3));
  m.set("a", Value("new"));
  m.remove("b");
  m.remove("never was");
  ASSERT_EQ(m.entries().size(), 2u);
  EXPECT_EQ(m.entries()[0].key, "a");
  EXPECT_EQ(m.get<std::string>("a"), "new");
  EXPECT_EQ(m.get<int>("c"), 3);
  EXPECT_FALSE(m.has("b"));
}

TEST(Metadata, Overrides) {
  Metadata m("f");
  m.set("u16", Value(uint16_t{5}));
  m.set("eps", Value(1e-6f));
  m.set("text", Value(std::string("x")));
  m.apply({"u16", int64_t{77}});
  m.apply({"eps", 1e-5});
  m.apply({"flag", true});
  m.apply({"name", "a=b:c"});
  m.apply({"new", int64_t{4294967295}});
  m.apply({"wide", int64_t{-3}});
  m.apply({"text", int64_t{3}});
  m.apply({"infinite", -HUGE_VAL});
  EXPECT_EQ(m.find("u16")->type(), ValueType::u16);
  EXPECT_EQ(m.get<int>("u16"), 77);
  EXPECT_EQ(m.get<float>("eps"), 1e-5f);
  EXPECT_TRUE(m.get<bool>("flag"));
  EXPECT_EQ(m.get<std::string>("name"), "a=b:c");
  EXPECT_EQ(m.find("new")->type(), ValueType::u32);
  EXPECT_EQ(m.find("wide")->type(), ValueType::i64);
  EXPECT_EQ(m.find("text")->type(), ValueType::u32);
  EXPECT_EQ(m.get<float>("infinite"), -HUGE_VALF);
  const auto refusal = [&](const MetadataOverride& o) {
    return error_of(ErrorCode::usage, [&] { m.apply(o); });
  };
  EXPECT_EQ(refusal({"u16", int64_t{65536}}),
            "metadata_overrides: u16=65536: needed an integer that fits u16, the key's type in the file");
  EXPECT_EQ(refusal({"u16", int64_t{-1}}),
            "metadata_overrides: u16=-1: needed an integer that fits u16, the key's type in the file");
  EXPECT_EQ(refusal({"eps", 1e300}), "metadata_overrides: eps=1e+300: needed a number that fits f32");
  EXPECT_EQ(m.get<int>("u16"), 77);
}

TEST(Value, ShortText) {
  EXPECT_EQ(Value(0.1f).short_text(), "0.1");
  EXPECT_EQ(Value(uint64_t{1} << 63).short_text(), "9223372036854775808");
  EXPECT_EQ(Value("a\nb").short_text(), "a\\x0ab");
  EXPECT_EQ(Value(std::vector<float>{1, 2}).short_text(), "[2 f32] 1, 2");
  EXPECT_EQ(Value(std::vector<int32_t>(100, 7)).short_text(12), "[100 i32] 7, 7, 7, 7, ...");
  EXPECT_EQ(Value(std::vector<std::string>{"<unk>", "<s>"}).short_text(), "[2 strings] <unk>, <s>");
  EXPECT_EQ(Value(std::vector<std::string>{}).short_text(), "[0 strings]");
  EXPECT_EQ(Value(std::vector<std::string>{std::string(100, 'x')}).short_text(10), "[1 string] ...");
}

}  // namespace
}  // namespace tandem
