#include "text/pretokenizer_table.h"

#include "base/text.h"

namespace tandem {
namespace {

using Rules = std::vector<SplitRule>;

SplitRule isolate(std::string pattern) {
  return {SplitBehavior::isolate, std::move(pattern)};
}
SplitRule group_by_three(std::string pattern) {
  return {SplitBehavior::group_by_three, std::move(pattern)};
}

// Building blocks shared by many patterns.
constexpr const char* kLowerContractions = R"('s|'t|'re|'ve|'m|'ll|'d)";
constexpr const char* kContractions = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
constexpr const char* kWord = R"([^\r\n\p{L}\p{N}]?\p{L}+)";
constexpr const char* kSymbols = R"( ?[^\s\p{L}\p{N}]+[\r\n]*)";
constexpr const char* kSymbolsAndSlashes = R"( ?[^\s\p{L}\p{N}]+[\r\n/]*)";
constexpr const char* kSpace = R"(\s+(?!\S)|\s+)";
constexpr const char* kNewlinesAndSpace = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kCjk = R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";

// Joins alternatives, first choice first.
std::string any(const std::vector<std::string>& alternatives) {
  std::string pattern;
  for (const std::string& one : alternatives) pattern += (pattern.empty() ? "" : "|") + one;
  return pattern;
}

std::string gpt2_pattern() {
  return any({kLowerContractions, R"( ?\p{L}+)", R"( ?\p{N}+)", R"( ?[^\s\p{L}\p{N}]+)", kSpace});
}

// Words, numbers (as `number` matches them), symbols.
std::string llama3_pattern(const char* number) {
  return any({kContractions, kWord, number, kSymbols, kNewlinesAndSpace});
}

// Words that start where lower case turns to upper case, each with its contraction. `without` excludes
// characters.
std::string cased_words(const std::string& without, const std::string& contraction) {
  const auto only = [&](const char* set) {
    return without.empty() ? set : "(?:(?!" + without + ")" + set + ")";
  };
  const std::string start = R"([^\r\n\p{L}\p{N}]?)";
  const std::string upper = only(R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])");
  const std::string lower = only(R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])");
  return any(
      {start + upper + "*" + lower + "+" + contraction, start + upper + "+" + lower + "*" + contraction});
}

std::string gpt4o_pattern(const char* number) {
  return any(
      {cased_words("", std::string(kContractions) + "?"), number, kSymbolsAndSlashes, kNewlinesAndSpace});
}

// An ASCII symbol with the ASCII letters behind it; a word with its marks; a run of symbols.
std::string deepseek3_pattern() {
  return any({R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)", R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)",
              R"( ?[\p{P}\p{S}]+[\r\n]*)", kNewlinesAndSpace});
}

// Cased letters, as of the Unicode version that the authors used.
constexpr const char* kDeepseekLetters =
    R"([A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af})"
    R"(\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1})"
    R"(\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5})"
    R"(\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77})"
    R"(\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d})"
    R"(\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe})"
    R"(\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec})"
    R"(\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124})"
    R"(\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e})"
    R"(\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d})"
    R"(\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf})"
    R"(\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f})"
    R"(\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df})"
    R"(\x{1e900}-\x{1e943}])";
constexpr const char* kDeepseekCjk = R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)";

Rules deepseek_llm() {
  return {isolate(R"([\r\n])"),
          isolate(R"(\s?)" + std::string(kDeepseekLetters) + "+"),
          isolate(R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)"),
          isolate(R"((?<!\s)\s++$)"),  // \s+$, written so that long runs of spaces take linear time
          isolate(kDeepseekCjk),
          isolate(R"(\p{N})")};
}

Rules deepseek_coder() {
  return {isolate(R"([\r\n])"), isolate(R"(\s?\p{L}+)"), isolate(R"(\s?\p{P}+)"), isolate(kDeepseekCjk),
          isolate(R"(\p{N})")};
}

