// Argument vectors in, filled structs out.
#include "tools/options/options.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "support/environment.h"
#include "support/gguf_bytes.h"
#include "support/sampler_model.h"

namespace tandem::tools {
namespace {

using Arguments = std::vector<std::string>;
using test::kInf;
using test::Variable;

// An app with one command that has every option group, and the structs it fills.
struct Everything : CommandOptions {
  SamplerParams sampling;
  TextOptions text;
  bool ran = false;
};

std::unique_ptr<CLI::App> make_everything(Everything& e) {
  auto app = make_app("test", "tandem");
  app->require_subcommand(1);
  CLI::App* run = app->add_subcommand("run", "runs");
  add_model_options(*run, e);
  add_context_options(*run, e.engine.context, e.flash_attention);
  add_rope_options(*run, e.engine.model.rope);
  add_thread_options(*run, e.engine.devices);
  add_sampling_options(*run, e.sampling);
  add_text_options(*run, e.text);
  add_log_options(*run, e.log);
  run->callback([&e] { e.ran = true; });
  app->add_subcommand("other", "does nothing");
  return app;
}

Everything parse(Arguments arguments) {
  Everything e;
  const auto app = make_everything(e);
  Arguments all = {"run", "-m", "x.gguf"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  parse_arguments(*app, all);
  EXPECT_TRUE(e.ran);
  return e;
}

std::string refusal_of_all(const Arguments& all) {
  Everything e;
  const auto app = make_everything(e);
  try {
    parse_arguments(*app, all);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    EXPECT_FALSE(e.ran);
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

std::string refusal(Arguments arguments) {
  Arguments all = {"run", "-m", "x.gguf"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return refusal_of_all(all);
}

TEST(Options, DefaultsMatchLlamaCpp) {
  const Everything e = parse({});
  EXPECT_EQ(e.engine.model.path, "x.gguf");
  EXPECT_TRUE(e.engine.model.open.mmap);
  EXPECT_FALSE(e.engine.model.open.mlock);
  EXPECT_EQ(e.engine.context.n_ctx, 0);
  EXPECT_EQ(e.engine.context.n_batch, 2048);
  EXPECT_FALSE(e.engine.context.n_batch_given);
  EXPECT_EQ(e.engine.context.n_ubatch, 0);  // 512, for a mixture on the CPU more
  EXPECT_EQ(e.engine.context.k_dtype, DType::F16);
  EXPECT_EQ(e.flash_attention, Toggle::automatic);
  EXPECT_EQ(e.engine.devices.n_threads, -1);
  EXPECT_EQ(e.engine.devices.n_threads_batch, -1);
  EXPECT_EQ(e.engine.devices.numa, Numa::automatic);
  EXPECT_EQ(e.text.n_predict, -1);
  EXPECT_EQ(e.text.keep, 0);
  EXPECT_TRUE(e.text.escape);
  EXPECT_TRUE(e.text.display_prompt);
  const RopeOverrides& rope = e.engine.model.rope;
  EXPECT_FALSE(rope.scaling || rope.freq_base || rope.freq_scale || rope.n_ctx_orig);
  EXPECT_EQ(e.sampling.seed, -1);
  EXPECT_FLOAT_EQ(e.sampling.temp, 0.8f);
  EXPECT_EQ(e.sampling.dry_sequence_breakers.size(), 4u);
}

TEST(Options, ShortFormsOfSeveralLetters) {
  const Everything e =
      parse({"-ub", "64", "-tb=3", "-ctk", "q8_0", "-ctv=Q4_0", "-t", "2", "-fa", "-no-cnv", "-st"});
  EXPECT_EQ(e.engine.context.n_ubatch, 64);
  EXPECT_EQ(e.engine.context.n_deferred, 0);
  EXPECT_EQ(parse({"--defer-experts", "2"}).engine.context.n_deferred, 2);
  EXPECT_FALSE(e.engine.context.sparse_kv.on());
  EXPECT_EQ(parse({"--sparse-kv", "16,2048"}).engine.context.sparse_kv, (SparseReads{16, 2048}));
  EXPECT_EQ(e.engine.devices.n_threads_batch, 3);
  EXPECT_EQ(e.engine.devices.n_threads, 2);
  EXPECT_EQ(e.engine.context.k_dtype, DType::Q8_0);
  EXPECT_EQ(e.engine.context.v_dtype, DType::Q4_0);
  EXPECT_TRUE(e.engine.context.kv_type_layers.empty());
  EXPECT_EQ(e.engine.context.kv_rotate, Toggle::off);
  const Everything by_layer = parse({"--kv-type-layers", "0-3=q8_0/q4_0,4-=q4_0", "--kv-rotate=auto"});
  EXPECT_EQ(by_layer.engine.context.kv_type_layers.size(), 2u);
  EXPECT_TRUE(by_layer.engine.context.kv_dtype_given);
  EXPECT_EQ(by_layer.engine.context.kv_rotate, Toggle::automatic);
  EXPECT_EQ(e.flash_attention, Toggle::on);
}

TEST(Options, ValuesInEverySyntax) {
  for (const Arguments& a : std::vector<Arguments>{{"-c", "512"},
                                                   {"-c512"},
                                                   {"-c=512"},
                                                   {"--ctx-size", "512"},
                                                   {"--ctx-size=512"},
                                                   {"-c", "1", "-c", "512"}}) {
    EXPECT_EQ(parse(a).engine.context.n_ctx, 512) << a[0];
  }
  for (const Arguments& a : std::vector<Arguments>{{"-n", "-1"},
                                                   {"-n-1"},
                                                   {"-n=-1"},
                                                   {"--predict", "-1"},
                                                   {"--n-predict=-1"},
                                                   {"-n", "7", "--predict", "-1"}}) {
    EXPECT_EQ(parse(a).text.n_predict, -1) << a[0];
  }
}

TEST(Options, NegativeNumbersAreValues) {
  const Everything e = parse({"-n", "-2", "-s", "-1", "--temp", "-1", "--keep", "-1", "--top-k", "-5",
                              "--presence-penalty", "-0.5", "--repeat-last-n", "-1", "--top-nsigma", "-1.5"});
  EXPECT_EQ(e.text.n_predict, -2);
  EXPECT_EQ(e.sampling.seed, -1);
  EXPECT_EQ(e.sampling.temp, -1.0f);
  EXPECT_EQ(e.text.keep, -1);
  EXPECT_EQ(e.sampling.top_k, -5);
  EXPECT_EQ(e.sampling.presence_penalty, -0.5f);
  EXPECT_EQ(e.sampling.repeat_last_n, -1);
  EXPECT_EQ(e.sampling.top_n_sigma, -1.5f);
}

TEST(Options, AValueIsNeverParsedAsAnOption) {
  for (const std::string text : {"-fa", "-ub", "--help", "--", "-", "run", "-ctk=f16", "", "{}", "[a,b]",
                                 "a,b", "%%", "x=y", "\"quoted\"", "-5", "[]", "#", " ", "\n"}) {
    EXPECT_EQ(parse({"-p", text}).text.prompt, text);
    EXPECT_EQ(parse({"--prompt", text, "-c", "9"}).engine.context.n_ctx, 9);
    EXPECT_EQ(parse({"--prompt=" + text}).text.prompt, text);
    EXPECT_EQ(parse({"-r", text, "-r", "b"}).text.reverse_prompts, (Arguments{text, "b"})) << text;
  }
}

TEST(Options, RepeatedOptionsTakeOneValueEach) {
  const Everything e =
      parse({"-r", "User:", "--reverse-prompt", "\n", "-p", "hi", "-l", "1+2", "-l", "3-inf"});
  EXPECT_EQ(e.text.reverse_prompts, (Arguments{"User:", "\n"}));
  ASSERT_EQ(e.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(e.sampling.logit_bias[0].token, 1);
  EXPECT_EQ(e.sampling.logit_bias[0].bias, 2.0f);
  EXPECT_EQ(e.sampling.logit_bias[1].bias, -kInf);
}

TEST(Options, BareFormsAndTheirValues) {
  EXPECT_EQ(parse({"-fa"}).flash_attention, Toggle::on);
  EXPECT_EQ(parse({"-fa", "off"}).flash_attention, Toggle::off);
  EXPECT_EQ(parse({"-fa=auto"}).flash_attention, Toggle::automatic);
  EXPECT_EQ(parse({"--flash-attn", "0"}).flash_attention, Toggle::off);
  const Everything between = parse({"-fa", "-c", "8"});
  EXPECT_EQ(between.flash_attention, Toggle::on);
  EXPECT_EQ(between.engine.context.n_ctx, 8);
  EXPECT_EQ(parse({"--numa"}).engine.devices.numa, Numa::distribute);
  EXPECT_EQ(parse({"--numa", "off"}).engine.devices.numa, Numa::none);
  EXPECT_EQ(parse({"--numa", "isolate"}).engine.devices.numa, Numa::isolate);
  EXPECT_EQ(parse({"--numa", "numactl"}).engine.devices.numa, Numa::numactl);
  EXPECT_EQ(parse({}).engine.devices.isa, "");
  EXPECT_EQ(parse({"--isa", "avx2"}).engine.devices.isa, "avx2");
  EXPECT_EQ(parse({"--color"}).text.color, Toggle::on);
  EXPECT_EQ(parse({"--color", "off"}).text.color, Toggle::off);
}

TEST(Options, Flags) {
  EXPECT_FALSE(parse({"--no-mmap"}).engine.model.open.mmap);
  EXPECT_TRUE(parse({"--no-mmap", "--mmap"}).engine.model.open.mmap);
  EXPECT_TRUE(parse({"--mlock"}).engine.model.open.mlock);
  EXPECT_FALSE(parse({"--no-escape"}).text.escape);
  EXPECT_TRUE(parse({"--no-escape", "-e"}).text.escape);
  EXPECT_FALSE(parse({"--no-display-prompt"}).text.display_prompt);
  EXPECT_TRUE(parse({"--simple-io"}).text.simple_io);
  EXPECT_TRUE(parse({"--ignore-eos"}).sampling.ignore_eos);
  EXPECT_TRUE(parse({"-v", "--verbose"}).log.verbose);
  EXPECT_TRUE(parse({"--log-disable"}).log.disable);
  parse({"--warmup", "--no-warmup", "--perf", "--no-perf", "--single-turn", "--no-conversation"});
}

TEST(Options, Sampling) {
  const Everything e = parse({"--temp",
                              "0.25",
                              "--top-k",
                              "7",
                              "--top-p",
                              "0.5",
                              "--min-p",
                              "0.125",
                              "--typical",
                              "0.75",
                              "--top-nsigma",
                              "2",
                              "--repeat-penalty",
                              "1.5",
                              "--repeat-last-n",
                              "9",
                              "--presence-penalty",
                              "0.5",
                              "--frequency-penalty",
                              "0.25",
                              "--dry-multiplier",
                              "0.5",
                              "--dry-base",
                              "2",
                              "--dry-allowed-length",
                              "3",
                              "--dry-penalty-last-n",
                              "11",
                              "--xtc-probability",
                              "0.5",
                              "--xtc-threshold",
                              "0.25",
                              "--dynatemp-range",
                              "0.5",
                              "--dynatemp-exp",
                              "2",
                              "--mirostat",
                              "2",
                              "--mirostat-lr",
                              "0.5",
                              "--mirostat-ent",
                              "3",
                              "-s",
                              "4294967296",
                              "--samplers",
                              "top_k;temperature"});
  const SamplerParams& p = e.sampling;
  EXPECT_EQ(p.temp, 0.25f);
  EXPECT_EQ(p.top_k, 7);
  EXPECT_EQ(p.top_p, 0.5f);
  EXPECT_EQ(p.min_p, 0.125f);
  EXPECT_EQ(p.typical_p, 0.75f);
  EXPECT_EQ(p.top_n_sigma, 2.0f);
  EXPECT_EQ(p.repeat_penalty, 1.5f);
  EXPECT_EQ(p.repeat_last_n, 9);
  EXPECT_EQ(p.presence_penalty, 0.5f);
  EXPECT_EQ(p.frequency_penalty, 0.25f);
  EXPECT_EQ(p.dry_multiplier, 0.5f);
  EXPECT_EQ(p.dry_base, 2.0f);
  EXPECT_EQ(p.dry_allowed_length, 3);
  EXPECT_EQ(p.dry_penalty_last_n, 11);
  EXPECT_EQ(p.xtc_probability, 0.5f);
  EXPECT_EQ(p.xtc_threshold, 0.25f);
  EXPECT_EQ(p.dynatemp_range, 0.5f);
  EXPECT_EQ(p.dynatemp_exponent, 2.0f);
  EXPECT_EQ(p.mirostat, 2);
  EXPECT_EQ(p.mirostat_lr, 0.5f);
  EXPECT_EQ(p.mirostat_ent, 3.0f);
  EXPECT_EQ(p.seed, 4294967296);
  EXPECT_EQ(sampler_names(p.stages), "top_k;temperature");
  EXPECT_EQ(sampler_names(parse({"--sampling-seq", "kpt"}).sampling.stages), "top_k;top_p;temperature");
}

TEST(Options, SequenceBreakersReplaceTheDefaultOnes) {
  EXPECT_EQ(
      parse({"--dry-sequence-breaker", "a", "--dry-sequence-breaker", "b"}).sampling.dry_sequence_breakers,
      (Arguments{"a", "b"}));
  EXPECT_TRUE(parse({"--dry-sequence-breaker", "none"}).sampling.dry_sequence_breakers.empty());
}

TEST(Options, Rope) {
  const RopeOverrides r = parse({"--rope-scaling", "yarn", "--rope-scale", "4", "--rope-freq-base", "10000",
                                 "--yarn-orig-ctx", "4096", "--yarn-ext-factor", "-1", "--yarn-attn-factor",
                                 "1.5", "--yarn-beta-slow", "1", "--yarn-beta-fast", "32"})
                              .engine.model.rope;
  EXPECT_EQ(r.scaling, RopeScaling::yarn);
  EXPECT_EQ(r.freq_scale, 0.25f);
  EXPECT_EQ(r.freq_base, 10000.0f);
  EXPECT_EQ(r.n_ctx_orig, 4096);
  EXPECT_EQ(r.ext_factor, std::nullopt) << "as the model says";
  EXPECT_EQ(r.attn_factor, 1.5f);
  EXPECT_EQ(r.beta_slow, 1.0f);
  EXPECT_EQ(r.beta_fast, 32.0f);
  EXPECT_FALSE(r.self_extend.on());
  EXPECT_EQ(parse({"-gan", "4", "-gaw", "1024"}).engine.model.rope.self_extend, (SelfExtend{4, 1024}));
  EXPECT_EQ(parse({"--grp-attn-n=2"}).engine.model.rope.self_extend, (SelfExtend{2, 512}));
  EXPECT_EQ(parse({"--rope-freq-scale", "0.5"}).engine.model.rope.freq_scale, 0.5f);
  const RopeOverrides zeros =
      parse({"--rope-freq-base", "0", "--rope-freq-scale", "0", "--yarn-orig-ctx", "0"}).engine.model.rope;
  EXPECT_FALSE(zeros.freq_base || zeros.freq_scale || zeros.n_ctx_orig) << "as the model says";
}

TEST(Options, OverridesOfMetadata) {
  const auto o =
      parse({"--override-kv", "a.b=int:-7,c=bool:true,d=str:x\\,y:z", "--override-kv", "e=float:0.5"})
          .engine.model.overrides;
  ASSERT_EQ(o.size(), 4u);
  EXPECT_EQ(o[0].key, "a.b");
  EXPECT_EQ(std::get<int64_t>(o[0].value), -7);
  EXPECT_EQ(std::get<bool>(o[1].value), true);
  EXPECT_EQ(std::get<std::string>(o[2].value), "x,y:z");
  EXPECT_EQ(std::get<double>(o[3].value), 0.5);
  for (const std::string bad :
       {"", "a", "a=int", "=int:1", "a=int:x", "a=bool:yes", "a=char:1", "a=float:", "a=int:1,"}) {
    EXPECT_THROW(parse_metadata_overrides(bad), Error) << bad;
  }
}

TEST(Options, LogitBiases) {
  EXPECT_EQ(parse_logit_bias("15043+1").token, 15043);
  EXPECT_EQ(parse_logit_bias("15043-1.5").bias, -1.5f);
  EXPECT_EQ(parse_logit_bias("7+1e-3").bias, 1e-3f);
  EXPECT_EQ(parse_logit_bias("0+inf").bias, kInf);
  for (const std::string bad :
       {"", "5", "+1", "x+1", "5+", "5+x", "5--1", "5-nan", "99999999999+1", "5+1x", "-5+1"}) {
    EXPECT_THROW(parse_logit_bias(bad), Error) << bad;
  }
}

TEST(Options, Escapes) {
  EXPECT_EQ(process_escapes(R"(a\nb\tc\\d\"e\'f\x41\x0a\r)"), "a\nb\tc\\d\"e'fA\n\r");
  EXPECT_EQ(process_escapes(R"(\q \x4 \xzz \)"), R"(\q \x4 \xzz \)");
  EXPECT_EQ(process_escapes(R"(\\n)"), R"(\n)");
  EXPECT_EQ(process_escapes(""), "");
  EXPECT_EQ(process_escapes(R"(\0)"), std::string(1, '\0'));
  EXPECT_EQ(process_escapes("\\xe4\\xB8\\xad"), "中");

  Everything e = parse({"-p", R"(a\nb)", "-r", R"(\n)", "--dry-sequence-breaker", R"(\t)"});
  apply_escapes(e.text, e.sampling);
  EXPECT_EQ(e.text.prompt, "a\nb");
  EXPECT_EQ(e.text.reverse_prompts, (Arguments{"\n"}));
  EXPECT_EQ(e.sampling.dry_sequence_breakers, (Arguments{"\t"}));
  e = parse({"-p", R"(a\nb)", "--no-escape"});
  apply_escapes(e.text, e.sampling);
  EXPECT_EQ(e.text.prompt, R"(a\nb)");
}

TEST(Options, PromptsFromFiles) {
  const test::TempDir folder;
  const std::string path = folder.path("prompt.txt");
  std::ofstream(path, std::ios::binary) << "one\\n\n\n";
  EXPECT_EQ(read_prompt(parse({"-f", path}).text), "one\\n\n");
  EXPECT_EQ(read_prompt(parse({"-p", "two"}).text), "two");
  EXPECT_EQ(read_prompt(parse({"-p", "two", "-f", path}).text), "two\n\none\\n\n");
  std::remove(path.c_str());
  for (const std::string& missing : {path, folder.path("")}) {
    try {
      read_prompt(parse({"-f", missing}).text);
      ADD_FAILURE() << missing;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      EXPECT_NE(std::string(e.what()).find(missing), std::string::npos);
    }
  }
}

TEST(Options, TheEnvironmentSetsWhatIsNotGiven) {
  const Variable c("TANDEM_ARG_CTX_SIZE", "77"), k("TANDEM_ARG_CACHE_TYPE_K", "q8_0"),
      p("TANDEM_ARG_PROMPT", "--from=env"), f("TANDEM_ARG_FLASH_ATTN", "off"), t("TANDEM_ARG_TEMP", "-1"),
      n("TANDEM_ARG_N_PREDICT", "-2"), r("TANDEM_ARG_REVERSE_PROMPT", "stop"),
      b("TANDEM_ARG_LOGIT_BIAS", "1-inf"), empty("TANDEM_ARG_UBATCH_SIZE", "");
  const Everything e = parse({});
  EXPECT_EQ(e.engine.context.n_ctx, 77);
  EXPECT_EQ(e.engine.context.k_dtype, DType::Q8_0);
  EXPECT_EQ(e.text.prompt, "--from=env");
  EXPECT_EQ(e.flash_attention, Toggle::off);
  EXPECT_EQ(e.sampling.temp, -1.0f);
  EXPECT_EQ(e.text.n_predict, -2);
  EXPECT_EQ(e.text.reverse_prompts, (Arguments{"stop"}));
  EXPECT_EQ(e.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(e.engine.context.n_ubatch, 0);
  EXPECT_EQ(parse({"-c", "5"}).engine.context.n_ctx, 5);
  EXPECT_EQ(parse({"-r", "x"}).text.reverse_prompts, (Arguments{"x"}));
}

TEST(Options, TheEnvironmentSetsRequiredOptionsAndOnlyOfTheCommand) {
  const Variable m("TANDEM_ARG_MODEL", "env.gguf");
  Everything e;
  const auto app = make_everything(e);
  parse_arguments(*app, {"run"});
  EXPECT_EQ(e.engine.model.path, "env.gguf");
  const auto again = make_everything(e);
  parse_arguments(*again, {"other"});
}

TEST(Options, FlagsFromTheEnvironment) {
  for (const char* yes : {"1", "true", "on", "TRUE"}) {
    const Variable v("TANDEM_ARG_MLOCK", yes), no_mmap("TANDEM_ARG_NO_MMAP", yes);
    EXPECT_TRUE(parse({}).engine.model.open.mlock) << yes;
    EXPECT_FALSE(parse({}).engine.model.open.mmap) << yes;
    EXPECT_TRUE(parse({"--mmap"}).engine.model.open.mmap) << "given wins";
  }
  for (const char* no : {"0", "false", "off"}) {
    const Variable v("TANDEM_ARG_MMAP", no), lock("TANDEM_ARG_MLOCK", no), escape("TANDEM_ARG_NO_ESCAPE", no);
    EXPECT_FALSE(parse({}).engine.model.open.mmap) << no;
    EXPECT_FALSE(parse({}).engine.model.open.mlock) << no;
    EXPECT_TRUE(parse({}).text.escape) << no;
  }
  const Variable v("TANDEM_ARG_MMAP", "maybe");
  EXPECT_EQ(refusal({}), "TANDEM_ARG_MMAP: 'maybe' is none of 1, 0, true, false, on, off");
}

TEST(Options, RefusalsSayWhatAndWhy) {
  EXPECT_EQ(refusal({"-c", "abc"}), "--ctx-size: 'abc' is not a whole number");
  EXPECT_EQ(refusal({"-c", "1.5"}), "--ctx-size: '1.5' is not a whole number");
  EXPECT_EQ(refusal({"-c", ""}), "--ctx-size: '' is not a whole number");
  EXPECT_EQ(refusal({"-c", "-1"}), "--ctx-size: -1 is too small, it must be 0 or more");
  EXPECT_EQ(refusal({"-c", "99999999999"}),
            "--ctx-size: 99999999999 is too large, it must be 2147483647 or less");
  EXPECT_EQ(refusal({"-ub", "0"}), "--ubatch-size: 0 is too small, it must be 1 or more");
  EXPECT_EQ(refusal({"--temp", "hot"}), "--temp: 'hot' is not a number");
  EXPECT_EQ(refusal({"--temp", "nan"}), "--temp: 'nan' is not a number");
  EXPECT_EQ(refusal({"--rope-scale", "0"}), "--rope-scale: 0 is out of range, it must be above 0");
  EXPECT_EQ(refusal({"--kv-rotate", "maybe"}), "--kv-rotate: 'maybe' is none of on, off, auto");
  EXPECT_EQ(
      refusal({"--kv-type-layers", "0-3:q8_0"}),
      "--kv-type-layers 0-3:q8_0: found no '=', needed LAYERS=TYPE or LAYERS=KEYS/VALUES, with LAYERS as 3, "
      "0-3 or 4-");
  EXPECT_EQ(
      refusal({"-ctk", "q2_k"}),
      "--cache-type-k: 'q2_k' is none of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, kivi4, kivi2");
  EXPECT_EQ(refusal({"-fa", "maybe"}), "--flash-attn: 'maybe' is none of on, off, auto");
  EXPECT_EQ(refusal({"--numa", "x"}), "--numa: 'x' is none of auto, distribute, isolate, numactl, off");
  EXPECT_EQ(refusal({"-c"}), "-c needs a value");
  EXPECT_EQ(refusal({"-ub"}), "--ubatch-size needs a value");
  EXPECT_EQ(refusal({"--nope"}), "unknown option '--nope'");
  EXPECT_EQ(refusal({"--nope=3"}), "unknown option '--nope'");
  EXPECT_EQ(refusal({"-ngl", "3"}), "unknown option '-ngl'");
  EXPECT_EQ(refusal({"-temp", "3"}), "unknown option '-temp'; did you mean '--temp'?");
  EXPECT_EQ(refusal({"-z"}), "unknown option '-z'");
  EXPECT_EQ(refusal({"-ev"}), "unknown option '-ev'");
  EXPECT_EQ(refusal({"prompt", "stray"}),
            "unexpected argument 'stray'; a prompt of several words needs quotes");
  EXPECT_EQ(refusal({"--dry-sequence-breaker", ""}), "--dry-sequence-breaker: an empty text breaks nothing");
  EXPECT_EQ(refusal_of_all({"rum"}), "unknown command 'rum'; did you mean 'run'?");
  EXPECT_EQ(refusal_of_all({}), "a subcommand is required");
  const Variable v("TANDEM_ARG_BATCH_SIZE", "0");
  EXPECT_EQ(refusal({}), "--batch-size: 0 is too small, it must be 1 or more (set by TANDEM_ARG_BATCH_SIZE)");
}

TEST(Options, HelpPagesFitAndShowEverything) {
  Everything e;
  const auto app = make_everything(e);
  EXPECT_THROW(parse_arguments(*app, {"run", "--help"}), CLI::Success);
  const std::string page = app->help();
  size_t start = 0;
  while (start < page.size()) {
    const size_t end = page.find('\n', start);
    EXPECT_LE(end - start, 100u) << page.substr(start, end - start);
    start = end + 1;
  }
  for (const char* part :
       {"Usage: tandem run MODEL [PROMPT] [options]", "\nModel:\n", "\nContext:\n", "\nThreads:\n",
        "\nSampling:\n", "\nInput and output:\n", "\nLogging:\n", "  -ub, --ubatch-size N ",
        "  -ctk, --cache-type-k TYPE ", "  -fa, --flash-attn [on|off|auto]", "(default: 2048)",
        "  -no-cnv, --no-conversation", "  -n, --n-predict, --predict N", "(default: 0.8)",
        "TANDEM_ARG_CTX_SIZE"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("TEXT:"), std::string::npos);
}

TEST(Options, HelpIgnoresABadEnvironment) {
  const Variable v("TANDEM_ARG_CTX_SIZE", "x");
  Everything e;
  const auto app = make_everything(e);
  EXPECT_THROW(parse_arguments(*app, {"run", "--help"}), CLI::Success);
  const auto again = make_everything(e);
  EXPECT_THROW(parse_arguments(*again, {"run", "-h"}), CLI::Success);
}

TEST(Options, LogLevels) {
  const LogLevel before = log_level();
  apply_log_options(parse({"-v"}).log);
  EXPECT_EQ(log_level(), LogLevel::verbose);
  apply_log_options(parse({"--log-disable"}).log);
  EXPECT_EQ(log_level(), LogLevel::quiet);
  apply_log_options(parse({}).log);
  EXPECT_EQ(log_level(), LogLevel::info);
  set_log_level(before);
  EXPECT_THROW(apply_log_options(parse({"--log-file", "/dev/null/log"}).log), Error);
}

TEST(Options, ShortFormTableWorksBothWays) {
  EXPECT_EQ(long_name_of("ub"), "ubatch-size");
  EXPECT_EQ(multi_letter_short_form("ubatch-size"), "ub");
  EXPECT_EQ(long_name_of("nothing"), "");
  EXPECT_EQ(multi_letter_short_form("model"), "");
}

}  // namespace
}  // namespace tandem::tools
