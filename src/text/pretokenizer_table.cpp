#include "text/pretokenizer_table.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr auto isolate = SplitStep::isolate;
constexpr auto group_by_three = SplitStep::group_by_three;
constexpr auto nfc = Normalization::nfc;

// Parts that many patterns share. Contractions in lower case, in any case; how white space ends most patterns.
#define LOWER_CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TRAILING_SPACE "\\s+(?!\\S)|\\s+"
#define NEWLINES_AND_SPACE "\\s*[\\r\\n]+|" TRAILING_SPACE
#define SYMBOLS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
// A word that starts a new piece where lower case turns to upper case, with its contraction.
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_WORD(contraction)                                       \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contraction "|"         \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" contraction
// The same without Han characters, which are spelled out because \p{Han} is a wider set in some versions of PCRE2.
#define HAN                                                                                                       \
  "[\\x{2e80}-\\x{2e99}\\x{2e9b}-\\x{2ef3}\\x{2f00}-\\x{2fd5}\\x{3005}\\x{3007}\\x{3021}-\\x{3029}\\x{3038}-\\x{303b}" \
  "\\x{3400}-\\x{4dbf}\\x{4e00}-\\x{9fff}\\x{f900}-\\x{fa6d}\\x{fa70}-\\x{fad9}\\x{16fe2}\\x{16fe3}\\x{16ff0}\\x{16ff1}"  \
  "\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2ebe0}\\x{2f800}-\\x{2fa1d}\\x{30000}-\\x{323af}]"
#define NO_HAN(set) "(?:(?!" HAN ")" set ")"
#define CASED_WORD_NO_HAN(contraction)                                                \
  "[^\\r\\n\\p{L}\\p{N}]?" NO_HAN(UPPER) "*" NO_HAN(LOWER) "+" contraction "|"         \
  "[^\\r\\n\\p{L}\\p{N}]?" NO_HAN(UPPER) "+" NO_HAN(LOWER) "*" contraction
// An ASCII symbol with the ASCII letters behind it, a word with its marks, a run of symbols.
#define SYMBOL_WORD "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
#define MARKED_WORD "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
#define PUNCTUATION " ?[\\p{P}\\p{S}]+"
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"

#define GPT2_PATTERN LOWER_CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" TRAILING_SPACE
#define QWEN2_PATTERN CONTRACTIONS "|" WORD "|\\p{N}|" SYMBOLS "|" NEWLINES_AND_SPACE

constexpr PreTokenizerStep kDefault[] = {
    {isolate, "[\\p{P}$+<=>^~|]+"}, {isolate, GPT2_PATTERN}, {isolate, "\\p{N}+"}, {isolate, "[0-9][0-9][0-9]"}};

constexpr PreTokenizerStep kGpt2[] = {{isolate, GPT2_PATTERN}};

constexpr PreTokenizerStep kDigitsThenGpt2[] = {{isolate, "\\p{N}"}, {isolate, GPT2_PATTERN}};

constexpr PreTokenizerStep kLlama3[] = {
    {isolate, CONTRACTIONS "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|" NEWLINES_AND_SPACE}};

constexpr PreTokenizerStep kQwen2[] = {{isolate, QWEN2_PATTERN}};

constexpr PreTokenizerStep kQwen35[] = {
    {isolate, CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
              NEWLINES_AND_SPACE}};

constexpr PreTokenizerStep kFalcon[] = {
    {isolate, "[\\p{P}$+<=>^~|`]+"}, {isolate, GPT2_PATTERN}, {isolate, "[0-9][0-9][0-9]"}};

// The cased letters of the Unicode version that the authors had.
#define DEEPSEEK_LETTERS                                                                                             \
  "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}"    \
  "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}"      \
  "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}"        \
  "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"                   \
  "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}"                   \
  "\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"  \
  "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"                   \
  "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"  \
  "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}"  \
  "\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}"  \
  "\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}"                   \
  "\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"                 \
  "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"         \
  "\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

