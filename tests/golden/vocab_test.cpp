// Public vocabularies: the same ids as their authors' tokenizers, and the text back from the ids.
#include "text/vocab.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

#include "support/process.h"
#include "support/shared_data.h"
#include "text/stream_detokenizer.h"
#include "text/vocab_gguf.h"

namespace tandem {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Each text ends before the newline that precedes its separator line.
std::vector<std::string> test_texts(const std::string& all) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  size_t start = 0;
  for (size_t end; (end = all.find(separator, start)) != std::string::npos; start = end + separator.size()) {
    texts.push_back(all.substr(start, end - start));
  }
  return texts;
}

std::vector<std::vector<int32_t>> expected_ids(const std::string& all) {
  std::vector<std::vector<int32_t>> lists;
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    lists.emplace_back(std::istream_iterator<int32_t>(words), std::istream_iterator<int32_t>());
  }
  return lists;
}

class PublicVocab : public testing::TestWithParam<const char*> {};

TEST_P(PublicVocab, GivesTheExpectedIdsAndTheTextBack) {
  const auto stem = test::shared_data(std::string("vocab/") + GetParam()).string();
  TANDEM_NEED_SHARED(std::filesystem::path(stem + ".gguf"));
  const std::shared_ptr<const Vocab> vocab = load_vocab(GgufFile(stem + ".gguf"));
  const auto texts = test_texts(read_file(stem + ".inp"));
  const auto expected = expected_ids(read_file(stem + ".out"));
  ASSERT_EQ(texts.size(), 46u);
  ASSERT_EQ(expected.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto ids = vocab->tokenize(texts[i], {.add_special = false, .parse_special = false});
    EXPECT_EQ(ids, expected[i]) << "text " << i << ": " << testing::PrintToString(texts[i]);
    EXPECT_EQ(vocab->detokenize(ids), texts[i]) << "text " << i;
    StreamDetokenizer stream(*vocab);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.add(id);
    EXPECT_EQ(streamed + stream.finish(), texts[i]) << "text " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PublicVocab, testing::Values("gpt-2", "llama-spm", "phi-3", "starcoder"),
                         [](const auto& test_info) {
                           std::string name = test_info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(PublicVocabBytes, AMegabyteOfBytesComesBack) {
  std::string text;
  uint32_t random = 12345;
  while (text.size() < (1u << 20)) text += static_cast<char>((random = random * 1664525 + 1013904223) >> 24);
  for (const char* name : {"gpt-2", "llama-spm"}) {
    const auto path = test::shared_data(std::string("vocab/") + name + ".gguf");
    TANDEM_NEED_SHARED(path);
    const std::shared_ptr<const Vocab> vocab = load_vocab(GgufFile(path.string()));
    EXPECT_TRUE(vocab->detokenize(vocab->tokenize(text, {.add_special = false})) == text) << name;
  }
}

TEST(TokenizeCommand, PrintsIdsAndPieces) {
  TANDEM_NEED_BINARY();
  const auto path = test::shared_data("vocab/llama-spm.gguf");
  TANDEM_NEED_SHARED(path);
  const auto output_of = [&](const std::string& before, const std::string& arguments) {
    return test::shell(before, "tokenize -m " + path.string() + arguments).out;
  };
  EXPECT_EQ(output_of("", " -p 'Hello</s> w' --ids"), "[1, 15043, 2, 29871, 281]\n");
  EXPECT_EQ(output_of("", " -p 'Hello</s>' --ids --no-bos --no-parse-special"),
            "[15043, 829, 29879, 29958]\n");
  EXPECT_EQ(output_of("printf 'Hello\\377' |", " --stdin --show-count"),
            "     1 -> '<s>'\n 15043 -> ' Hello'\n   258 -> '\xff'\nTotal number of tokens: 3\n");
  EXPECT_EQ(output_of("", " -p '' --ids --no-bos"), "[]\n");
}

}  // namespace
}  // namespace tandem