Rules afmoe() {
  return {
      group_by_three(R"(\p{N}+)"),
      isolate(R"([\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff})"
              R"(\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}\x{e00}-\x{e7f}\x{e80}-\x{eff}\x{1780}-\x{17ff})"
              R"(\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+)"),
      isolate(deepseek3_pattern())};
}

Rules youtu() {
  return {isolate(any({R"([\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+)",
                       R"([\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c})"
                       R"(\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+)",
                       R"([\x{3105}-\x{312f}]+)", kCjk})),
          isolate(gpt4o_pattern(R"(\p{N})"))};
}

// In the original, the parenthesis and the bar are inside the set.
SplitRule bloom_rule() {
  return isolate(R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+)");
}

Rules kimi_k2() {
  // Spelled out because \p{Han} is a wider set in some versions of PCRE2.
  const std::string han =
      R"([\x{2e80}-\x{2e99}\x{2e9b}-\x{2ef3}\x{2f00}-\x{2fd5}\x{3005}\x{3007}\x{3021}-\x{3029}\x{3038}-\x{303b})"
      R"(\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{fa6d}\x{fa70}-\x{fad9}\x{16fe2}\x{16fe3}\x{16ff0}\x{16ff1})"
      R"(\x{20000}-\x{2a6df}\x{2a700}-\x{2ebe0}\x{2f800}-\x{2fa1d}\x{30000}-\x{323af}])";
  return {isolate(any({han + "+", cased_words(han, std::string(kContractions) + "?"), R"(\p{N}{1,3})",
                       kSymbols, kNewlinesAndSpace}))};
}

// Groups digits by threes from the right, unless a character that the original engine counts as part of a
// word follows.
Rules tiny_aya() {
  return {group_by_three(
              R"((?<!\d)\d++(?![\p{L}\p{M}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9}]))"),
          isolate(gpt4o_pattern(R"(\p{N}{1,3})"))};
}

Rules bailing_moe() {
  return {isolate(any({R"('(?i:[sdmt]|ll|ve|re))", R"([^\r\n\p{L}\p{N}]?+\p{L}+)", R"(\p{N})",
                       R"( ?[^\s\p{L}\p{N}]++[\r\n]*)", R"(\s*[\r\n])", kSpace}))};
}

Rules exaone_moe() {
  return {isolate(any({kContractions, R"([^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+)", R"(\p{N})",
                       R"( ?[^\s\p{L}\p{N}]+[\r\n/]?)", R"(\s*[\r\n])", kSpace}))};
}

