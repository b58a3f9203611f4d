// tandem run as a process: its output on stdout and stderr, exit codes, and how it stops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/sanitized.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/terminal.h"
#include "support/tiny_model.h"
#include "support/trained_model.h"

namespace tandem {
namespace {

using test::Outcome;
using test::shell;
using testing::HasSubstr;
using testing::Not;

class Run : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    path_ = directory_.path("tiny.gguf");
    test::tiny_llama().write(path_);
  }
  // Runs with arguments after the model; drops stderr unless they redirect it.
  Outcome run(const std::string& arguments, const std::string& before = "") {
    return shell(before, "run -m " + path_ + " " + arguments);
  }

  test::TempDir directory_;
  std::string path_;
};

TEST_F(Run, StdoutHoldsPromptAndTextAndNothingElse) {
  const Outcome all = run("-p 'a b' -n 8 -s 1 2>/dev/null </dev/null");
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_EQ(all.out.rfind("a b", 0), 0u);
  const Outcome text = run("-p 'a b' -n 8 -s 1 --no-display-prompt 2>/dev/null");
  EXPECT_EQ("a b" + text.out, all.out);
  EXPECT_EQ(run("-p 'a b' -n 0 2>/dev/null").out, "a b\n");
  EXPECT_EQ(run("-p 'a b' -n 0 2>&1 --log-disable").out, "a b\n");
}

TEST_F(Run, EscapeSequencesAreForTerminalsThatKnowThem) {
  const auto shown = [&](const std::vector<std::string>& environment) {
    test::TerminalOptions options;
    options.environment = {"TERM=xterm", "NO_COLOR"};
    options.environment.insert(options.environment.end(), environment.begin(), environment.end());
    test::Terminal t({test::binary_path(), "run", "-m", path_, "-p", "a b", "-n", "1"}, options);
    EXPECT_FALSE(t.wait_for("no such text"));  // all of it
    return t.seen();
  };
  EXPECT_THAT(shown({}), HasSubstr("\033[33ma b"));
  EXPECT_THAT(shown({"NO_COLOR=1"}), Not(HasSubstr("\033[33m")));
  EXPECT_THAT(shown({"TERM=dumb"}), Not(HasSubstr("\033")));
}

TEST_F(Run, ASeedRepeatsItself) {
  const std::string first = run("-p 'a b' -n 30 -s 42 --temp 1.5 2>/dev/null").out;
  EXPECT_EQ(run("-p 'a b' -n 30 -s 42 --temp 1.5 -t 1 2>/dev/null").out, first);
  EXPECT_NE(run("-p 'a b' -n 30 -s 43 --temp 1.5 2>/dev/null").out, first);
  EXPECT_EQ(run("-p 'a b' -n 30 2>/dev/null", "TANDEM_ARG_SEED=42 TANDEM_ARG_TEMP=1.5").out, first);
}

TEST_F(Run, RejectsInvalidPrompts) {
  const Outcome empty = run("-p '' 2>&1");
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.out, HasSubstr("prompt is empty"));
  const Outcome bytes = run("-p \"$(printf 'ab\\377c')\" 2>&1");
  EXPECT_EQ(bytes.exit_code, 2);
  EXPECT_THAT(bytes.out, HasSubstr("0xff at offset 2"));
  const std::string file = directory_.path("latin1.txt");
  test::write_file(file, "caf\xe9");
  const Outcome latin = run("-f " + file + " 2>&1");
  EXPECT_EQ(latin.exit_code, 3);
  EXPECT_THAT(latin.out, HasSubstr("latin1.txt"));
  EXPECT_EQ(run("-f " + directory_.path("nothing.txt") + " 2>/dev/null").exit_code, 5);
  const Outcome longer = run("-c 8 -p 'a b c d e f g h i j k l m n' 2>&1");
  EXPECT_EQ(longer.exit_code, 2);
  EXPECT_THAT(longer.out, HasSubstr("-c"));
}

