// Tokenizing and detokenizing with two tiny vocabularies whose merges can be checked by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "support/tiny_vocab.h"
#include "text/stream_detokenizer.h"
#include "text/vocab.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

constexpr TokenizeOptions kPlain = {.add_special = false, .parse_special = false};

// The texts of the tokens in the vocabulary.
std::vector<std::string> pieces(const Vocab& vocab, std::string_view text,
                                const TokenizeOptions& options = kPlain) {
  std::vector<std::string> out;
  for (const int32_t id : vocab.tokenize(text, options)) out.push_back(vocab.token(id).text);
  return out;
}

TEST(Spm, MergesTheBestScoreFirst) {
  const Vocab vocab(test::tiny_spm());
  // "lo" (-5, right of "he") goes before "ll" (-6), so "hello" is never reached.
  EXPECT_THAT(pieces(vocab, "hello"), ElementsAre("▁", "he", "l", "lo"));
  EXPECT_THAT(pieces(vocab, "hell world"), ElementsAre("▁", "hell", "▁world"));
  EXPECT_THAT(pieces(vocab, " world"), ElementsAre("▁▁", "w", "orld"));
}

TEST(Spm, OfEqualScoresTheLeftmostGoesFirst) {
  VocabData data = test::tiny_spm();
  data.add_space_prefix = Flag::off;
  data.tokens.push_back({"eh", -5, TokenType::normal});
  const Vocab vocab(std::move(data));
  EXPECT_THAT(pieces(vocab, "heh"), ElementsAre("he", "h"));
  EXPECT_THAT(pieces(vocab, "ehe"), ElementsAre("eh", "e"));
}

TEST(Spm, SpellsUnknownCharactersInBytes) {
  const Vocab vocab(test::tiny_spm());
  EXPECT_THAT(pieces(vocab, "hé"), ElementsAre("▁", "h", "<0xC3>", "<0xA9>"));
  EXPECT_THAT(pieces(vocab, "\xff\n"), ElementsAre("▁", "<0xFF>", "<0x0A>"));
  VocabData data = test::tiny_spm();
  for (Token& token : data.tokens) {
    if (token.type == TokenType::byte) token = {"", 0, TokenType::unused};
  }
  EXPECT_THAT(pieces(Vocab(std::move(data)), "hé"), ElementsAre("▁", "h", "<unk>"));
}

TEST(Spm, PlainTextNeverBecomesAControlToken) {
  VocabData data = test::tiny_spm();
  data.add_space_prefix = Flag::off;
  data.tokens.push_back({"<s", -1, TokenType::normal});
  for (const char* text : {"<", "s", ">"}) data.tokens.push_back({text, -30, TokenType::normal});
  const Vocab vocab(std::move(data));
  EXPECT_THAT(pieces(vocab, "<s>"), ElementsAre("<s", ">"));
  EXPECT_THAT(vocab.tokenize("<s>", {.add_special = false, .parse_special = true}), ElementsAre(1));
}

// A merge across a word boundary rules out tokenizing word by word.
TEST(Spm, TokensWithASpaceInsideAreFound) {
  VocabData data = test::tiny_spm();
  data.tokens.push_back({"o▁w", -1, TokenType::normal});
  const Vocab vocab(std::move(data));
  EXPECT_THAT(pieces(vocab, "o world"), ElementsAre("▁", "o▁w", "orld"));
}

TEST(Spm, AddsBosAndASpaceAtTheStartAndBehindSpecialTokens) {
  const Vocab vocab(test::tiny_spm());
  EXPECT_THAT(pieces(vocab, "", {}), ElementsAre("<s>"));
  EXPECT_THAT(pieces(vocab, "world</s>world<tool>", {}),
              ElementsAre("<s>", "▁world", "</s>", "▁world", "<tool>"));
  VocabData data = test::tiny_spm();
  data.add_eos = Flag::on;
  data.add_bos = Flag::off;
  EXPECT_THAT(pieces(Vocab(std::move(data)), "world", {}), ElementsAre("▁world", "</s>"));
}

TEST(Spm, RemovesExtraSpacesWhereTheModelWantsIt) {
  VocabData data = test::tiny_spm();
  data.remove_extra_whitespaces = Flag::on;
  EXPECT_THAT(pieces(Vocab(std::move(data)), "  world   world "), ElementsAre("▁world", "▁world"));
}

TEST(Bpe, MergesTheLowestRankFirst) {
  const Vocab vocab(test::tiny_bpe());
  EXPECT_THAT(pieces(vocab, "hello hello"), ElementsAre("hello", "Ġhello"));
  EXPECT_THAT(pieces(vocab, "aaaaaaa"), ElementsAre("aaaa", "aa", "a"));
  EXPECT_THAT(pieces(vocab, "1234"), ElementsAre("123", "4"));
  EXPECT_THAT(pieces(vocab, "hé"), ElementsAre("h", "Ã", "©"));
}

