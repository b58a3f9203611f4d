// A grammar in the sampler: allowed tokens, where the text may end, and unchanged probabilities.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sample/json_schema/json_schema.h"
#include "support/errors.h"
#include "support/grammar_text.h"
#include "support/sampler_model.h"

namespace tandem {
namespace {

using test::error_of;
using test::kInf;
using testing::HasSubstr;

SamplerModel model_of(const std::vector<std::string>& pieces, std::vector<int32_t> eog) {
  SamplerModel m;
  m.n_vocab = static_cast<int32_t>(pieces.size());
  m.n_ctx = 128;
  m.eog = std::move(eog);
  m.piece = [pieces](int32_t id) { return pieces[static_cast<size_t>(id)]; };
  return m;
}

SamplerParams with_grammar(const std::string& gbnf) {
  SamplerParams p;
  p.seed = 1;
  p.grammar = Grammar::parse(gbnf);
  return p;
}

// In every state, the mask of all tokens agrees with checking each token by itself.
TEST(GrammarFilter, TheWalkAndTheSingleCheckAgree) {
  const test::GrammarVocab vocab = test::grammar_vocab(300);
  const SamplerModel model = vocab.model();
  const auto trie = std::make_shared<const TokenTrie>(model.n_vocab, model.piece, model.eog);
  const std::string grammars[] = {
      json_schema_to_gbnf("{}"), json_schema_to_gbnf(R"({"type":"string","maxLength":9})"),
      "root ::= [^é]{2,4} | \"é\"+ | [中-文] root", "root ::= \"\" | \"true\" root"};
  std::mt19937 random(4);
  for (const std::string& gbnf : grammars) {
    GrammarFilter filter(Grammar::parse(gbnf), trie, model.eog);
    for (int step = 0; step < 40; ++step) {
      std::vector<float> logits(vocab.pieces.size(), 0.0f);
      ASSERT_TRUE(filter.apply(logits));
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < model.n_vocab; ++token) {
        const bool passes = logits[static_cast<size_t>(token)] == 0.0f;
        ASSERT_EQ(passes, filter.allows(token)) << gbnf << token;
        if (passes) allowed.push_back(token);
      }
      EXPECT_FALSE(filter.allows(vocab.control));
      EXPECT_EQ(filter.allows(vocab.end_of_turn), filter.is_complete());
      const int32_t token = allowed[random() % allowed.size()];
      filter.accept(token);
      if (filter.is_finished()) filter.reset();
    }
  }
}

TEST(GrammarSampler, GreedyTakesTheBestAllowedToken) {
  const std::vector<std::string> pieces = {"a", "b", "ab", "", "</s>", "\xc3", "\xa9"};
  for (const float temp : {0.0f, 1.0f}) {
    SamplerParams p = with_grammar("root ::= \"ab\" | \"é\" \"b\"");
    p.temp = temp;
    p.top_k = 1;
    Sampler sampler(p, model_of(pieces, {4}));
    std::vector<float> logits = {1, 9, 0, 20, 15, 2, 10};
    EXPECT_EQ(sampler.sample(logits), 5);  // the first byte of é
    sampler.accept(5);
    EXPECT_EQ(sampler.sample(logits), 6);
    sampler.accept(6);
    EXPECT_FALSE(sampler.is_finished());
    EXPECT_EQ(sampler.sample(logits), 1);
    sampler.accept(1);
    EXPECT_TRUE(sampler.is_finished());
    EXPECT_EQ(sampler.sample(logits), 4);
    sampler.accept(4);
    EXPECT_EQ(sampler.sample(logits), 4);
    sampler.accept_prompt(0);  // the next turn
    EXPECT_FALSE(sampler.is_finished());
    EXPECT_EQ(sampler.sample(logits), 5);
  }
}

TEST(GrammarSampler, AllowedTokensKeepTheirProbabilities) {
  const test::GrammarVocab vocab = test::grammar_vocab(100);
  SamplerParams free;
  free.seed = 5;
  free.temp = 1.5f;
  SamplerParams held = free;
  held.grammar = Grammar::parse("root ::= [a-zA-Z ]*");
  Sampler a(free, vocab.model()), b(held, vocab.model());
  std::mt19937 random(6);
  for (int i = 0; i < 100; ++i) {
    std::vector<float> logits(vocab.pieces.size());
    for (size_t k = 0; k < logits.size(); ++k) {
      const std::string& piece = vocab.pieces[k];
      const bool word =
          !piece.empty() && piece.find_first_not_of(" abcdefghijklmnopqrstuvwxyz") == std::string::npos;
      logits[k] = static_cast<float>(random() % 1000) / 100.0f + (word ? 50.0f : 0.0f);
    }
    const int32_t token = a.sample(logits);
    ASSERT_EQ(b.sample(logits), token);
    a.accept(token);
    b.accept(token);
  }
}

TEST(GrammarSampler, EveryChainKeepsTheTextValid) {
  const test::GrammarVocab vocab = test::grammar_vocab(100);
  std::mt19937 random(8);
  for (int chain = 0; chain < 8; ++chain) {
    SamplerParams p = with_grammar(json_schema_to_gbnf(
        R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["é",2]}},"required":["b"]})"));
    p.temp = chain == 0 ? 0.0f : 1.5f;
    p.mirostat = chain == 1 ? 1 : chain == 2 ? 2 : 0;
    if (chain == 3) p.stages = {SamplerStage::temperature};
    if (chain == 4) p.stages = {SamplerStage::typ_p, SamplerStage::top_n_sigma, SamplerStage::xtc};
    if (chain == 4) p.typical_p = 0.5f, p.top_n_sigma = 1.0f, p.xtc_probability = 0.9f;
    if (chain == 5) p.repeat_penalty = 1.5f, p.dry_multiplier = 1.0f;
    if (chain == 6) p.logit_bias = {{'{', -2.0f}, {'"', 3.0f}};
    if (chain == 7) p.ignore_eos = true, p.dynatemp_range = 0.5f;
    Sampler sampler(p, vocab.model());
    GrammarStates states(p.grammar);
    for (int i = 0; i < 15; ++i) {
      const std::string text = test::sample_text(vocab, sampler, random);
      ASSERT_TRUE(test::accepts(states, text)) << chain << " " << text;
      sampler.accept_prompt(1);
    }
  }
}