TEST_F(Run, APromptFromAFileOrFromStdin) {
  const std::string file = directory_.path("prompt.txt");
  test::write_file(file, "a b\n");
  const std::string expected = run("-p 'a b' -n 5 --temp 0 2>/dev/null").out;
  EXPECT_EQ(run("-f " + file + " -n 5 --temp 0 2>/dev/null").out, expected);
  EXPECT_EQ(run("-f - -n 5 --temp 0 2>/dev/null", "printf 'a b\\n' |").out, expected);
}

TEST_F(Run, PositionalArgumentsAndStdin) {
  const std::string expected = run("-p 'a b' -n 5 --temp 0 2>/dev/null").out;
  EXPECT_EQ(shell("", "run -n 5 --temp 0 " + path_ + " 'a b' 2>/dev/null").out, expected);
  EXPECT_EQ(run("-n 5 --temp 0 2>/dev/null", "printf 'a b\n' |").out, expected);
  const std::string file = directory_.path("part.txt");
  test::write_file(file, "b\n");
  EXPECT_THAT(run("-n 0 -p a -f " + file + " 2>/dev/null").out, testing::StartsWith("a\n\nb"));
}

TEST_F(Run, LayersForAGpuThatIsNotThereAreAWarning) {
  const Outcome o = run("-p 'a b' -n 2 -ngl 99 --device none 2>&1 </dev/null");
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_THAT(o.out, HasSubstr("-ngl has no effect"));
  EXPECT_THAT(o.out, HasSubstr("generated 2 tokens"));
  EXPECT_EQ(run("-p 'a b' -n 2 --device NOGPU7 2>&1").exit_code, 2);
  EXPECT_THAT(run("-p 'a b' -n 2 --device none 2>&1").out, Not(HasSubstr("GPU")));
}

TEST_F(Run, ValuesOutsideOfTheirRangeAreRefused) {
  for (const char* wrong : {"--temp -1", "--top-p 3", "--top-p -0.1", "--min-p 2", "--typical 1.5"}) {
    const Outcome o = run("-p 'a b' -n 1 " + std::string(wrong) + " 2>&1");
    EXPECT_EQ(o.exit_code, 2) << wrong;
    EXPECT_THAT(o.out, HasSubstr("but must be")) << wrong;
  }
  EXPECT_THAT(run("-p 'a b' -n 1 -t 1000 2>&1").out, HasSubstr("1000 threads take turns"));
}

// A program that parses the output must see that it is only the beginning of one.
TEST_F(Run, ConstrainedOutputThatIsCutHasItsOwnExitCode) {
  const std::string grammar = "-p 'a b' --temp 0 --grammar 'root ::= [a-z ]{300}' ";
  const Outcome full = run(grammar + "-c 32 2>&1");
  EXPECT_EQ(full.exit_code, 7);
  EXPECT_THAT(full.out, HasSubstr("the constrained output is incomplete: the context is full"));
  EXPECT_EQ(run(grammar + "-n 3 2>/dev/null").exit_code, 7);
  EXPECT_EQ(run("-p 'a b' -n 3 2>/dev/null").exit_code, 0);
}

TEST_F(Run, APromptCacheThatCannotBeWrittenIsAWarning) {
  const Outcome o = run("-p 'a b' -n 2 --ignore-eos --prompt-cache /no/such/folder/cache 2>&1");
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_THAT(o.out, HasSubstr("the prompt will not be saved"));
  EXPECT_THAT(o.out, HasSubstr("generated 2 tokens"));
  EXPECT_THAT(run("-p 'a b' -n 1 --ignore-eos 2>&1").out, HasSubstr("generated 1 token;"));
}

TEST_F(Run, AFullContextStopsOrShifts) {
  const Outcome stopped = run("-c 32 -p 'a b' -n 100 --temp 0 --ignore-eos 2>&1");
  EXPECT_EQ(stopped.exit_code, 0);
  EXPECT_THAT(stopped.out, HasSubstr("the context is full"));
  const Outcome shifted = run("-c 32 -p 'a b' -n 100 --temp 0 --ignore-eos --context-shift --keep 2 2>&1");
  EXPECT_EQ(shifted.exit_code, 0);
  EXPECT_THAT(shifted.out, HasSubstr("generated 100 tokens"));
}

