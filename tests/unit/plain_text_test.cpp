// User text never becomes a control token, wherever it is and whatever is next to it.
#include <gtest/gtest.h>

#include <random>

#include "support/tiny_vocab.h"
#include "text/chat_template.h"
#include "text/vocab.h"

namespace tandem {
namespace {

constexpr const char* kEnd = "<|im_end|>";

class PlainText : public testing::TestWithParam<bool> {
 protected:
  PlainText() : vocab_(GetParam() ? test::tiny_spm() : test::tiny_bpe()) {}

  std::vector<int32_t> tokenize(const std::string& text, std::vector<TextSpan> plain) const {
    TokenizeOptions options;
    options.add_special = false;
    options.plain = plain;
    return vocab_.tokenize(text, options);
  }
  int64_t n_ends(const std::vector<int32_t>& ids) const {
    return std::count(ids.begin(), ids.end(), *vocab_.find(kEnd));
  }

  Vocab vocab_;
};

TEST_P(PlainText, AControlTokenThatTouchesUserTextIsPlain) {
  const std::string text = std::string("hello") + kEnd + "hello" + kEnd;
  EXPECT_EQ(n_ends(tokenize(text, {})), 2);
  EXPECT_EQ(n_ends(tokenize(text, {{5, 15}})), 1);
  EXPECT_EQ(n_ends(tokenize(text, {{0, text.size()}})), 0);
  for (size_t byte = 5; byte < 15; ++byte) {
    EXPECT_EQ(n_ends(tokenize(text, {{byte, byte + 1}})), 1) << byte;
    EXPECT_EQ(vocab_.detokenize(tokenize(text, {{byte, byte + 1}}), SpecialText::shown), text) << byte;
  }
  EXPECT_EQ(n_ends(tokenize(text, {{4, 5}, {15, 16}})), 2);
}

TEST_P(PlainText, AllPlainMeansNoControlTokens) {
  const std::string text = std::string("a") + kEnd + " <tool> b" + kEnd;
  TokenizeOptions options;
  options.add_special = options.parse_special = false;
  EXPECT_EQ(tokenize(text, {{0, text.size()}}), vocab_.tokenize(text, options));
}

// User text after a part of a control token, or after a whole one, does not change the template's tokens.
TEST_P(PlainText, TheTemplatesOwnTokensStay) {
  VocabData data = GetParam() ? test::tiny_spm() : test::tiny_bpe();
  data.tokens.push_back({std::string(kEnd) + "x", 0, TokenType::control});
  const Vocab vocab(std::move(data));
  TokenizeOptions options;
  options.add_special = false;
  const std::string text = std::string(kEnd) + "xyz";
  EXPECT_EQ(vocab.tokenize(text, options).front(), *vocab.find(std::string(kEnd) + "x"));
  const std::vector<TextSpan> plain = {{10, 13}};
  options.plain = plain;
  EXPECT_EQ(vocab.tokenize(text, options).front(), *vocab.find(kEnd));
}

TEST_P(PlainText, ThroughATemplate) {
  const ChatTemplate chat(
      "{% for m in messages %}{{ '<|im_end|>' + m.role + ':' + m.content.strip() | upper | lower "
      "}}<|im_end|>{% endfor %}");
  const std::string typed = "  hello<|im_end|>he<|im_end|>  ";
  const MarkedPrompt prompt =
      chat.render_marked({{{"role", "user"}, {"content", typed}}, {{"role", "user"}, {"content", "<|im_"}}});
  EXPECT_EQ(n_ends(tokenize(prompt.text, prompt.user)), 4);
  EXPECT_EQ(n_ends(tokenize(prompt.text, {})), 6);
}

// Half a control token from a message and half from the template.
TEST_P(PlainText, TokensThatMixUserTextAreNotControlTokens) {
  const ChatTemplate chat("{{ '<|im_' + messages[0].content }}");
  const MarkedPrompt prompt = chat.render_marked({{{"role", "user"}, {"content", "end|>"}}});
  EXPECT_EQ(prompt.text, kEnd);
  EXPECT_EQ(n_ends(tokenize(prompt.text, prompt.user)), 0);
}

// Tokenizing both sides of a cut gives the tokens of the whole text.
TEST_P(PlainText, CutsKeepTheTokens) {
  std::mt19937 random(3);
  const std::vector<std::string> pieces = {kEnd, "<tool>", "hello", " ", "w", "he", " hello", "\n\n"};
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += pieces[random() % pieces.size()];
    std::vector<TokenCut> cuts;
    TokenizeOptions options;
    options.add_special = false;
    options.cuts = &cuts;
    const auto whole = vocab_.tokenize(text, options);
    options.cuts = nullptr;
    for (const TokenCut& cut : cuts) {
      std::vector<int32_t> ids(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut.n_tokens));
      options.at_start = vocab_.restarts_text(ids.back());
      const auto rest = vocab_.tokenize(std::string_view(text).substr(cut.n_bytes), options);
      options.at_start = true;
      ids.insert(ids.end(), rest.begin(), rest.end());
      ASSERT_EQ(ids, whole) << text << " at " << cut.n_bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PlainText, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Spm" : "Bpe"; });

}  // namespace
}  // namespace tandem
