// Tokenizers of every common kind, converted from tokenizer.json, against the ids of the library that made
// them (see scripts/check_tokenizer.py, which compares many more lines).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "support/paths.h"
#include "text/vocab.h"
#include "text/vocab_gguf.h"
#include "tools/convert/convert.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

std::vector<std::string> tokenizer_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test::test_data("golden/tokenizers"))) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class ConvertedTokenizer : public testing::TestWithParam<std::string> {};

TEST_P(ConvertedTokenizer, GivesTheIdsOfItsLibrary) {
  const Json json = Json::parse(std::ifstream(test::test_data("golden/tokenizers/" + GetParam() + ".json")));
  const test::TempDir directory;
  test::HfFolder folder = test::family_folder(test::load_family("llama"));
  folder.tensors.clear();
  folder.config["vocab_size"] = 4000;
  folder.tokenizer = json["tokenizer"];
  folder.tokenizer_config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  folder.write(directory.path("hf"));
  const auto conversion = tools::prepare_conversion(directory.path("hf"), {.vocab_only = true});
  const Vocab vocab(read_vocab_data(conversion.metadata));
  EXPECT_EQ(vocab.size(), 4000);
  const auto texts = json["texts"].get<std::vector<std::string>>();
  ASSERT_EQ(texts.size(), 60u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto expected = json["ids"][i].get<std::vector<int32_t>>();
    EXPECT_EQ(vocab.tokenize(texts[i]), expected) << testing::PrintToString(texts[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConvertedTokenizer, testing::ValuesIn(tokenizer_names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
