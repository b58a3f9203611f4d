// Invalid vocabularies, and reading a vocabulary from GGUF metadata.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/error.h"
#include "gguf/metadata.h"
#include "support/tiny_vocab.h"
#include "text/special_tokens.h"
#include "text/vocab_gguf.h"

namespace tandem {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

void expect_bad_file(const std::function<void()>& make, const testing::Matcher<std::string>& message) {
  try {
    make();
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_file);
    EXPECT_THAT(std::string(e.what()), message);
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
  }
}

void expect_refused(VocabData data, const testing::Matcher<std::string>& message) {
  expect_bad_file([&] { Vocab vocab(std::move(data)); }, message);
}

TEST(VocabData, AnEmptyVocabularyIsRefused) {
  VocabData data;
  data.source = "m.gguf";
  expect_refused(data, AllOf(HasSubstr("m.gguf"), HasSubstr("tokenizer.ggml.tokens")));
}

TEST(VocabData, IdsOutOfRangeAreRefused) {
  VocabData data = test::tiny_spm();
  data.special.bos = static_cast<int32_t>(data.tokens.size());
  expect_refused(data, HasSubstr("tokenizer.ggml.bos_token_id"));
  data.special.bos = -7;
  expect_refused(data, HasSubstr("tokenizer.ggml.bos_token_id"));
}

TEST(VocabData, ByteTokensAreParsedWithCare) {
  for (const char* text : {"<0x-1>", "<0xZZ>", "<0x4>", "<0x041>", "", "<0x4", "x", "<0X41>", "<0x 1>"}) {
    VocabData data = test::tiny_spm();
    data.tokens[10].text = text;
    expect_refused(data, AllOf(HasSubstr("token 10"), HasSubstr("tokenizer.ggml.tokens")));
  }
  VocabData data = test::tiny_spm();
  data.tokens[3 + 0xab].text = "<0xab>";
  EXPECT_EQ(Vocab(std::move(data)).token_to_piece(3 + 0xab), "\xab");
}

TEST(VocabData, MalformedMergesAreRefusedByIndex) {
  for (const char* merge : {"ab", "", " ", "a ", " b", "a b c", "a  b"}) {
    VocabData data = test::tiny_bpe();
    data.merges[3] = merge;
    expect_refused(data, AllOf(HasSubstr("tokenizer.ggml.merges"), HasSubstr("merge 3")));
  }
}

TEST(VocabData, ScoresMustBeNumbers) {
  VocabData data = test::tiny_spm();
  data.tokens[260].score = std::nanf("");
  expect_refused(data, AllOf(HasSubstr("tokenizer.ggml.scores"), HasSubstr("260")));
}

TEST(VocabData, ARequiredBosMustExist) {
  VocabData data = test::tiny_bpe();
  data.add_bos = Flag::on;
  expect_refused(data, HasSubstr("tokenizer.ggml.bos_token_id"));
  data.special.bos = 5;
  EXPECT_TRUE(Vocab(std::move(data)).add_bos());
}

TEST(VocabData, DuplicatesResolveToTheFirst) {
  VocabData data = test::tiny_bpe();
  data.tokens.push_back({"hello", 0, TokenType::normal});
  data.merges.push_back("h e");
  const Vocab vocab(std::move(data));
  EXPECT_EQ(vocab.tokenize("hello").size(), 1u);
  EXPECT_LT(vocab.tokenize("hello")[0], vocab.size() - 1);
}

TEST(VocabData, AnUnknownPreTokenizerFallsBackToTheDefault) {
  const Vocab unknown(test::tiny_bpe("never-heard-of")), usual(test::tiny_bpe("default"));
  EXPECT_EQ(unknown.tokenize("hello 12345!"), usual.tokenize("hello 12345!"));
}

