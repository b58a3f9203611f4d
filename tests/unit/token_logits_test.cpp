// The sampler with the largest logits alone: the same tokens as with all of them, which it asks for only where it must.
#include "sample/token_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "base/error.h"
#include "sample/sampler.h"
#include "support/grammar_text.h"
#include "support/sampler_model.h"

namespace tandem {
namespace {

using test::kInf;
using test::sampler_model;

constexpr size_t kTop = 64;

// Logits as a device hands them out.
class LogitsDevice {
 public:
  explicit LogitsDevice(std::vector<float> logits) : logits_(std::move(logits)) {
    std::vector<Candidate> order;
    for (size_t i = 0; i < logits_.size(); ++i) order.push_back({static_cast<int32_t>(i), logits_[i], 0.0f});
    const auto first = [](const Candidate& a, const Candidate& b) {
      if (std::isnan(a.logit) || std::isnan(b.logit)) return std::isnan(a.logit) && !std::isnan(b.logit);
      return comes_before(a, b);
    };
    std::sort(order.begin(), order.end(), first);
    const size_t n = std::min(kTop, order.size());
    for (size_t i = 0; i < n; ++i) top_.push_back(std::bit_cast<float>(order[i].id));
    for (size_t i = 0; i < n; ++i) top_.push_back(order[i].logit);
  }

  TokenLogits some() {
    return {top_, [this] {
              ++n_asked_;
              return std::span<const float>(logits_);
            }};
  }
  const std::vector<float>& all() const { return logits_; }
  int n_asked() const { return n_asked_; }

 private:
  std::vector<float> logits_, top_;
  int n_asked_ = 0;
};

std::vector<float> coarse_logits(std::mt19937& random, size_t n, int n_values) {
  std::vector<float> logits(n);
  for (float& x : logits)
    x = 12.0f * static_cast<float>(random() % static_cast<unsigned>(n_values)) / static_cast<float>(n_values);
  if (n_values < 10) logits[n / 2] = -kInf;
  return logits;
}

// A text of 60 tokens, chosen both ways. Returns how often all logits were asked for.
int compare_ways(const SamplerParams& params, const SamplerModel& of, int n_values = 100000) {
  Sampler with_all(params, of), with_some(params, of);
  std::mt19937 random(7);
  int n_asked = 0;
  for (int i = 0; i < 60; ++i) {
    LogitsDevice device(coarse_logits(random, static_cast<size_t>(of.n_vocab), n_values));
    const int32_t token = with_all.sample(device.all());
    EXPECT_EQ(with_some.sample(device.some()), token) << "token " << i;
    with_all.accept(token);
    with_some.accept(token);
    n_asked += device.n_asked();
  }
  return n_asked;
}

SamplerParams seeded() {
  SamplerParams p;
  p.seed = 11;
  return p;
}

TEST(TokenLogits, GreedyChoiceNeedsTheLargest) {
  SamplerParams p = seeded();
  p.temp = 0;
  EXPECT_EQ(Sampler(p, sampler_model(3000)).n_largest(), 1u);
  EXPECT_EQ(compare_ways(p, sampler_model(3000)), 0);
  EXPECT_EQ(compare_ways(p, sampler_model(3000), 3), 0) << "many equal logits";
  EXPECT_EQ(compare_ways(p, sampler_model(10)), 0) << "a small vocabulary";
}

TEST(TokenLogits, ChainsThatBeginWithTopKNeedAsMany) {
  for (const int32_t k : {1, 2, 40, 64}) {
    SamplerParams p = seeded();
    p.top_k = k;
    EXPECT_EQ(Sampler(p, sampler_model(3000)).n_largest(), static_cast<size_t>(k));
    EXPECT_EQ(compare_ways(p, sampler_model(3000)), 0) << k;
    EXPECT_EQ(compare_ways(p, sampler_model(3000), 5), 0) << k << ", many equal logits";
    p.typical_p = 0.9f;
    p.xtc_probability = 0.5f;
    p.dynatemp_range = 0.5f;
    p.temp = 1.5f;
    EXPECT_EQ(compare_ways(p, sampler_model(3000)), 0) << k;
  }
}

TEST(TokenLogits, AllOthersNeedAll) {
  std::vector<SamplerParams> chains(8, seeded());
  chains[0].top_k = 0;
  chains[1].top_k = 65;  // more than there are
  chains[2].repeat_penalty = 1.1f;
  chains[3].dry_multiplier = 0.8f;
  chains[4].top_n_sigma = 1.0f;
  chains[5].mirostat = 2;
  chains[6].logit_bias = {{5, 3.0f}};
  chains[7].stages = {SamplerStage::temperature};
  for (size_t i = 0; i < chains.size(); ++i) EXPECT_EQ(compare_ways(chains[i], sampler_model(3000)), 60) << i;
  SamplerParams greedy = seeded();
  greedy.temp = 0;
  greedy.presence_penalty = 0.5f;
  EXPECT_EQ(compare_ways(greedy, sampler_model(3000)), 60);
  EXPECT_EQ(compare_ways(seeded(), sampler_model(40)), 60) << "top_k keeps all of them";
}

// All are asked for where the grammar does not allow what the model wants, and at its end.
TEST(TokenLogits, GrammarsAskForAllWhereTheyMust) {
  const test::GrammarVocab vocab = test::grammar_vocab(1000);
  for (const float temp : {0.0f, 1.0f}) {
    SamplerParams p = seeded();
    p.temp = temp;
    p.grammar = Grammar::parse("root ::= [a-m ]*");
    const int n_asked = compare_ways(p, vocab.model());
    EXPECT_GT(n_asked, 0);
    p.grammar = Grammar::parse("root ::= [^\\x00]*");
    EXPECT_LT(compare_ways(p, vocab.model()), n_asked);
  }
}

TEST(TokenLogits, WhatCannotBeChosenFromIsTheSameError) {
  for (const float bad : {kInf, std::nanf(""), -std::nanf(""), -kInf}) {
    std::vector<float> logits(200, bad == -kInf ? bad : 1.0f);
    logits[70] = bad;
    LogitsDevice device(logits);
    SamplerParams p = seeded();
    for (const float temp : {0.0f, 1.0f}) {
      p.temp = temp;
      std::string expected, found;
      try {
        Sampler(p, sampler_model(200)).sample(device.all());
      } catch (const Error& e) {
        expected = e.what();
      }
      try {
        Sampler(p, sampler_model(200)).sample(device.some());
      } catch (const Error& e) {
        found = e.what();
      }
      EXPECT_NE(expected, "");
      EXPECT_EQ(found, expected);
    }
  }
}

}  // namespace
}  // namespace tandem