constexpr PreTokenizerStep kDeepseekLlm[] = {
    {isolate, "[\\r\\n]"},
    {isolate, "\\s?[" DEEPSEEK_LETTERS "]+"},
    {isolate, "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"},
    {isolate, "(?<!\\s)\\s++$"},  // the look-behind keeps long runs of spaces linear
    {isolate, DEEPSEEK_CJK},
    {isolate, "\\p{N}"}};

constexpr PreTokenizerStep kDeepseekCoder[] = {{isolate, "[\\r\\n]"},   {isolate, "\\s?\\p{L}+"},
                                               {isolate, "\\s?\\p{P}+"}, {isolate, DEEPSEEK_CJK},
                                               {isolate, "\\p{N}"}};

constexpr PreTokenizerStep kDeepseek3[] = {
    {isolate, "\\p{N}{1,3}"},
    {isolate, CJK},
    {isolate, SYMBOL_WORD "|" MARKED_WORD "|" PUNCTUATION "[\\r\\n]*|" NEWLINES_AND_SPACE}};

constexpr PreTokenizerStep kAfmoe[] = {
    {group_by_three, "\\p{N}+"},
    {isolate, "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}"
              "\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e00}-\\x{e7f}\\x{e80}-\\x{eff}\\x{1780}-\\x{17ff}"
              "\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}\\x{1100}-\\x{11ff}]+"},
    {isolate, SYMBOL_WORD "|" MARKED_WORD "|" PUNCTUATION "[\\r\\n]*|" NEWLINES_AND_SPACE}};

