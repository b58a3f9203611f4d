// Tokenizers of every common kind, converted from tokenizer.json, against the ids of the library that made
// them (see scripts/check_tokenizer.py, which compares many more lines).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "support/paths.h"
#include "text/stream_detokenizer.h"
#include "text/vocab.h"
#include "text/vocab_gguf.h"
#include "tools/convert/convert.h"

namespace tandem {
namespace {

std::vector<std::string> tokenizer_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test::test_data("golden/tokenizers"))) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Vocab converted(const nlohmann::json& fixture) {
  const test::TempDir directory;
  test::HfFolder folder = test::family_folder(test::load_family("llama"));
  folder.tensors.clear();
  folder.config["vocab_size"] = 4000;
  folder.tokenizer = fixture["tokenizer"];
  folder.tokenizer_config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  folder.write(directory.path("hf"));
  const auto conversion = tools::prepare_conversion(directory.path("hf"), {.vocab_only = true});
  return Vocab(read_vocab_data(conversion.metadata));
}

constexpr TokenizeOptions kPlain{.add_special = false, .parse_special = false};

class ConvertedTokenizer : public testing::TestWithParam<std::string> {
 protected:
  const nlohmann::json json_ =
      nlohmann::json::parse(std::ifstream(test::test_data("golden/tokenizers/" + GetParam() + ".json")));
  const Vocab vocab_ = converted(json_);
};

TEST_P(ConvertedTokenizer, GivesTheIdsOfItsLibrary) {
  EXPECT_EQ(vocab_.size(), 4000);
  const auto texts = json_["texts"].get<std::vector<std::string>>();
  ASSERT_EQ(texts.size(), 60u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto expected = json_["ids"][i].get<std::vector<int32_t>>();
    EXPECT_EQ(vocab_.tokenize(texts[i]), expected) << testing::PrintToString(texts[i]);
  }
}

// Whole and in a stream. Every kind here has a token for each byte, so any bytes come back.
TEST_P(ConvertedTokenizer, GivesTheTextBack) {
  const bool normalizes = !json_["tokenizer"]["normalizer"].is_null() && GetParam() == "qwen2";  // to NFC
  auto texts = json_["texts"].get<std::vector<std::string>>();
  for (const std::string& text : texts) {
    const auto ids = vocab_.tokenize(text, kPlain), again = vocab_.tokenize(vocab_.detokenize(ids), kPlain);
    EXPECT_EQ(again, ids);
    StreamDetokenizer stream(vocab_);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.add(id);
    EXPECT_EQ(streamed + stream.finish(), vocab_.detokenize(ids));
    if (!normalizes) {
      EXPECT_EQ(vocab_.detokenize(ids), text);
    }
  }
  std::string bytes;
  uint32_t random = 12345;
  while (bytes.size() < (1u << 18))
    bytes += static_cast<char>((random = random * 1664525 + 1013904223) >> 24);
  EXPECT_TRUE(normalizes || vocab_.detokenize(vocab_.tokenize(bytes, kPlain)) == bytes);
}

INSTANTIATE_TEST_SUITE_P(All, ConvertedTokenizer, testing::ValuesIn(tokenizer_names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