Rules qwen35() {
  return {isolate(any({kContractions, R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+)", R"(\p{N})",
                       R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)", kNewlinesAndSpace}))};
}

Rules jais2() {
  return {isolate(any({kContractions, kWord, R"(\p{N}{1,3})", kSymbols, R"(\s*[\r\n]+)", R"(\s{512}(?!\S))",
                       R"(\s{256}(?!\S))", R"(\s{128}(?!\S))", R"(\s{64}(?!\S))", R"(\s{32}(?!\S))",
                       R"(\s{16}(?!\S))", R"(\s{8}(?!\S))", R"(\s{4}(?!\S))", R"(\s{1,2}(?!\S))", R"(\s)"}))};
}

Rules chameleon() {
  return {isolate("<sentinel:[0-9]+>"), isolate("IMGIMG[A-I]{1,4}Z"),       isolate(R"([\t\n]|    |  )"),
          isolate(R"(\p{N})"),          isolate(R"([\p{P}!-/:-@\[-`{-~])"), isolate(gpt2_pattern())};
}

std::vector<PreTokenizerSpec> make_table() {
  constexpr Normalization nfc = Normalization::nfc;
  const Rules gpt2 = {isolate(gpt2_pattern())};
  const Rules digits_then_gpt2 = {isolate(R"(\p{N})"), isolate(gpt2_pattern())};
  const Rules llama3 = {isolate(llama3_pattern(R"(\p{N}{1,3})"))};
  const Rules qwen2 = {isolate(llama3_pattern(R"(\p{N})"))};
  return {
      {.names = "default",
       .rules = {isolate(R"([\p{P}$+<=>^~|]+)"), isolate(gpt2_pattern()), isolate(R"(\p{N}+)"),
                 isolate("[0-9][0-9][0-9]")}},
      {.names =
           "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat "
           "a.x-4.0 mellum exaone4 jais trillion granite-docling",
       .rules = gpt2},
      {.names = "mpt olmo modern-bert", .rules = gpt2, .normalization = nfc},
      {.names = "starcoder refact smollm codeshell exaone minerva-7b mellum2", .rules = digits_then_gpt2},
      {.names = "command-r", .rules = digits_then_gpt2, .normalization = nfc},
      {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
       .rules = llama3,
       .ignore_merges = true,
       .add_bos = true},
      {.names = "smaug-bpe dbrx glm4 chatglm-bpe", .rules = llama3},
      {.names = "qwen2 deepseek-r1-qwen stablelm2 megrez kormo f2llmv2",
       .rules = qwen2,
       .normalization = nfc},
      {.names = "hunyuan solar-open grok-2", .rules = qwen2},
      {.names = "ufakzeka", .rules = {isolate(any({kWord, R"(\p{N})", kSymbols, kNewlinesAndSpace}))}},
      {.names = "qwen35", .rules = qwen35(), .normalization = nfc},
      {.names = "falcon",
       .rules = {isolate(R"([\p{P}$+<=>^~|`]+)"), isolate(gpt2_pattern()), isolate("[0-9][0-9][0-9]")}},
      {.names = "deepseek-llm", .rules = deepseek_llm()},
      {.names = "deepseek-coder", .rules = deepseek_coder()},
      {.names = "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
       .rules = {isolate(R"(\p{N}{1,3})"), isolate(kCjk), isolate(deepseek3_pattern())}},
      {.names = "afmoe", .rules = afmoe()},
      {.names = "youtu", .rules = youtu(), .ignore_merges = true},
      {.names = "poro-chat bloom gpt3-finnish", .rules = {bloom_rule()}},
      {.names = "viking", .rules = {bloom_rule(), isolate(R"(\p{N})")}},
      {.names = "tekken",
       .rules = {isolate(any({cased_words("", ""), R"(\p{N})", kSymbolsAndSlashes, kNewlinesAndSpace}))},
       .ignore_merges = true,
       .add_bos = true},
      {.names = "gpt-4o llama4 kanana2 talkie minimax-m2",
       .rules = {isolate(gpt4o_pattern(R"(\p{N}{1,3})"))}},
      {.names = "tiny_aya cohere2moe", .rules = tiny_aya()},
      {.names = "kimi-k2", .rules = kimi_k2()},
      {.names = "superbpe", .rules = {isolate(R"(\p{N}+)"), group_by_three(R"(\d+)")}},
      {.names = "bailingmoe bailingmoe2 llada-moe", .rules = bailing_moe()},
      {.names = "seed-coder",
       .rules = {isolate(
           any({kContractions, kWord, R"(\p{N})", R"( ?[^\s\p{L}\p{N}\r\n]+)", kNewlinesAndSpace}))}},
      {.names = "exaone-moe", .rules = exaone_moe()},
      {.names = "minicpm5",
       .rules = {isolate(R"(\p{N}{1,3})"), isolate(llama3_pattern(R"(\p{N}+)"))},
       .ignore_merges = true},
      {.names = "laguna", .rules = {isolate(R"([^\n]+|[\n]+)"), qwen2[0]}},
      {.names = "jais-2", .rules = jais2()},
      {.names = "chameleon", .rules = chameleon(), .add_bos = true},
  };
}

const std::vector<PreTokenizerSpec>& table() {
  static const std::vector<PreTokenizerSpec> rows = make_table();
  return rows;
}

}  // namespace

const PreTokenizerSpec* find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizerSpec& spec : table()) {
    if (lists_name(spec.names, name)) return &spec;
  }
  return nullptr;
}

const PreTokenizerSpec& default_pre_tokenizer() {
  return table()[0];
}

std::span<const PreTokenizerSpec> all_pre_tokenizers() {
  return table();
}

}  // namespace tandem