TEST(VocabData, Phi3StripsSpaceAfterItsSpecialTokens) {
  VocabData data = test::tiny_spm();
  apply_strip_rules(data, "Phi-3 mini");
  const Vocab vocab(std::move(data));
  EXPECT_TRUE(vocab.token(*vocab.find("<|im_end|>")).strip_right);
  EXPECT_FALSE(vocab.token(1).strip_right);  // <s>
  VocabData other = test::tiny_spm();
  apply_strip_rules(other, "Llama 3");
  EXPECT_FALSE(other.tokens.back().strip_right);
}

// A complete tokenizer as metadata, for tests that break one key at a time.
Metadata spm_metadata() {
  const VocabData data = test::tiny_spm();
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const Token& token : data.tokens) {
    texts.push_back(token.text);
    scores.push_back(token.score);
    types.push_back(static_cast<int32_t>(token.type));
  }
  Metadata metadata("m.gguf");
  metadata.set("tokenizer.ggml.model", Value("llama"));
  metadata.set("tokenizer.ggml.tokens", Value(texts));
  metadata.set("tokenizer.ggml.scores", Value(scores));
  metadata.set("tokenizer.ggml.token_type", Value(types));
  metadata.set("tokenizer.ggml.bos_token_id", Value(uint32_t{1}));
  return metadata;
}

Metadata bpe_metadata() {
  const VocabData data = test::tiny_bpe();
  std::vector<std::string> texts;
  for (const Token& token : data.tokens) texts.push_back(token.text);
  Metadata metadata("m.gguf");
  metadata.set("tokenizer.ggml.model", Value("gpt2"));
  metadata.set("tokenizer.ggml.pre", Value("gpt-2"));
  metadata.set("tokenizer.ggml.tokens", Value(texts));
  metadata.set("tokenizer.ggml.merges", Value(data.merges));
  return metadata;
}

// The pieces of an SPM vocabulary whose merges have ranks, as in files of Gemma 4; their scores say nothing.
Metadata ranked_metadata(const std::vector<std::string>& merges) {
  Metadata metadata = spm_metadata();
  const size_t n = metadata.get_strings("tokenizer.ggml.tokens").size();
  metadata.set("tokenizer.ggml.model", Value("gemma4"));
  metadata.set("tokenizer.ggml.scores", Value(std::vector<float>(n, -1000.0f)));
  metadata.set("tokenizer.ggml.merges", Value(merges));
  metadata.set("tokenizer.ggml.add_space_prefix", Value(false));
  return metadata;
}

TEST(VocabGguf, MergesOfPiecesDecideByRank) {
  const auto texts = [&](const std::vector<std::string>& merges) {
    const Vocab vocab(read_vocab_data(ranked_metadata(merges)));
    std::vector<std::string> pieces;
    for (const int32_t id : vocab.tokenize("hello", {.add_special = false}))
      pieces.push_back(vocab.token_to_piece(id));
    return pieces;
  };
  EXPECT_THAT(texts({"h e", "l l", "he ll", "hell o"}), ElementsAre("hello"));
  EXPECT_THAT(texts({"h e", "l l", "he ll"}), ElementsAre("hell", "o"));
  EXPECT_THAT(texts({"l o", "h e", "l l", "he ll", "hell o"}), ElementsAre("he", "l", "lo"));
  EXPECT_THAT(texts({"l l"}), ElementsAre("h", "e", "ll", "o"));
  expect_bad_file(
      [&] {
        read_vocab_data(ranked_metadata({"h e", "hello"}));
      },
      AllOf(HasSubstr("tokenizer.ggml.merges"), HasSubstr("'hello' at 1")));
}

