// The configuration file: what it sets, in which order, and how its mistakes are named.
#include "tools/options/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"
#include "tools/options/options.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

class Config : public testing::Test {
 protected:
  struct Given : CommandOptions {
    SamplerParams sampling;
    std::string prompt, system, system_file;
    Words stops;
  };

  std::unique_ptr<CLI::App> make_program(Given& g) {
    auto app = make_app("test", "tandem");
    app->require_subcommand(1);
    for (const char* name : {"run", "chat"}) {
      CLI::App* command = app->add_subcommand(name, "runs a model");
      add_model_options(*command, g);
      add_context_options(*command, g.engine.context, g.flash_attention);
      add_sampling_options(*command, g.sampling);
      text(*command, "-p,--prompt", g.prompt, "TEXT", "the prompt");
      repeated(*command, "-r,--reverse-prompt", "TEXT", "stop",
               [&g](const Words& words) { g.stops = words; });
      if (std::string(name) == "run") continue;
      text(*command, "--system-prompt", g.system, "TEXT", "the system prompt");
      text(*command, "--system-prompt-file", g.system_file, "FILE", "the system prompt");
    }
    add_config_options(*app);
    return app;
  }

  // Parses with this file; arguments after "run".
  Given parse(const std::string& file, Words arguments, const std::string& command = "run") {
    test::write_file(path_, file);
    arguments.insert(arguments.begin(), {command, "--config", path_});
    Given g;
    parse_arguments(*make_program(g), arguments);
    return g;
  }

  std::string mistake(const std::string& file, const Words& arguments = {"x.gguf"}) {
    try {
      parse(file, arguments);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file);
      const std::string text = e.what();
      EXPECT_EQ(text.find('\n'), std::string::npos);
      const size_t at = text.find(path_);
      EXPECT_NE(at, std::string::npos) << text;
      return at == std::string::npos ? text : std::string(text).replace(at, path_.size(), "FILE");
    }
    ADD_FAILURE() << "accepted: " << file;
    return "";
  }

  test::TempDir folder_;
  std::string path_ = folder_.path("config.ini");
};

TEST_F(Config, SetsOptions) {
  const Given g = parse(
      "# a comment\n; another\n\nctx-size = 4096\ntemp=0.5   # warm\r\n  top_k = 7\nmlock = on\nno-mmap = "
      "yes\n"
      "prompt = \"  two # words ; \"\n",
      {"x.gguf"});
  EXPECT_EQ(g.engine.context.n_ctx, 4096);
  EXPECT_EQ(g.sampling.temp, 0.5f);
  EXPECT_EQ(g.sampling.top_k, 7);
  EXPECT_TRUE(g.engine.model.open.mlock);
  EXPECT_FALSE(g.engine.model.open.mmap);
  EXPECT_EQ(g.prompt, "  two # words ; ");
}

TEST_F(Config, TheOrderIsCommandLineEnvironmentModelCommandGeneral) {
  const std::string file =
      "ctx-size = 1\ntemp = 0.1\ntop-k = 1\nseed = 1\nbatch-size = 1\n"
      "[run]\nctx-size = 2\ntemp = 0.2\ntop-k = 2\nseed = 2\n"
      "[chat]\nctx-size = 9\nbatch-size = 9\n"
      "[model *x*]\nctx-size = 3\ntemp = 0.3\ntop-k = 3\n";
  setenv("TANDEM_ARG_TEMP", "0.4", 1);
  const Given g = parse(file, {"x.gguf", "-c", "5"});
  unsetenv("TANDEM_ARG_TEMP");
  EXPECT_EQ(g.engine.context.n_ctx, 5);
  EXPECT_EQ(g.sampling.temp, 0.4f);
  EXPECT_EQ(g.sampling.top_k, 3);
  EXPECT_EQ(g.sampling.seed, 2);
  EXPECT_EQ(g.engine.context.n_batch, 1);
  EXPECT_EQ(parse(file, {"other.gguf"}).sampling.top_k, 2);
}

