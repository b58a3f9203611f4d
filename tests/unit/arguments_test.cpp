// What people type: words without a dash, mistyped names, flags of llama.cpp, variables of both programs.
#include "tools/options/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "support/environment.h"
#include "support/gguf_bytes.h"
#include "tools/options/llama_flags.h"
#include "tools/options/options.h"
#include "tools/options/suggest.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;
using test::Variable;

struct Given : CommandOptions {
  SamplerParams sampling;
  TextOptions text;
  std::string system, reasoning, input;
  std::vector<std::string> models;
};

// An app with commands of the program's names that store what they are given.
std::unique_ptr<CLI::App> make_program(Given& g) {
  auto app = make_app("test", "tandem");
  app->require_subcommand(1);
  for (const char* name : {"run", "chat", "batch"}) {
    CLI::App* command = app->add_subcommand(name, "runs a model");
    add_model_options(*command, g);
    add_context_options(*command, g.engine.context, g.flash_attention);
    add_thread_options(*command, g.engine.devices);
    add_sampling_options(*command, g.sampling);
    add_log_options(*command, g.log);
    if (std::string(name) == "batch") {
      text(*command, "-i,--input", g.input, "FILE", "prompts");
      continue;
    }
    text(*command, "-p,--prompt", g.text.prompt, "TEXT", "the prompt");
    if (std::string(name) == "run") continue;
    text(*command, "--system-prompt", g.system, "TEXT", "the system prompt");
    text(*command, "--reasoning", g.reasoning, "show|hide|off", "the reasoning");
  }
  CLI::App* bench = app->add_subcommand("bench", "measures models");
  repeated(*bench, "-m,--model", "FILE", "models", [&g](const Words& models) { g.models = models; });
  CLI::App* split = app->add_subcommand("split", "splits");
  split->add_option("in", g.input, "the file")->required();
  add_config_options(*app);
  return app;
}

Given parse_program(const Words& arguments) {
  Given g;
  parse_arguments(*make_program(g), arguments);
  return g;
}

std::string program_refusal(const Words& arguments) {
  Given g;
  const auto app = make_program(g);
  try {
    parse_arguments(*app, arguments);
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    return e.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(Suggest, DistancesCountSwapsAsOne) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("chta", "chat"), 1u);
  EXPECT_EQ(edit_distance("tmep", "temp"), 1u);
  EXPECT_EQ(edit_distance("a", "b"), 1u);
}

TEST(Suggest, OnlyWhatIsNear) {
  const Words known = {"ctx-size", "threads", "threads-batch", "temp", "top-k", "top-p"};
  EXPECT_EQ(closest("ctx-sise", known), "ctx-size");
  EXPECT_EQ(closest("thread", known), "threads");
  EXPECT_EQ(closest("ctx", known), "ctx-size");
  EXPECT_EQ(closest("TEMP", known), "temp");
  EXPECT_EQ(closest("tpo-k", known), "top-k");
  EXPECT_EQ(closest("q8", {"f16", "q8_0", "q4_0"}), "q8_0");
  EXPECT_EQ(closest("fsh", {"bash", "zsh", "fish"}), "fish");
  EXPECT_EQ(closest("Q4_KM", {"Q4_0", "Q4_K_S", "Q4_K_M"}), "Q4_K_M");
  EXPECT_EQ(closest("nonsense", known), "");
  EXPECT_EQ(closest("x", known), "");
  EXPECT_EQ(closest("", known), "");
  EXPECT_EQ(closest("x", {"y"}), "") << "every letter would change";
  EXPECT_EQ(closest(std::string(100000, 'a'), known), "");
}

TEST(DidYouMean, OptionsCommandsAndValues) {
  EXPECT_EQ(program_refusal({"run", "-m", "x.gguf", "--ctx-sise", "8"}),
            "unknown option '--ctx-sise'; did you mean '--ctx-size'?");
  EXPECT_EQ(program_refusal({"rnu", "-m", "x.gguf"}), "unknown command 'rnu'; did you mean 'run'?");
  EXPECT_EQ(program_refusal({"run", "x.gguf", "--numa", "isolat"}),
            "--numa: 'isolat' is none of auto, distribute, isolate, numactl, off; did you mean 'isolate'?");
  EXPECT_EQ(program_refusal({"batch", "--system-prompt", "x"}),
            "unknown option '--system-prompt'; chat has it");
  EXPECT_EQ(program_refusal({"run", "-=x"}), "unknown option '-'");  // no name, only a dash
  EXPECT_EQ(program_refusal({"run", "--=x"}), "unknown option '--'");
  EXPECT_EQ(program_refusal({"-m", "x.gguf", "run"}), "-m comes after the command, as in tandem run -m");
  EXPECT_EQ(program_refusal({"story.gguf"}),
            "unknown command 'story.gguf'; to talk to a model: tandem chat story.gguf");
  EXPECT_EQ(program_refusal({"quit"}),
            "unknown command 'quit'; the commands are run, chat, batch, bench, split");
}

