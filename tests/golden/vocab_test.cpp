// Public vocabularies, an extra: the same ids as their authors' tokenizers, and the text back from the ids.
#include "text/vocab.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

#include "support/process.h"
#include "support/shared_data.h"
#include "support/trained_model.h"
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

INSTANTIATE_TEST_SUITE_P(Extra, PublicVocab, testing::Values("gpt-2", "llama-spm", "phi-3", "starcoder"),
                         [](const auto& test_info) {
                           std::string name = test_info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(TokenizeCommand, PrintsIdsAndPieces) {
  TANDEM_NEED_BINARY();
  const auto output_of = [](const std::string& before, const std::string& arguments) {
    return test::shell(before, "tokenize -m " + test::demo_model() + arguments).out;
  };
  // The ids of scripts/reference_demo.py.
  EXPECT_EQ(output_of("", " -p 'Once upon a time' --ids"), "[0, 603, 730, 259, 436]\n");
  EXPECT_EQ(output_of("", " -p 'Once<|im_end|>' --ids"), "[0, 603, 2]\n");
  EXPECT_EQ(output_of("", " -p 'Once' --ids --no-bos"), "[603]\n");
  const std::string as_text = output_of("", " -p '<|im_end|>' --ids --no-bos --no-parse-special");
  EXPECT_GT(std::count(as_text.begin(), as_text.end(), ','), 2) << as_text;
  EXPECT_THAT(output_of("printf 'Once\\377' |", " --stdin --show-count"),
              testing::MatchesRegex("     0 -> '<.endoftext.>'\n   603 -> 'Once'\n +[0-9]+ -> '\xff'\n"
                                    "Total number of tokens: 3\n"));
  EXPECT_EQ(output_of("", " -p '' --ids --no-bos"), "[]\n");
  // A pipe needs no --stdin, unless it may be empty.
  EXPECT_EQ(output_of("printf Once |", " --ids"), "[0, 603]\n");
  EXPECT_EQ(output_of("printf '' |", " --stdin --ids --no-bos"), "[]\n");
  EXPECT_THAT(output_of("printf '' |", " 2>&1"), testing::HasSubstr("needed exactly one text"));
  EXPECT_EQ(output_of("printf upon |", " -p Once --ids --no-bos"), "[603]\n");
}

}  // namespace
}  // namespace tandem