TEST(Bpe, BytesThatAreNoUtf8GoThrough) {
  const Vocab vocab(test::tiny_bpe());
  const std::string text("hello\xff\xc3 hello\0\xe2\x82", 16);
  const auto ids = vocab.tokenize(text, kPlain);
  EXPECT_EQ(vocab.detokenize(ids), text);
  EXPECT_EQ(pieces(vocab, text).front(), "hello");
}

TEST(Bpe, IgnoreMergesTakesAWholePiece) {
  EXPECT_THAT(pieces(Vocab(test::tiny_bpe("llama-bpe")), "world"), ElementsAre("world"));
  EXPECT_THAT(pieces(Vocab(test::tiny_bpe("gpt-2")), "world"), ElementsAre("w", "o", "r", "l", "d"));
}

TEST(Bpe, AMergeThatGivesNoTokenIsSpelledOut) {
  VocabData data = test::tiny_bpe();
  data.merges.insert(data.merges.begin(), "x y");
  EXPECT_THAT(pieces(Vocab(std::move(data)), "xyhe"), ElementsAre("x", "y", "he"));
}

TEST(Bpe, NormalizesIfTheModelWasTrainedSo) {
  const std::string decomposed = "e\u0301";
  EXPECT_THAT(pieces(Vocab(test::tiny_bpe("qwen2")), decomposed), ElementsAre("Ã", "©"));
  EXPECT_THAT(pieces(Vocab(test::tiny_bpe("gpt-2")), decomposed), ElementsAre("e", "Ì", "ģ"));
}

TEST(Bpe, AMissingByteIsDroppedUnlessThereIsAnUnknownToken) {
  VocabData data = test::tiny_bpe();
  data.tokens[0xff].text = "no longer a byte";
  EXPECT_THAT(pieces(Vocab(VocabData(data)),
                     "h\xff"
                     "e"),
              ElementsAre("h", "e"));
  data.tokens.push_back({"<unk>", 0, TokenType::unknown});
  data.special.unk = static_cast<int32_t>(data.tokens.size()) - 1;
  EXPECT_THAT(pieces(Vocab(std::move(data)),
                     "h\xff"
                     "e"),
              ElementsAre("h", "<unk>", "e"));
}

TEST(Special, ControlTokensOnlyWhenParsedUserDefinedOnesAlways) {
  const Vocab vocab(test::tiny_bpe());
  EXPECT_THAT(pieces(vocab, "hello<tool>hello<|im_end|>", {.parse_special = true}),
              ElementsAre("hello", "<tool>", "hello", "<|im_end|>"));
  EXPECT_THAT(pieces(vocab, "<tool>he<|im_end|>", {.parse_special = false}),
              ElementsAre("<tool>", "he", "<", "|", "i", "m", "_", "e", "n", "d", "|", ">"));
}

TEST(Special, TheLongestAtAPlaceWins) {
  VocabData data = test::tiny_bpe();
  for (const char* text : {"<a", "<a>", "<a><b>", "<b>x"})
    data.tokens.push_back({text, 0, TokenType::control});
  const Vocab vocab(std::move(data));
  const TokenizeOptions options = {.add_special = false};
  EXPECT_THAT(pieces(vocab, "<a><b>x", options), ElementsAre("<a><b>", "x"));
  EXPECT_THAT(pieces(vocab, "<a><<b>x", options), ElementsAre("<a>", "<", "<b>x"));
  EXPECT_THAT(pieces(vocab, "<a<a", options), ElementsAre("<a", "<a"));
}

TEST(Special, TenThousandTokensAreFast) {
  VocabData data = test::tiny_bpe();
  for (int i = 0; i < 20'000; ++i) {
    data.tokens.push_back({"<|reserved_special_token_" + std::to_string(i) + "|>", 0, TokenType::control});
  }
  const int32_t first = static_cast<int32_t>(data.tokens.size()) - 20'000;
  const Vocab vocab(std::move(data));
  std::string text;
  std::vector<int32_t> expected;
  for (int i = 0; i < 20'000; ++i) {
    text += "<|reserved_special_token_" + std::to_string(i) + "|>";
    expected.push_back(first + i);
  }
  EXPECT_THAT(vocab.tokenize(text, {.add_special = false}), ElementsAreArray(expected));
}

TEST(Special, SomeStripTheWhiteSpaceAroundThem) {
  VocabData data = test::tiny_bpe();
  data.tokens.push_back({"<r>", 0, TokenType::control, false, true});
  data.tokens.push_back({"<l>", 0, TokenType::control, true, false});
  const Vocab vocab(std::move(data));
  const TokenizeOptions options = {.add_special = false};
  EXPECT_THAT(pieces(vocab, " <r> \n\thello", options), ElementsAre("Ġ", "<r>", "hello"));
  EXPECT_THAT(pieces(vocab, "hello \n<l> ", options), ElementsAre("hello", "<l>", "Ġ"));
  EXPECT_THAT(pieces(vocab, " <l><r> ", options), ElementsAre("<l>", "<r>"));
}