TEST_F(Run, NanLogitsHaveTheirOwnExitCode) {
  test::TinyModel model = test::tiny_llama();
  reinterpret_cast<float*>(model.tensors["output_norm.weight"].data.data())[0] = std::nanf("");
  model.write(path_);
  const Outcome nan = run("-p 'a b' -n 5 2>&1 >/dev/null");
  EXPECT_EQ(nan.exit_code, 6);
  EXPECT_EQ(run("-p 'a b' -n 5 2>/dev/null").out, "a b\n");  // so that the message is on its own line
  EXPECT_THAT(nan.out, HasSubstr("position"));
}

// The first Ctrl-C finishes the token; the exit code is 130.
TEST_F(Run, CtrlCFinishesTheToken) {
  const Outcome o = shell("", "run -m " + path_ + " -p 'a b' -n -1 -c 128 --ignore-eos --context-shift >" +
                                  directory_.path("out") + " 2>" + directory_.path("err") +
                                  " & pid=$!; sleep 1; kill -INT $pid; wait $pid");
  EXPECT_EQ(o.exit_code, 130);
  const Outcome err = shell("cat " + directory_.path("err") + "; true", " --version >/dev/null");
  EXPECT_THAT(err.out, HasSubstr("stopped: interrupted"));
  EXPECT_EQ(err.out.find("error"), std::string::npos);
}

// All grammar options constrain the output; an error is reported before the model is read.
TEST_F(Run, AGrammarConstrainsTheOutput) {
  const std::string common = "-p 'a b' -n 60 --temp 1.5 -s 3 --no-display-prompt 2>/dev/null ";
  const std::string file = directory_.path("g.gbnf");
  test::write_file(file, "root ::= (\"x\" | \"yz\"){3} \"!\"\n");
  const Outcome held = run(common + "--grammar-file " + file);
  EXPECT_EQ(held.exit_code, 0);
  EXPECT_THAT(held.out, testing::MatchesRegex("(x|yz)(x|yz)(x|yz)!\n"));
  EXPECT_EQ(run(common + "--grammar \"$(cat " + file + ")\"").out, held.out);
  EXPECT_EQ(run(common, "TANDEM_ARG_GRAMMAR_FILE=" + file).out, held.out);
  EXPECT_EQ(run(common + "--ignore-eos --grammar-file " + file).out, held.out);
  const std::string schema = directory_.path("s.json");
  test::write_file(schema, R"({"type":"array","items":{"enum":["é",12]},"minItems":2,"maxItems":2})");
  const Outcome json = run(common + "-jf " + schema);
  EXPECT_THAT(json.out,
              testing::MatchesRegex("\\[[ \n\t]*(\"é\"|12)[ \n\t]*,[ \n\t]*(\"é\"|12)[ \n\t]*\\]\n"));
  EXPECT_EQ(run(common + "-j \"$(cat " + schema + ")\"").out, json.out);

  const Outcome recursive = run("-p a --grammar 'root ::= root \"a\" | \"b\"' 2>&1");
  EXPECT_EQ(recursive.exit_code, 2);
  EXPECT_THAT(recursive.out, HasSubstr("--grammar:1:1: left recursion"));
  test::write_file(file, "start ::= \"a\"\n");
  const Outcome rootless = run("-p a --grammar-file " + file + " 2>&1");
  EXPECT_EQ(rootless.exit_code, 3);
  EXPECT_THAT(rootless.out, HasSubstr("g.gbnf:1:1: rule 'root', the start of the grammar, is missing"));
  EXPECT_EQ(run("-p a --grammar-file " + directory_.path("none") + " 2>/dev/null").exit_code, 5);
  EXPECT_EQ(run("-p a --grammar 'root ::= [a]{1000000}' 2>/dev/null").exit_code, 2);
  const Outcome unsupported = run("-p a -j '{\"not\":{}}' 2>&1");
  EXPECT_EQ(unsupported.exit_code, 2);
  EXPECT_THAT(unsupported.out, HasSubstr("--json-schema: #: keyword 'not' is not supported"));
  const Outcome both = run("-p a -j '{}' --grammar 'root ::= \"a\"' 2>&1");
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.out, HasSubstr("only one of"));
}

