// Chat templates against Jinja2, byte for byte: our own, and as an extra those of real models; and `tandem template` as a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/shared_data.h"
#include "text/builtin_templates.h"
#include "text/chat_template.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::tm time_of(const std::string& text) {
  std::tm time{};
  std::istringstream(text) >> std::get_time(&time, "%Y-%m-%dT%H:%M:%S");
  timegm(&time);
  return time;
}

// The text of a template of the folder, or of a built-in one.
std::string text_of(const std::filesystem::path& folder, const std::string& name) {
  const std::string prefix = "builtin ";
  if (!name.starts_with(prefix)) return read(folder / (name + ".jinja"));
  const BuiltinTemplate* found = find_builtin_template(name.substr(prefix.size()));
  EXPECT_NE(found, nullptr) << name;
  return found == nullptr ? "" : std::string(found->text);
}

// Returns the number of renders in the folder's expected.json.
size_t expect_renders(const std::filesystem::path& folder) {
  const Json expected = Json::parse(read(folder / "expected.json"));
  RenderOptions options;
  options.bos_token = expected["bos_token"];
  options.eos_token = expected["eos_token"];
  options.tools = expected["tools"];
  options.now = time_of(expected["strftime_now_is"]);
  size_t n_renders = 0;
  for (const auto& [name, renders] : expected["renders"].items()) {
    const ChatTemplate chat_template(text_of(folder, name), name);
    for (const Json& render : renders) {
      const std::string conversation = render["conversation"];
      SCOPED_TRACE(name + ", " + conversation);
      options.add_generation_prompt = render["add_generation_prompt"];
      ++n_renders;
      try {
        const MarkedPrompt prompt =
            chat_template.render_marked(expected["conversations"][conversation], options);
        EXPECT_EQ(prompt.text, render.value("expected", "an error"));
        EXPECT_FALSE(prompt.user.empty());
      } catch (const Error& e) {
        EXPECT_TRUE(render.contains("error")) << e.what();
        EXPECT_THAT(e.what(), testing::HasSubstr(render.value("error", "")));
      }
    }
  }
  return n_renders;
}

// scripts/reference_templates.py
TEST(Templates, RenderAsJinja2Does) {
  const auto folder = test::test_data("golden/templates");
  EXPECT_EQ(expect_renders(folder), (5 + builtin_templates().size()) * 12);
}

TEST(ExtraTemplates, RenderAsJinja2Does) {
  const auto folder = test::shared_data("templates");
  TANDEM_NEED_SHARED(folder);
  EXPECT_GE(expect_renders(folder), 40u);
}

class TemplateCommand : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    write("t.jinja",
          "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
          "{% if add_generation_prompt %}<a>{% endif %}{{ strftime_now('%Y-%m-%d %H:%M') }}{{ x }}{{ tools "
          "}}\n\n");
    write("m.json", R"([{"role": "user", "content": "hé"}])");
    write("o.json", R"({"messages": [{"role": "user", "content": "hi"}], "tools": [1], "x": "y"})");
    write("bad.jinja", "a\n{% if %}");
    write("bad.json", "[{");
  }
  void write(const std::string& name, const std::string& text) { test::write_file(folder_.path(name), text); }
  test::Outcome run(const std::string& arguments) const {
    return test::shell("cd '" + folder_.path("") + "' &&", "template " + arguments + " 2>&1");
  }
  test::TempDir folder_;  // of this test alone: tests run at the same time
};

TEST_F(TemplateCommand, PrintsTheRender) {
  EXPECT_EQ(run("--file t.jinja -i m.json --now 2026-01-15T12:00:00 --bos '<s>'").out,
            "<s><user>hé<a>2026-01-15 12:00None\n");
  EXPECT_EQ(run("--file t.jinja -i o.json --now 2026-01-15 --no-generation-prompt").out,
            "<user>hi2026-01-15 00:00y[1]\n");
}

TEST_F(TemplateCommand, ReportsErrors) {
  const auto bad_template = run("--file bad.jinja -i m.json");
  EXPECT_EQ(bad_template.exit_code, 3);
  EXPECT_EQ(bad_template.out, "tandem: error: bad.jinja, line 2: unexpected '%}'\n");
  EXPECT_EQ(run("--file t.jinja -i bad.json").exit_code, 3);
  EXPECT_EQ(run("--file t.jinja -i none.json").exit_code, 5);
  for (const auto& [messages, fault] : {std::pair(R"([{"role": "user", "content": ""}, {"role": "usr"}])", "message 2 has no \"content\""),
                                        std::pair(R"([{"content": "a"}])", "message 1 has no \"role\""),
                                        std::pair("[7]", "message 1 is not an object")}) {
    write("faulty.json", messages);
    EXPECT_EQ(run("--file t.jinja -i faulty.json").out, format("tandem: error: faulty.json: {}\n", fault));
  }
  EXPECT_EQ(run("-i m.json").exit_code, 2);
  EXPECT_EQ(run("--file t.jinja -i m.json --now yesterday").exit_code, 2);
  EXPECT_EQ(run("--file t.jinja -i m.json --now 2026-02-30").exit_code, 2);
}

}  // namespace
}  // namespace tandem