TEST_F(Config, ASectionMatchesThePathTheNameOrTheHubName) {
  EXPECT_TRUE(matches_model("*qwen3*", "/models/Qwen3-8B-Q4_K_M.gguf"));
  EXPECT_TRUE(matches_model("qwen3-8b-q4_k_m.gguf", "/models/Qwen3-8B-Q4_K_M.gguf"));
  EXPECT_TRUE(matches_model("Qwen3-8B-Q4_K_M", "/models/Qwen3-8B-Q4_K_M.gguf"));
  EXPECT_TRUE(matches_model("/models/*", "/models/Qwen3-8B-Q4_K_M.gguf"));
  EXPECT_TRUE(matches_model("user/repo:*", "user/repo:Q8_0"));
  EXPECT_FALSE(matches_model("qwen3", "/models/Qwen3-8B-Q4_K_M.gguf"));
  EXPECT_FALSE(matches_model("*llama*", "/models/Qwen3-8B-Q4_K_M.gguf"));
}

TEST_F(Config, LaterSectionsOfAModelComeFirst) {
  EXPECT_EQ(parse("[model *]\ntop-k = 1\n[model x*]\ntop-k = 2\n", {"x.gguf"}).sampling.top_k, 2);
}

TEST_F(Config, TheFileCanNameTheModel) {
  const std::string file = "model = default.gguf\n[model default*]\ntop-k = 3\n";
  const Given g = parse(file, {"hello"});
  EXPECT_EQ(g.engine.model.path, "default.gguf");
  EXPECT_EQ(g.prompt, "hello");
  EXPECT_EQ(g.sampling.top_k, 3);
  EXPECT_EQ(parse(file, {"x.gguf"}).engine.model.path, "x.gguf");
  const char* home = std::getenv("HOME");
  if (home) {
    EXPECT_EQ(parse("model = ~/m.gguf\n", {"hello"}).engine.model.path, std::string(home) + "/m.gguf");
  }
}

TEST_F(Config, OptionsOfOtherCommandsAreSkipped) {
  EXPECT_EQ(parse("system-prompt = Be brief.\ntop-k = 3\n", {"x.gguf"}).sampling.top_k, 3);
  EXPECT_EQ(parse("system-prompt = Be brief.\n", {"x.gguf"}, "chat").system, "Be brief.");
}

TEST_F(Config, OptionsThatExcludeEachOtherAreReplaced) {
  const Given g = parse("[chat]\nsystem-prompt = Be brief.\n", {"x.gguf", "-sysf", "f"}, "chat");
  EXPECT_EQ(g.system, "");
  EXPECT_EQ(g.system_file, "f");
  const Given both = parse("grammar = root ::= \"a\"\n", {"x.gguf", "-j", "{}"});
  EXPECT_NE(both.sampling.grammar, nullptr);
}

TEST_F(Config, RepeatedOptionsAddUp) {
  EXPECT_EQ(parse("reverse-prompt = a\nreverse-prompt = b\n", {"x.gguf"}).stops, (Words{"a", "b"}));
  EXPECT_EQ(parse("reverse-prompt = a\n", {"x.gguf", "-r", "c"}).stops, (Words{"c"}));
}