TEST(GrammarSampler, ACopyContinuesIndependently) {
  const std::vector<std::string> pieces = {"a", "b", "c", ""};
  SamplerParams p = with_grammar("root ::= \"a\" \"b\" \"c\"");
  Sampler first(p, model_of(pieces, {3}));
  const std::vector<float> logits = {1, 2, 3, 9};
  first.accept(first.sample(logits));
  Sampler second = first;
  first.accept(first.sample(logits));
  EXPECT_EQ(first.sample(logits), 2);
  EXPECT_EQ(second.sample(logits), 1);
  first.reset();
  EXPECT_EQ(first.sample(logits), 0);
}

TEST(GrammarSampler, NoAllowedToken) {
  const std::vector<std::string> pieces = {"a", "b", "", "a"};
  const std::vector<float> logits = {1, 2, 3, 0};
  Sampler stuck(with_grammar("root ::= \"a\" [xy]"), model_of(pieces, {2}));
  stuck.accept(stuck.sample(logits));
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { stuck.sample(logits); }),
              HasSubstr("no token of the vocabulary continues"));
  SamplerParams banned = with_grammar("root ::= \"a\"");
  banned.logit_bias = {{0, -kInf}, {3, -kInf}};
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { Sampler(banned, model_of(pieces, {2})).sample(logits); }),
              HasSubstr("ban every token"));
  SamplerParams twin = with_grammar("root ::= \"a\"");  // two tokens with the same text
  twin.logit_bias = {{0, -kInf}};
  EXPECT_EQ(Sampler(twin, model_of(pieces, {2})).sample(logits), 3);
  Sampler endless(with_grammar("root ::= \"\""), model_of(pieces, {}));
  EXPECT_TRUE(endless.is_finished());
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { endless.sample(logits); }),
              HasSubstr("the vocabulary has no token to end it"));
  Sampler wrong(with_grammar("root ::= \"a\""), model_of(pieces, {2}));
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { wrong.accept(1); }),
              HasSubstr("token 1 was chosen, but the grammar does not allow it"));
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { wrong.accept(2); }),
              HasSubstr("token 2 was chosen, but the grammar does not allow it"));
  // A banned end token is still chosen if no other token is allowed.
  SamplerParams ignoring = with_grammar("root ::= \"a\"");
  ignoring.ignore_eos = true;
  Sampler ends(ignoring, model_of(pieces, {2}));
  ends.accept(0);
  EXPECT_EQ(ends.sample(logits), 2);
}

TEST(TokenTrie, HoldsEveryTextOnce) {
  const test::GrammarVocab vocab = test::grammar_vocab(200);
  const SamplerModel model = vocab.model();
  const TokenTrie trie(model.n_vocab, model.piece, model.eog);
  std::string path;
  std::vector<std::string> found(vocab.pieces.size());
  const auto nodes = trie.nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    path.resize(nodes[i].depth - 1u);
    path += static_cast<char>(nodes[i].byte);
    ASSERT_GT(nodes[i].end, i);
    if (nodes[i].token >= 0) found[static_cast<size_t>(nodes[i].token)] = path;
  }
  for (int32_t token = 0; token < model.n_vocab; ++token) {
    const bool end = token == vocab.end_of_turn;
    EXPECT_EQ(found[static_cast<size_t>(token)], end ? "" : vocab.pieces[static_cast<size_t>(token)]);
    EXPECT_EQ(trie.text(token), found[static_cast<size_t>(token)]);
  }
}

}  // namespace
}  // namespace tandem