// 0 and negative values mean the model's own.
TEST_F(Run, ZeroOrNegativeRopeOptionsMeanTheModelsOwn) {
  const std::string plain = run("-p 'a b' -n 20 --temp 0 2>/dev/null").out;
  const Outcome zeros =
      run("-p 'a b' -n 20 --temp 0 --rope-freq-base 0 --rope-freq-scale 0 --yarn-orig-ctx 0 "
          "--yarn-ext-factor -1 --yarn-attn-factor -1 --yarn-beta-slow -1 --yarn-beta-fast -1 2>/dev/null");
  EXPECT_EQ(zeros.exit_code, 0);
  EXPECT_EQ(zeros.out, plain);
  const std::string yarn = "-p 'a b' -n 20 --temp 0 --rope-scaling yarn --rope-scale 4 2>/dev/null ";
  EXPECT_EQ(run(yarn + "--yarn-ext-factor -1 --yarn-beta-slow -1 --yarn-beta-fast -1").out, run(yarn).out);
}

TEST_F(Run, AContextThatDoesNotFitGivesAdvice) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more address space";
  const Outcome o = run("-p 'a b' -c 2000000000 -ctk f32 -ctv f32 2>&1", "ulimit -v 4000000;");
  EXPECT_EQ(o.exit_code, 4);
  EXPECT_THAT(o.out, HasSubstr("KV cache"));
  EXPECT_THAT(o.out, HasSubstr("-c"));
}

TEST_F(Run, AnOverrideThatDoesNotFitNamesItsFlag) {
  const Outcome o = run("-p a --log-disable --override-kv llama.block_count=int:-1 2>&1");
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_THAT(o.out,
              HasSubstr("error: --override-kv: llama.block_count=-1: needed an integer that fits u32"));
}

TEST_F(Run, MessagesAreOneLineForAnyFileName) {
  const Outcome o = shell("", "run --log-disable -m \"$(printf '/no\\nsuch')\" -p a 2>&1");
  EXPECT_EQ(o.exit_code, 5);
  EXPECT_EQ(o.out, "tandem: error: /no\\x0asuch: cannot open: No such file or directory\n");
}

// Hundreds of threads on a few CPUs take turns; the test must not take a minute.
TEST_F(Run, HundredsOfThreadsWork) {
  const Outcome o = run("-p 'a b' -n 2 -t 10000 --temp 0 2>/dev/null", "timeout 60");
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(o.out, run("-p 'a b' -n 2 -t 1 --temp 0 2>/dev/null").out);
}

TEST_F(Run, AClosedPipeEndsItQuietly) {
  const Outcome o =
      shell("{ {", "run -m " + path_ +
                       " -p 'a b' -n -1 --ignore-eos --context-shift --log-disable; echo $? >&3; } | "
                       "head -c 3 >/dev/null; } 3>&1 2>&1");
  EXPECT_EQ(o.out, "5\n");
}

TEST_F(Run, TheStoryMatchesTheGoldenData) {
  const std::string demo = directory_.path("demo.gguf");
  test::write_demo_f32(demo);
  const Outcome o =
      shell("", "run -m " + demo + " -p 'Once upon a time, there was a little' -n 62 --temp 0 2>/dev/null");
  EXPECT_THAT(o.out,
              testing::StartsWith(
                  "Once upon a time, there was a little boy called Finn. He lived in a stone house by the "
                  "river. Finn had a big wish. He wanted to see where the sun sleeps."));
}

}  // namespace
}  // namespace tandem