TEST(DidYouMean, UnderscoresAreDashes) {
  EXPECT_EQ(parse_program({"run", "x.gguf", "--ctx_size", "8"}).engine.context.n_ctx, 8);
}

TEST(Positional, TheModelAndThePrompt) {
  Given g = parse_program({"run", "x.gguf", "hi there"});
  EXPECT_EQ(g.engine.model.path, "x.gguf");
  EXPECT_EQ(g.text.prompt, "hi there");
  g = parse_program({"chat", "-c", "8", "x.gguf"});
  EXPECT_EQ(g.engine.model.path, "x.gguf");
  EXPECT_EQ(g.text.prompt, "");
  g = parse_program({"run", "-m", "x.gguf", "hello"});
  EXPECT_EQ(g.engine.model.path, "x.gguf");
  EXPECT_EQ(g.text.prompt, "hello");
  g = parse_program({"run", "hello", "-m", "x.gguf"});
  EXPECT_EQ(g.text.prompt, "hello");
  g = parse_program({"run", "-p", "hello", "x.gguf"});
  EXPECT_EQ(g.engine.model.path, "x.gguf");
  EXPECT_EQ(parse_program({"run", "x.gguf", "--", "-c"}).text.prompt, "-c");
  EXPECT_EQ(parse_program({"batch", "x.gguf", "in.jsonl"}).input, "in.jsonl");
  EXPECT_EQ(parse_program({"bench", "a.gguf", "b.gguf", "c.gguf"}).models,
            (Words{"a.gguf", "b.gguf", "c.gguf"}));
  EXPECT_EQ(parse_program({"bench", "-m", "a.gguf", "-m", "b.gguf"}).models, (Words{"a.gguf", "b.gguf"}));
  EXPECT_EQ(parse_program({"run", "user/repo:Q8_0", "hi"}).engine.model.path, "user/repo:Q8_0");
}

TEST(Positional, AWordAfterAnOptionalValueIsTheValueIfItCanBe) {
  EXPECT_EQ(parse_program({"run", "-fa", "off", "x.gguf", "hi"}).flash_attention, Toggle::off);
  const Given g = parse_program({"run", "-fa", "x.gguf", "--flash-attn", "two words"});
  EXPECT_EQ(g.flash_attention, Toggle::on);
  EXPECT_EQ(g.engine.model.path, "x.gguf");
  EXPECT_EQ(g.text.prompt, "two words");
}

TEST(Positional, AFileOfAnyNameIsAModel) {
  const test::TempDir folder;
  test::write_file(folder.path("my model.bin"), "x");
  EXPECT_EQ(parse_program({"run", folder.path("my model.bin")}).engine.model.path,
            folder.path("my model.bin"));
}

// Not that no model is given.
TEST(Positional, AWordThatCanOnlyBeAPathIsTheModel) {
  const test::TempDir folder;
  EXPECT_EQ(parse_program({"run", folder.path("")}).engine.model.path, folder.path(""));
  EXPECT_EQ(parse_program({"chat", "models/none"}).engine.model.path, "models/none");
  EXPECT_EQ(parse_program({"run", "model.ggufx"}).engine.model.path, "model.ggufx");
  const Given g = parse_program({"run", "nope", "-p", "hi"});
  EXPECT_EQ(g.engine.model.path, "nope");
  EXPECT_EQ(g.text.prompt, "hi");
}

TEST(Options, AValueOfAFlagIsQuotedWithoutControlCharacters) {
  EXPECT_EQ(program_refusal({"run", "x.gguf", "--verbose=a\x15"}), "--verbose: 'a\\x15' is not on or off");
}

TEST(Positional, WhatIsMissingIsSaid) {
  EXPECT_EQ(program_refusal({"run", "hi there"}),
            "no model is given: name its file before the prompt, as in tandem run model.gguf \"hi there\"");
  EXPECT_EQ(
      program_refusal({"run", "hello", "world"}),
      "'hello' is not a model file; a prompt of several words needs quotes, as in tandem run model.gguf "
      "\"hello world\"");
  EXPECT_EQ(program_refusal({"run", "x.gguf", "hello", "world"}),
            "unexpected argument 'world'; a prompt of several words needs quotes");
  EXPECT_EQ(program_refusal({"run", "-m", "x.gguf", "hello", "world"}),
            "unexpected argument 'world'; a prompt of several words needs quotes");
  EXPECT_THAT(program_refusal({"run", "-m", "x.gguf", "-p", "a", "b"}), HasSubstr("unexpected argument 'b'"));
  EXPECT_EQ(program_refusal({"split", "a", "b"}), "unexpected argument 'b'");
}

TEST(Positional, AModelFromTheEnvironmentLeavesTheWordForThePrompt) {
  const Variable model("TANDEM_ARG_MODEL", "env.gguf");
  Given g = parse_program({"run", "hello"});
  EXPECT_EQ(g.engine.model.path, "env.gguf");
  EXPECT_EQ(g.text.prompt, "hello");
  g = parse_program({"run", "x.gguf"});
  EXPECT_EQ(g.engine.model.path, "x.gguf");
  g = parse_program({"run", "x.gguf", "hello"});
  EXPECT_EQ(g.text.prompt, "hello");
}