TEST_F(Config, MistakesAreNamedWithTheirLine) {
  EXPECT_EQ(mistake("\nctx-sise = 5\n"), "FILE:2: unknown option 'ctx-sise'; did you mean 'ctx-size'?");
  EXPECT_EQ(mistake("ctk = q8_0"), "FILE:1: unknown option 'ctk'; did you mean 'cache-type-k'?");
  EXPECT_EQ(mistake("\n\nctx-size = many\n"), "--ctx-size: 'many' is not a whole number (set by FILE:3)");
  EXPECT_EQ(mistake("threads\n"), "FILE:1: 'threads' is not a setting such as ctx-size = 8192");
  EXPECT_EQ(mistake("= 3\n"), "FILE:1: '= 3' is not a setting such as ctx-size = 8192");
  EXPECT_EQ(mistake("seed =\n"), "FILE:1: seed has no value");
  EXPECT_EQ(mistake("[chta]\n"),
            "FILE:1: unknown section [chta]: needed [COMMAND] or [model NAME]; did you mean "
            "'chat'?");
  EXPECT_EQ(mistake("[chat\n"), "FILE:1: '[chat' is not a section such as [chat]");
  EXPECT_EQ(mistake("[run]\nsystem-prompt = x\n"), "FILE:2: 'system-prompt' is not an option of run");
  EXPECT_EQ(mistake("[model x]\nmodel = y.gguf\n"), "FILE:2: model cannot be in a section for a model");
  EXPECT_EQ(mistake("prompt = \"open\n"), "FILE:1: a quote is not closed");
  EXPECT_EQ(mistake("prompt = \"a\" b\n"), "FILE:1: found 'b' after the closing quote");
  EXPECT_EQ(mistake("seed = 1\nprompt = caf\xe9\n"), "FILE:2: found bytes that are not UTF-8");
  EXPECT_THAT(mistake("[chat]\n[run]\nmlock = maybe\n"), HasSubstr("FILE:3"));
}

TEST_F(Config, AMissingFileThatWasNamedIsAnError) {
  Given g;
  try {
    parse_arguments(*make_program(g), {"run", "x.gguf", "--config", folder_.path("none.ini")});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
  }
  EXPECT_NO_THROW(parse_arguments(*make_program(g), {"run", "x.gguf", "--no-config"}));
}

TEST_F(Config, HelpIgnoresABadFile) {
  test::write_file(path_, "nonsense\n");
  Given g;
  EXPECT_THROW(parse_arguments(*make_program(g), {"run", "--config", path_, "--help"}), CLI::Success);
}

// The program: where it looks for the file.
TEST_F(Config, TheProgramReadsItFromTheUsualPlaces) {
  TANDEM_NEED_BINARY();
  const std::string model = folder_.path("m.gguf");
  test::tiny_llama().write(model);
  const auto run = [&](const std::string& environment, const std::string& arguments) {
    return test::shell(
        "env -u TANDEM_CONFIG -u XDG_CONFIG_HOME HOME='" + folder_.path("") + "' " + environment,
        "run " + arguments + " '" + model + "' 'a b' --temp 0 </dev/null 2>&1");
  };
  EXPECT_THAT(run("", "").out, testing::Not(HasSubstr("generated 2 tokens")));
  EXPECT_EQ(
      test::shell("mkdir -p '" + folder_.path(".config/tandem") + "' '" + folder_.path("x/tandem") + "';",
                  "--version")
          .exit_code,
      0);
  test::write_file(folder_.path(".config/tandem/config.ini"), "n-predict = 2\nignore-eos = on\n");
  test::write_file(folder_.path("x/tandem/config.ini"), "n-predict = 3\nignore-eos = on\n");
  test::write_file(path_, "n-predict = 4\nignore-eos = on\n");
  EXPECT_THAT(run("", "").out, HasSubstr("generated 2 tokens"));
  EXPECT_THAT(run("XDG_CONFIG_HOME='" + folder_.path("x") + "'", "").out, HasSubstr("generated 3 tokens"));
  EXPECT_THAT(run("TANDEM_CONFIG='" + path_ + "'", "").out, HasSubstr("generated 4 tokens"));
  EXPECT_THAT(run("TANDEM_CONFIG= ", "-n 5 --ignore-eos").out, HasSubstr("generated 5 tokens"));
  EXPECT_THAT(run("", "--no-config -n 6 --ignore-eos").out, HasSubstr("generated 6 tokens"));
  EXPECT_THAT(run("", "--config '" + path_ + "'").out, HasSubstr("generated 4 tokens"));
  test::write_file(path_, "\nn-predickt = 4\n");
  const auto wrong = run("TANDEM_CONFIG='" + path_ + "'", "");
  EXPECT_EQ(wrong.exit_code, 3);
  EXPECT_THAT(wrong.out, HasSubstr("config.ini:2: unknown option 'n-predickt'; did you mean 'n-predict'?"));
}

}  // namespace
}  // namespace tandem::tools