TEST(Detokenize, GivesTheTextBack) {
  const Vocab spm(test::tiny_spm());
  const Vocab bpe(test::tiny_bpe());
  for (const std::string text :
       {"", " ", "  hello", "hello world", "hé\xff", "\n\n x", "world</s> world</s>  world"}) {
    for (const Vocab* vocab : {&spm, &bpe}) {
      EXPECT_EQ(vocab->detokenize(vocab->tokenize(text, {.add_special = false}), SpecialText::shown), text);
    }
  }
}

TEST(Detokenize, HidesControlTokensUnlessAsked) {
  const Vocab vocab(test::tiny_spm());
  const auto ids = vocab.tokenize("hell<tool> world<|im_end|>");
  EXPECT_EQ(vocab.detokenize(ids), "hell<tool> world");
  EXPECT_EQ(vocab.detokenize(ids, SpecialText::shown), "<s>hell<tool> world<|im_end|>");
}

TEST(Stream, NeverGivesHalfACharacter) {
  const Vocab vocab(test::tiny_bpe());
  StreamDetokenizer stream(vocab);
  std::vector<std::string> out;
  for (const char c : std::string("a\xf0\x9f\xa6\x99\xc3\xa9"))
    out.push_back(stream.add(static_cast<uint8_t>(c)));
  EXPECT_THAT(out, ElementsAre("a", "", "", "", "\xf0\x9f\xa6\x99", "", "\xc3\xa9"));
  EXPECT_EQ(stream.finish(), "");
}

TEST(Stream, ReplacesInvalidBytes) {
  const Vocab vocab(test::tiny_bpe());
  StreamDetokenizer stream(vocab);
  EXPECT_EQ(stream.add(0xff), "\ufffd");
  EXPECT_EQ(stream.add(0xe2), "");
  EXPECT_EQ(stream.add('a'),
            "\ufffd"
            "a");
  EXPECT_EQ(stream.add(0xe2), "");
  EXPECT_EQ(stream.add(0x82), "");
  EXPECT_EQ(stream.finish(), "\ufffd");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Stream, RemovesTheSpaceThatTokenizeAdded) {
  const Vocab vocab(test::tiny_spm());
  for (const std::string text : {"world world", " world", "</s>world</s> world"}) {
    StreamDetokenizer stream(vocab, SpecialText::shown);
    std::string out;
    for (const int32_t id : vocab.tokenize(text)) out += stream.add(id);
    EXPECT_EQ(out + stream.finish(), "<s>" + text);
  }
}

TEST(Eog, IsKnownByRoleAndByText) {
  const Vocab spm(test::tiny_spm());
  EXPECT_TRUE(spm.is_eog(2));                        // eos
  EXPECT_TRUE(spm.is_eog(*spm.find("<|im_end|>")));  // a known end of turn
  EXPECT_EQ(spm.special().eot, *spm.find("<|im_end|>"));
  EXPECT_FALSE(spm.is_eog(1));
  EXPECT_FALSE(spm.is_eog(*spm.find("<tool>")));
  EXPECT_THAT(spm.eog_ids(), ElementsAre(2, *spm.find("<|im_end|>")));
}

TEST(Eog, AmbiguousTextsCountOnlyIfMarked) {
  VocabData data = test::tiny_bpe();
  data.tokens.push_back({"</s>", 0, TokenType::normal});
  data.tokens.push_back({"<|endoftext|>", 0, TokenType::normal});
  const Vocab vocab(std::move(data));
  EXPECT_FALSE(vocab.is_eog(*vocab.find("</s>")));
  EXPECT_TRUE(vocab.is_eog(*vocab.find("<|endoftext|>")));
  EXPECT_EQ(vocab.token(*vocab.find("<|endoftext|>")).type, TokenType::control);
}

TEST(Eog, AnEndOfMessageIsNotAnEndOfTurn) {
  VocabData data = test::tiny_bpe();
  for (const char* text : {"<|end|>", "<|return|>", "<|call|>"})
    data.tokens.push_back({text, 0, TokenType::control});
  const Vocab vocab(std::move(data));
  EXPECT_FALSE(vocab.is_eog(*vocab.find("<|end|>")));
  EXPECT_TRUE(vocab.is_eog(*vocab.find("<|return|>")));
}

TEST(Vocab, PaddingIdsHaveNoText) {
  const Vocab vocab(test::tiny_spm());
  for (const int32_t id : {-1, vocab.size(), vocab.size() + 100'000}) {
    EXPECT_FALSE(vocab.is_eog(id));
    EXPECT_EQ(vocab.token_to_piece(id, SpecialText::shown), "");
    EXPECT_EQ(StreamDetokenizer(vocab).add(id), "");
  }
}

TEST(Vocab, MayBeUsedByManyThreads) {
  const Vocab vocab(test::tiny_bpe("llama-bpe"));
  const auto expected = vocab.tokenize("hello world 123 hello");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& n_wrong : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) n_wrong += vocab.tokenize("hello world 123 hello") != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace tandem