TEST(LlamaFlags, HarmlessOnesAreAccepted) {
  const Given g = parse_program({"run", "x.gguf", "--prio", "2", "-kvu", "--log-colors", "auto",
                                 "--log-prefix", "-np", "1", "--no-repack", "--draft-p-min", "0.7", "-lv",
                                 "3", "--swa-full", "--perf", "--poll=50", "hello"});
  EXPECT_EQ(g.engine.model.path, "x.gguf");
  EXPECT_EQ(g.text.prompt, "hello") << "values of accepted flags are no arguments";
  EXPECT_EQ(
      parse_program({"chat", "x.gguf", "--keep", "4", "--no-display-prompt", "-cnv", "-i", "hi"}).text.prompt,
      "hi");
  EXPECT_TRUE(parse_program({"run", "x.gguf", "--mlock", "on"}).engine.model.open.mlock);
  EXPECT_FALSE(parse_program({"run", "x.gguf", "--mmap", "off"}).engine.model.open.mmap);
}

TEST(LlamaFlags, OthersSayWhatToUse) {
  for (const char* flag :
       {"--lora", "--mmproj", "-hfd", "-td", "--rpc", "-C", "-dr", "--control-vector"}) {
    EXPECT_THAT(program_refusal({"run", "x.gguf", flag, "x"}), testing::StartsWith(std::string(flag) + ": "))
        << flag;
  }
  EXPECT_THAT(program_refusal({"batch", "x.gguf", "-md", "y.gguf"}), HasSubstr("tandem run and tandem chat"));
  EXPECT_THAT(program_refusal({"run", "x.gguf", "-cnv"}), HasSubstr("tandem chat"));
  EXPECT_THAT(program_refusal({"run", "x.gguf", "-sys", "Be brief."}), HasSubstr("tandem chat"));
  EXPECT_THAT(program_refusal({"chat", "x.gguf", "-no-cnv"}), HasSubstr("tandem run"));
  EXPECT_THAT(program_refusal({"chat", "x.gguf", "--prompt-cache", "f"}), HasSubstr("--session"));
  EXPECT_THAT(program_refusal({"run", "x.gguf", "-ctk", "q5_k"}), HasSubstr("'q5_k' is none of"));
  EXPECT_EQ(program_refusal({"run", "x.gguf", "--prio"}), "--prio needs a value");
  EXPECT_THAT(program_refusal({"split", "--lora", "x"}), HasSubstr("unknown option")) << "it runs no model";
}

TEST(LlamaFlags, EverySentenceIsShortAndEndsWithoutAFullStop) {
  for (const char* command : {"run", "chat", "batch"}) {
    for (const char* flag :
         {"--lora", "-cnv", "-no-cnv", "--session", "-sp", "-fitt", "-gan", "--in-prefix"}) {
      const LlamaFlag* f = find_llama_flag(command, flag);
      if (!f || f->answer.empty()) continue;
      EXPECT_LT(f->answer.size(), 110u) << flag;
      EXPECT_NE(f->answer.back(), '.') << flag;
    }
  }
  EXPECT_EQ(find_llama_flag("run", "--nonsense"), nullptr);
  EXPECT_EQ(find_llama_flag("run", ""), nullptr);
  EXPECT_EQ(find_llama_flag("run", "-"), nullptr);
}

TEST(LlamaFlags, AReasoningBudgetOfNothingTurnsItOff) {
  EXPECT_EQ(parse_program({"chat", "x.gguf", "--reasoning-budget", "0"}).reasoning, "off");
  EXPECT_EQ(parse_program({"chat", "x.gguf", "--reasoning-budget", "-1"}).reasoning, "");
  EXPECT_THAT(program_refusal({"chat", "x.gguf", "--reasoning-budget", "100"}), HasSubstr("needed 0"));
}

TEST(LlamaFlags, ItsVariablesCountWhereOursAreUnset) {
  const Variable size("LLAMA_ARG_CTX_SIZE", "99"), batch("LLAMA_ARG_BATCH", "7"),
      mmap("LLAMA_ARG_NO_MMAP", "1");
  Given g = parse_program({"run", "x.gguf"});
  EXPECT_EQ(g.engine.context.n_ctx, 99);
  EXPECT_EQ(g.engine.context.n_batch, 7);
  EXPECT_TRUE(g.engine.context.n_batch_given);
  EXPECT_FALSE(g.engine.model.open.mmap);
  EXPECT_EQ(parse_program({"run", "x.gguf", "-c", "5"}).engine.context.n_ctx, 5);
  const Variable ours("TANDEM_ARG_CTX_SIZE", "77");
  EXPECT_EQ(parse_program({"run", "x.gguf"}).engine.context.n_ctx, 77);
  const Variable bad("LLAMA_ARG_THREADS", "many");
  EXPECT_EQ(program_refusal({"run", "x.gguf"}),
            "--threads: 'many' is not a whole number (set by LLAMA_ARG_THREADS)");
}

}  // namespace
}  // namespace tandem::tools