constexpr PreTokenizerStep kYoutu[] = {
    {isolate, "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|"
              "[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}"
              "\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+|" CJK},
    {isolate, CASED_WORD(CONTRACTIONS "?") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" NEWLINES_AND_SPACE}};

// Not `SYMBOLS`: in the original the parenthesis and the bar belong to the set.
constexpr PreTokenizerStep kBloom[] = {
    {isolate, " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"}};

constexpr PreTokenizerStep kViking[] = {kBloom[0], {isolate, "\\p{N}"}};

constexpr PreTokenizerStep kTekken[] = {
    {isolate, CASED_WORD("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" NEWLINES_AND_SPACE}};

#define GPT4O_PATTERN \
  CASED_WORD(CONTRACTIONS "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" NEWLINES_AND_SPACE

constexpr PreTokenizerStep kGpt4o[] = {{isolate, GPT4O_PATTERN}};

// Digits go by threes from the right, but only where nothing of a word follows them.
constexpr PreTokenizerStep kTinyAya[] = {
    {group_by_three, "(?<!\\d)\\d++(?![\\p{L}\\p{M}\\p{Nl}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe\\x{24b6}-\\x{24e9}])"},
    {isolate, GPT4O_PATTERN}};

constexpr PreTokenizerStep kKimiK2[] = {
    {isolate, HAN "+|" CASED_WORD_NO_HAN(CONTRACTIONS "?") "|\\p{N}{1,3}|" SYMBOLS "|" NEWLINES_AND_SPACE}};

constexpr PreTokenizerStep kSuperBpe[] = {{isolate, "\\p{N}+"}, {group_by_three, "\\d+"}};

constexpr PreTokenizerStep kBailingMoe[] = {
    {isolate, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
              "\\s*[\\r\\n]|" TRAILING_SPACE}};

constexpr PreTokenizerStep kSeedCoder[] = {
    {isolate, CONTRACTIONS "|" WORD "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" NEWLINES_AND_SPACE}};

constexpr PreTokenizerStep kExaoneMoe[] = {
    {isolate, CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|"
              " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|" TRAILING_SPACE}};

constexpr PreTokenizerStep kMiniCpm5[] = {
    {isolate, "\\p{N}{1,3}"}, {isolate, CONTRACTIONS "|" WORD "|\\p{N}+|" SYMBOLS "|" NEWLINES_AND_SPACE}};

constexpr PreTokenizerStep kLinesThenQwen2[] = {{isolate, "[^\\n]+|[\\n]+"}, {isolate, QWEN2_PATTERN}};

constexpr PreTokenizerStep kJais2[] = {
    {isolate, CONTRACTIONS "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|\\s*[\\r\\n]+|"
              "\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|"
              "\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"}};

constexpr PreTokenizerStep kChameleon[] = {{isolate, "<sentinel:[0-9]+>"},
                                           {isolate, "(?:IMGIMG)[A-I]{1,4}Z"},
                                           {isolate, "[\\t\\n]|    |  "},
                                           {isolate, "\\p{N}"},
                                           {isolate, "[\\p{P}!-/:-@\\[-`{-~]"},
                                           {isolate, GPT2_PATTERN}};

constexpr PreTokenizerSpec kTable[] = {
    {.names = "default", .steps = kDefault},
    {.names = "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 "
              "mellum exaone4 jais trillion granite-docling",
     .steps = kGpt2},
    {.names = "mpt olmo modern-bert", .steps = kGpt2, .normalization = nfc},
    {.names = "starcoder refact smollm codeshell exaone minerva-7b mellum2", .steps = kDigitsThenGpt2},
    {.names = "command-r", .steps = kDigitsThenGpt2, .normalization = nfc},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     .steps = kLlama3,
     .ignore_merges = true,
     .add_bos = true},
    {.names = "smaug-bpe dbrx glm4 chatglm-bpe", .steps = kLlama3},
    {.names = "qwen2 deepseek-r1-qwen stablelm2 megrez kormo f2llmv2", .steps = kQwen2, .normalization = nfc},
    {.names = "hunyuan solar-open grok-2", .steps = kQwen2},
    {.names = "qwen35", .steps = kQwen35, .normalization = nfc},
    {.names = "falcon", .steps = kFalcon},
    {.names = "deepseek-llm", .steps = kDeepseekLlm},
    {.names = "deepseek-coder", .steps = kDeepseekCoder},
    {.names = "deepseek-v3 hunyuan-dense joyai-llm hy_v4", .steps = kDeepseek3},
    {.names = "afmoe", .steps = kAfmoe},
    {.names = "youtu", .steps = kYoutu, .ignore_merges = true},
    {.names = "poro-chat bloom gpt3-finnish", .steps = kBloom},
    {.names = "viking", .steps = kViking},
    {.names = "tekken", .steps = kTekken, .ignore_merges = true, .add_bos = true},
    {.names = "gpt-4o llama4 kanana2 minimax-m2", .steps = kGpt4o},
    {.names = "tiny_aya cohere2moe", .steps = kTinyAya},
    {.names = "kimi-k2", .steps = kKimiK2},
    {.names = "superbpe", .steps = kSuperBpe},
    {.names = "bailingmoe bailingmoe2 llada-moe", .steps = kBailingMoe},
    {.names = "seed-coder", .steps = kSeedCoder},
    {.names = "exaone-moe", .steps = kExaoneMoe},
    {.names = "minicpm5", .steps = kMiniCpm5, .ignore_merges = true},
    {.names = "laguna", .steps = kLinesThenQwen2},
    {.names = "jais-2", .steps = kJais2},
    {.names = "chameleon", .steps = kChameleon, .add_bos = true},
};

// Whether `name` is one of the words of `names`.
bool lists_name(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

}  // namespace

const PreTokenizerSpec* find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizerSpec& spec : kTable) {
    if (lists_name(spec.names, name)) return &spec;
  }
  return nullptr;
}

const PreTokenizerSpec& default_pre_tokenizer() { return kTable[0]; }

std::span<const PreTokenizerSpec> all_pre_tokenizers() { return kTable; }

}  // namespace tandem