TEST(VocabGguf, ReadsAWholeTokenizer) {
  const Vocab spm(read_vocab_data(spm_metadata()));
  EXPECT_EQ(spm.kind(), TokenizerKind::spm);
  EXPECT_TRUE(spm.add_bos());
  EXPECT_FALSE(spm.add_eos());
  EXPECT_TRUE(spm.add_space_prefix());
  EXPECT_EQ(spm.special().eos, 2);
  EXPECT_EQ(spm.detokenize(spm.tokenize("hell world")), "hell world");
  const Vocab bpe(read_vocab_data(bpe_metadata()));
  EXPECT_EQ(bpe.kind(), TokenizerKind::bpe);
  EXPECT_FALSE(bpe.add_bos());
  EXPECT_FALSE(bpe.add_space_prefix());
  EXPECT_EQ(bpe.tokenize("hello").size(), 1u);
}

TEST(VocabGguf, WithoutTypesByteTokensAreKnownByTheirText) {
  Metadata metadata = spm_metadata();
  metadata.remove("tokenizer.ggml.token_type");
  const Vocab vocab(read_vocab_data(metadata));
  EXPECT_EQ(vocab.token(3).type, TokenType::byte);
  EXPECT_EQ(vocab.token(1).type, TokenType::control);
  EXPECT_EQ(vocab.detokenize(vocab.tokenize("h\xc3\xa9")), "h\xc3\xa9");
}

void expect_metadata_refused(const Metadata& metadata, const std::string& key) {
  expect_bad_file([&] { Vocab vocab(read_vocab_data(metadata)); },
                  AllOf(HasSubstr("m.gguf"), HasSubstr(key)));
}

TEST(VocabGguf, RefusesWhatDoesNotFit) {
  const auto spoilt = [](Metadata metadata, const char* key, Value value) {
    metadata.set(key, std::move(value));
    expect_metadata_refused(metadata, key);
  };
  const std::vector<std::string> none;
  spoilt(spm_metadata(), "tokenizer.ggml.model", Value("bert"));
  spoilt(spm_metadata(), "tokenizer.ggml.model", Value(uint32_t{1}));
  spoilt(spm_metadata(), "tokenizer.ggml.tokens", Value(none));
  spoilt(spm_metadata(), "tokenizer.ggml.tokens", Value("one string"));
  spoilt(spm_metadata(), "tokenizer.ggml.tokens", Value(std::vector<int32_t>{1, 2}));
  spoilt(spm_metadata(), "tokenizer.ggml.scores", Value(std::vector<float>{1, 2}));
  spoilt(spm_metadata(), "tokenizer.ggml.scores", Value(std::vector<std::string>{"1"}));
  spoilt(spm_metadata(), "tokenizer.ggml.token_type", Value(std::vector<int32_t>{1, 2}));
  spoilt(spm_metadata(), "tokenizer.ggml.token_type", Value(std::vector<float>{1, 2}));
  spoilt(spm_metadata(), "tokenizer.ggml.bos_token_id", Value(uint32_t{100'000}));
  spoilt(spm_metadata(), "tokenizer.ggml.eos_token_id", Value(int32_t{-2}));
  spoilt(spm_metadata(), "tokenizer.ggml.unknown_token_id", Value(uint64_t{1} << 32));
  spoilt(spm_metadata(), "tokenizer.ggml.add_bos_token", Value("yes"));
  spoilt(bpe_metadata(), "tokenizer.ggml.merges", Value(std::vector<std::string>{"a b", "ab"}));
  spoilt(bpe_metadata(), "tokenizer.ggml.merges", Value(std::vector<int32_t>{1}));
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    Metadata metadata = bpe_metadata();
    metadata.remove(key);
    expect_metadata_refused(metadata, key);
  }
}

TEST(VocabGguf, OptionalIdsOutOfRangeAreDropped) {
  Metadata metadata = spm_metadata();
  metadata.set("tokenizer.ggml.padding_token_id", Value(uint32_t{100'000}));
  metadata.set("tokenizer.ggml.mask_token_id", Value(int32_t{-1}));
  const Vocab vocab(read_vocab_data(metadata));
  EXPECT_EQ(vocab.special().pad, kNoToken);
  EXPECT_EQ(vocab.special().mask, kNoToken);
}

}  // namespace
}  // namespace tandem
