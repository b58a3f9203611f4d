// Conversion of a folder's tokenizer files: kinds, special tokens, flags, chat templates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "text/pretokenizer_table.h"
#include "text/vocab_gguf.h"
#include "tools/convert/convert.h"
#include "tools/convert/tokenizer.h"

namespace tandem::tools {
namespace {

using test::HfFolder;
using testing::ElementsAre;

class ConvertTokenizer : public testing::Test {
 protected:
  ConvertTokenizer() {
    folder_ = test::family_folder(test::load_family("llama"));
    folder_.tensors.clear();
    folder_.tokenizer_config = nullptr;
  }

  Metadata convert() {
    folder_.write(directory_.path("hf"));
    return prepare_conversion(directory_.path("hf"), {.vocab_only = true}).metadata;
  }

  static uint32_t id(const Metadata& m, const std::string& role) {
    return m.get<uint32_t>("tokenizer.ggml." + role + "_token_id");
  }

  HfFolder folder_;
  test::TempDir directory_;
};

TEST_F(ConvertTokenizer, TokensTypesAndPadding) {
  folder_.tokenizer["added_tokens"].push_back({{"id", 110}, {"content", "<tool>"}, {"special", false}});
  const Metadata m = convert();
  const auto tokens = m.get_strings("tokenizer.ggml.tokens");
  const auto types = m.get_vector<int32_t>("tokenizer.ggml.token_type");
  ASSERT_EQ(tokens.size(), 128u);  // rows of the embedding table
  EXPECT_EQ(tokens[0], "<unk>");
  EXPECT_EQ(tokens[110], "<tool>");
  EXPECT_EQ(tokens[127], "[PAD127]");
  EXPECT_EQ(types[1], 3);    // control
  EXPECT_EQ(types[50], 1);   // normal
  EXPECT_EQ(types[110], 4);  // user-defined
  EXPECT_EQ(types[127], 5);  // unused
  EXPECT_EQ(m.get_strings("tokenizer.ggml.merges").size(), 5u);
  EXPECT_EQ(m.get<std::string>("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(m.get<std::string>("tokenizer.ggml.pre"), "gpt-2");
}

TEST_F(ConvertTokenizer, SpecialIds) {
  folder_.config["bos_token_id"] = 5;
  folder_.config["eos_token_id"] = 6;
  folder_.config["pad_token_id"] = 7;
  Metadata m = convert();
  EXPECT_EQ(id(m, "bos"), 5u);  // config.json alone
  EXPECT_EQ(id(m, "eos"), 6u);
  EXPECT_EQ(id(m, "padding"), 7u);
  EXPECT_FALSE(m.has("tokenizer.ggml.eot_token_id"));
  folder_.generation_config = {{"eos_token_id", {8, 9}}};
  m = convert();
  EXPECT_EQ(id(m, "eos"),
            8u);  // generation_config.json overrides config.json; a second EOS id is the end of a turn
  EXPECT_EQ(id(m, "eot"), 9u);
  folder_.tokenizer_config = {
      {"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}, {"pad_token", nullptr}};
  m = convert();
  EXPECT_EQ(id(m, "bos"), 1u);  // tokenizer_config.json overrides both
  EXPECT_EQ(id(m, "eos"), 2u);
  EXPECT_EQ(id(m, "eot"), 8u);
  folder_.tokenizer_config = nullptr;
  folder_.config["pad_token_id"] = 100000;  // out of range, as in some models: left out
  EXPECT_FALSE(convert().has("tokenizer.ggml.padding_token_id"));
}

TEST_F(ConvertTokenizer, WhetherBosAndEosAreAdded) {
  const auto flags = [&] {
    const Metadata m = convert();
    return std::pair(m.get<bool>("tokenizer.ggml.add_bos_token"),
                     m.get<bool>("tokenizer.ggml.add_eos_token"));
  };
  folder_.tokenizer_config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  EXPECT_EQ(flags(), std::pair(false, false));
  folder_.tokenizer_config["add_bos_token"] = true;
  EXPECT_EQ(flags(), std::pair(true, false));
  const nlohmann::json bos{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
      text{{"Sequence", {{"id", "A"}}}}, eos{{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}};
  folder_.tokenizer["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}}, {{"type", "TemplateProcessing"}, {"single", {bos, text, eos}}}}}};
  folder_.tokenizer_config["add_bos_token"] = false;  // ignored: the tokenizer itself adds BOS
  EXPECT_EQ(flags(), std::pair(true, true));
  folder_.tokenizer["post_processor"] = {{"type", "TemplateProcessing"}, {"single", {text}}};
  folder_.tokenizer_config["add_bos_token"] = true;
  EXPECT_EQ(flags(), std::pair(false, false));
}

TEST_F(ConvertTokenizer, ChatTemplates) {
  EXPECT_FALSE(convert().has("tokenizer.chat_template"));
  folder_.tokenizer_config = {{"chat_template", "from the config"}};
  EXPECT_EQ(convert().get<std::string>("tokenizer.chat_template"), "from the config");
  folder_.tokenizer_config["chat_template"] = {{{"name", "default"}, {"template", "one"}},
                                               {{"name", "tool-use"}, {"template", "two"}}};
  const Metadata m = convert();
  EXPECT_EQ(m.get<std::string>("tokenizer.chat_template"), "one");
  EXPECT_EQ(m.get<std::string>("tokenizer.chat_template.tool_use"), "two");
  EXPECT_THAT(m.get_strings("tokenizer.chat_templates"), ElementsAre("tool_use"));
  folder_.files["chat_template.jinja"] = "from a file\n";
  EXPECT_EQ(convert().get<std::string>("tokenizer.chat_template"), "from a file\n");
}

TEST_F(ConvertTokenizer, MergesMayBePairs) {
  const Metadata before = convert();
  nlohmann::json pairs = nlohmann::json::array();
  for (const std::string merge : folder_.tokenizer["model"]["merges"]) {
    const size_t space = merge.find(' ');
    pairs.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  folder_.tokenizer["model"]["merges"] = pairs;
  const Metadata after = convert();
  const auto a = before.get_strings("tokenizer.ggml.merges"), b = after.get_strings("tokenizer.ggml.merges");
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

// A pre-tokenizer is recognized by its rules; otherwise the user must name it.
TEST_F(ConvertTokenizer, PreTokenizers) {
  const auto named = [&](const nlohmann::json& rules, const nlohmann::json& normalizer, bool ignore_merges) {
    nlohmann::json parts = nlohmann::json::array();
    for (const std::string regex : rules) {
      parts.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}});
    }
    parts.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    folder_.tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", parts}};
    folder_.tokenizer["normalizer"] = normalizer;
    folder_.tokenizer["model"]["ignore_merges"] = ignore_merges;
    return convert().get<std::string>("tokenizer.ggml.pre");
  };
  const nlohmann::json nfc{{"type", "NFC"}};
  const std::string rest = R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string llama3 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)" + rest;
  const std::string qwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)" + rest;
  EXPECT_EQ(named({llama3}, nullptr, true), "llama-bpe");
  EXPECT_EQ(named({llama3}, nullptr, false), "smaug-bpe");
  EXPECT_EQ(named({qwen2}, nfc, false), "qwen2");
  EXPECT_EQ(named({qwen2}, nullptr, false), "hunyuan");
  // Every row of the table that is a plain list of patterns is recognized as itself or as an equivalent one.
  for (const PreTokenizerSpec& spec : all_pre_tokenizers()) {
    nlohmann::json rules = nlohmann::json::array();
    bool only_splits = true;
    for (const SplitRule& rule : spec.rules) {
      rules.push_back(rule.pattern);
      only_splits = only_splits && rule.mode == SplitBehavior::isolate;
    }
    if (!only_splits) continue;
    const std::string name =
        named(rules, spec.normalization == Normalization::nfc ? nfc : nlohmann::json(), spec.ignore_merges);
    const PreTokenizerSpec* found = find_pre_tokenizer(name);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->ignore_merges, spec.ignore_merges) << spec.names;
    EXPECT_EQ(found->normalization, spec.normalization) << spec.names;
    ASSERT_EQ(found->rules.size(), spec.rules.size());
    for (size_t i = 0; i < spec.rules.size(); ++i) EXPECT_EQ(found->rules[i].pattern, spec.rules[i].pattern);
  }
  folder_.tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[aeiou]+";
  folder_.write(directory_.path("hf"));
  const auto forced = prepare_conversion(directory_.path("hf"), {.vocab_only = true, .pre = "tekken"});
  EXPECT_EQ(forced.metadata.get<std::string>("tokenizer.ggml.pre"), "tekken");
  EXPECT_THROW(prepare_conversion(directory_.path("hf"), {.vocab_only = true, .pre = "nonsense"}), Error);
}

// A hand-made ModelProto: pieces {1 text, 2 score, 3 type}, trainer {3 kind, 41 bos, ...}, normalizer {3, 4}.
std::string field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) + bytes;
}
std::string piece(const std::string& text, float score, char type) {
  std::string real(4, '\0');
  std::memcpy(real.data(), &score, 4);
  return field(1, field(1, text) + "\x15" + real + "\x18" + type);
}

TEST_F(ConvertTokenizer, SentencePieceModel) {
  std::string model = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);
  for (int b = 0; b < 256; ++b) model += piece(format("<0x{:02X}>", static_cast<unsigned>(b)), 0, 6);
  model += piece("\xe2\x96\x81", -2, 1) + piece("h", -3, 1) + piece("i", -4, 1) + piece("hi", -1, 1) +
           piece("<mark>", 0, 4);
  model += field(2, "\x18\x02") + field(3, std::string("\x18\x00\x20\x00", 4));
  folder_.tokenizer = nullptr;
  folder_.files["tokenizer.model"] = model;
  folder_.config["vocab_size"] = 300;
  folder_.config["bos_token_id"] = 1;
  folder_.tokenizer_config = {{"added_tokens_decoder", {{"270", {{"content", "<end>"}, {"special", true}}}}},
                              {"eos_token", "<end>"}};
  const Metadata m = convert();
  EXPECT_EQ(m.get<std::string>("tokenizer.ggml.model"), "llama");
  const auto tokens = m.get_strings("tokenizer.ggml.tokens");
  ASSERT_EQ(tokens.size(), 300u);
  EXPECT_EQ(tokens[262], "hi");
  EXPECT_EQ(tokens[270], "<end>");
  const auto scores = m.get_vector<float>("tokenizer.ggml.scores");
  EXPECT_EQ(scores[262], -1.0f);
  const auto types = m.get_vector<int32_t>("tokenizer.ggml.token_type");
  EXPECT_THAT(std::vector<int32_t>(types.begin() + 258, types.begin() + 265),
              ElementsAre(6, 1, 1, 1, 1, 4, 5));
  EXPECT_EQ(types[270], 3);
  EXPECT_EQ(id(m, "eos"), 270u);
  EXPECT_FALSE(m.get<bool>("tokenizer.ggml.add_space_prefix"));
  EXPECT_FALSE(m.get<bool>("tokenizer.ggml.remove_extra_whitespaces"));
  EXPECT_TRUE(m.get<bool>("tokenizer.ggml.add_bos_token"));
  const Vocab vocab(read_vocab_data(m));
  EXPECT_THAT(vocab.tokenize("hi<mark>z"), ElementsAre(1, 262, 263, 3 + 'z'));
}

}  // namespace
}  // namespace tandem::tools
