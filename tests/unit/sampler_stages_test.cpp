// Each sampler by itself, on distributions small enough to work out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "sample/candidates.h"
#include "sample/dry.h"
#include "sample/mirostat.h"
#include "sample/params.h"
#include "sample/penalties.h"
#include "sample/temperature.h"
#include "sample/truncation.h"
#include "sample/xtc.h"
#include "support/sampler_model.h"

namespace tandem {
namespace {

Candidates from_probabilities(const std::vector<float>& p) {
  std::vector<float> logits;
  for (const float x : p) logits.push_back(std::log(x));
  Candidates c;
  c.assign(logits);
  return c;
}

std::vector<int32_t> ids(const Candidates& c) {
  std::vector<int32_t> out;
  for (const Candidate& x : c.items()) out.push_back(x.id);
  return out;
}

// Probabilities by id, 0 for removed tokens.
void expect_probabilities(Candidates c, const std::vector<float>& expected, float tolerance = 1e-5f) {
  c.softmax();
  std::vector<float> found(expected.size(), 0.0f);
  for (const Candidate& x : c.items()) found[static_cast<size_t>(x.id)] = x.p;
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << "token " << i;
}

using Ids = std::vector<int32_t>;
using test::kInf;

TEST(TopK, KeepsTheLargestSorted) {
  for (const auto& [k, expected] : std::vector<std::pair<int, Ids>>{{1, {3}},
                                                                    {3, {3, 2, 1}},
                                                                    {4, {3, 2, 1, 0}},
                                                                    {9, {3, 2, 1, 0}},
                                                                    {0, {0, 1, 2, 3}},
                                                                    {-1, {0, 1, 2, 3}}}) {
    Candidates c = from_probabilities({0.1f, 0.2f, 0.3f, 0.4f});
    top_k(c, k);
    EXPECT_EQ(ids(c), expected) << k;
  }
  Candidates c = from_probabilities({0.1f, 0.2f, 0.3f, 0.4f});
  top_k(c, 3);
  expect_probabilities(c, {0, 0.22222f, 0.33333f, 0.44444f});
}

TEST(TopK, BreaksTiesByTheLowerId) {
  Candidates c;
  c.assign(std::vector<float>{1, 2, 2, 1, 2, 2});
  top_k(c, 3);
  EXPECT_EQ(ids(c), (Ids{1, 2, 4}));
}

TEST(TopK, AgreesWithAFullSortWhateverTheSizes) {
  std::mt19937 random(7);
  for (const size_t n : {1u, 2u, 63u, 64u, 65u, 1000u, 20000u}) {
    std::vector<float> logits(n);
    for (float& x : logits) x = static_cast<float>(random() % 997);  // many ties
    Candidates sorted;
    sorted.assign(logits);
    sorted.sort();
    for (const size_t k : {size_t{1}, size_t{40}, n / 3, n - 1, n}) {
      if (k == 0 || k > n) continue;
      Candidates c;
      c.assign(logits);
      top_k(c, static_cast<int32_t>(k));
      Ids expected = ids(sorted);
      expected.resize(k);
      ASSERT_EQ(ids(c), expected) << n << " " << k;
    }
  }
}

TEST(LogitScan, FindsTheLargestWhateverTheSizes) {
  std::mt19937 random(3);
  LogitScan scan;
  for (const size_t n : {1u, 5u, 63u, 64u, 65u, 640u, 5000u}) {
    std::vector<float> logits(n);
    for (const int kind : {0, 1, 2, 3}) {
      for (size_t i = 0; i < n; ++i) {
        const auto noise = static_cast<float>(random() % 41) - 20.0f;
        const auto up = static_cast<float>(i);
        logits[i] = kind == 0 ? noise : kind == 1 ? up : kind == 2 ? -up : (i % 2 ? -kInf : -0.0f);
      }
      scan.scan(logits, 0);
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      ASSERT_EQ(scan.argmax(), best) << n << " " << kind;
      for (const size_t k : {size_t{1}, size_t{2}, size_t{40}, n}) {
        Candidates all, few;
        all.assign(logits);
        few.assign_largest(scan, k);
        top_k(all, static_cast<int32_t>(k));
        top_k(few, static_cast<int32_t>(k));
        ASSERT_EQ(ids(few), ids(all)) << n << " " << kind << " " << k;
      }
    }
  }
}

TEST(TopP, KeepsTheLikeliestThatReachP) {
  const std::vector<float> p = {0.1f, 0.2f, 0.3f, 0.4f};
  for (const auto& [limit, expected] :
       std::vector<std::pair<float, std::vector<float>>>{{0.0f, {0, 0, 0, 1}},
                                                         {0.7f, {0, 0, 0.428571f, 0.571429f}},
                                                         {0.8f, {0, 0.22222f, 0.33333f, 0.44444f}},
                                                         {1.0f, p}}) {
    Candidates c = from_probabilities(p);
    top_p(c, limit, 0);
    expect_probabilities(c, expected);
  }
  Candidates c = from_probabilities(p);
  top_p(c, 0.1f, 3);
  EXPECT_EQ(ids(c), (Ids{3, 2, 1}));
}

TEST(TopP, ReachesFarIntoAnEvenDistribution) {
  Candidates c;
  c.assign(std::vector<float>(5000, 1.0f));
  top_p(c, 0.5f, 0);
  EXPECT_NEAR(static_cast<double>(c.size()), 2500, 1);
  EXPECT_EQ(c.items()[0].id, 0);
  EXPECT_EQ(c.items()[c.size() - 1].id, static_cast<int32_t>(c.size()) - 1);
}

TEST(MinP, KeepsWhatIsLikelyComparedToTheLikeliest) {
  const std::vector<float> p = {0.1f, 0.2f, 0.3f, 0.4f};
  for (const auto& [limit, expected] : std::vector<std::pair<float, Ids>>{{0.0f, {0, 1, 2, 3}},
                                                                          {0.24f, {0, 1, 2, 3}},
                                                                          {0.26f, {1, 2, 3}},
                                                                          {0.49f, {1, 2, 3}},
                                                                          {0.51f, {2, 3}},
                                                                          {0.74f, {2, 3}},
                                                                          {0.76f, {3}},
                                                                          {1.0f, {3}},
                                                                          {1.05f, {3}}}) {
    Candidates c = from_probabilities(p);
    min_p(c, limit, 0);
    EXPECT_EQ(ids(c), expected) << limit;
  }
  Candidates c = from_probabilities(p);
  min_p(c, 0.9f, 2);
  EXPECT_EQ(ids(c), (Ids{3, 2}));
}

TEST(TypicalP, KeepsWhatIsNearestToTheEntropy) {
  Candidates c = from_probabilities({0.97f, 0.01f, 0.01f, 0.01f});
  typical_p(c, 0.5f, 0);
  EXPECT_EQ(ids(c), (Ids{0}));

  c = from_probabilities({0.4f, 0.2f, 0.2f, 0.2f});  // entropy 1.33, surprises 0.92 and 1.61
  typical_p(c, 0.5f, 0);
  EXPECT_EQ(ids(c), (Ids{1, 2, 3}));

  c = from_probabilities({0.4f, 0.2f, 0.2f, 0.2f});
  typical_p(c, 0.1f, 4);
  EXPECT_EQ(c.size(), 4u);

  // entropy 1.0889; distances from it: 0.396, 0.115, 1.214, 1.907
  c = from_probabilities({0.5f, 0.3f, 0.1f, 0.05f, 0.05f});
  typical_p(c, 0.75f, 0);
  EXPECT_EQ(ids(c), (Ids{0, 1}));

  c = from_probabilities({0.5f, 0.5f, 0.0f});
  typical_p(c, 0.9f, 0);
  EXPECT_EQ(ids(c), (Ids{0, 1}));
}

TEST(TopNSigma, KeepsLogitsNearTheLargest) {
  const std::vector<float> p = {0.1f, 0.2f, 0.3f, 0.4f};
  for (const auto& [n, expected] : std::vector<std::pair<float, std::vector<float>>>{
           {1.0f, {0, 0, 0.428571f, 0.571429f}}, {0.0f, p}, {-1.0f, p}, {3.0f, p}}) {
    Candidates c = from_probabilities(p);
    top_n_sigma(c, n);
    expect_probabilities(c, expected);
  }
  Candidates c;
  c.assign(std::vector<float>{-kInf, 1, 1, 5, -kInf});  // of three: mean 7/3, sigma 1.886
  top_n_sigma(c, 2.0f);
  EXPECT_EQ(ids(c), (Ids{3}));
}

TEST(Xtc, TakesTheTopChoicesButTheLast) {
  const std::vector<float> p = {0.4f, 0.3f, 0.2f, 0.1f};
  for (const auto& [threshold, expected] : std::vector<std::pair<float, Ids>>{
           {0.09f, {3}}, {0.19f, {2, 3}}, {0.29f, {1, 2, 3}}, {0.39f, {0, 1, 2, 3}}, {0.51f, {0, 1, 2, 3}}}) {
    Rng rng(1);
    Candidates c = from_probabilities(p);
    xtc(c, 1.0f, threshold, 0, rng);
    EXPECT_EQ(ids(c), expected) << threshold;
  }
  Rng rng(1);
  Candidates c = from_probabilities(p);
  xtc(c, 1.0f, 0.09f, 2, rng);
  EXPECT_EQ(c.size(), 4u) << "min_keep forbids it";
  xtc(c, 0.0f, 0.09f, 0, rng);
  EXPECT_EQ(c.size(), 4u);
}

TEST(Xtc, HappensWithItsProbability) {
  Rng rng(3);
  int taken = 0;
  for (int i = 0; i < 10000; ++i) {
    Candidates c = from_probabilities({0.6f, 0.4f});
    xtc(c, 0.3f, 0.1f, 0, rng);
    taken += c.size() == 1;
  }
  EXPECT_NEAR(taken, 3000, 150);  // 3.3 standard deviations
}

TEST(Temperature, DividesTheLogits) {
  Candidates c = from_probabilities({0.1f, 0.2f, 0.3f, 0.4f});
  temperature(c, 1.0f);
  expect_probabilities(c, {0.1f, 0.2f, 0.3f, 0.4f});
  temperature(c, 0.5f);  // squares the probabilities: 1 4 9 16
  expect_probabilities(c, {1 / 30.f, 4 / 30.f, 9 / 30.f, 16 / 30.f});
  temperature(c, 1e-30f);
  expect_probabilities(c, {0, 0, 0, 1});
}

TEST(DynamicTemperature, MovesWithTheEntropy) {
  Candidates even = from_probabilities({0.25f, 0.25f, 0.25f, 0.25f});
  dynamic_temperature(even, 1.0f, 0.5f, 1.0f);  // even: the highest, 1.5
  EXPECT_NEAR(even.items()[0].logit, std::log(0.25f) / 1.5f, 1e-5);

  // entropy of {0.5, 0.25, 0.25} is 1.0397 of at most 1.0986: 0.9464, squared 0.8957
  Candidates c = from_probabilities({0.5f, 0.25f, 0.25f});
  dynamic_temperature(c, 1.0f, 0.5f, 2.0f);
  EXPECT_NEAR(c.items()[0].logit, std::log(0.5f) / (0.5f + 0.8957f), 1e-4);

  Candidates sure;
  sure.assign(std::vector<float>{-kInf, 0.0f, -kInf});
  dynamic_temperature(sure, 0.3f, 0.5f, 1.0f);  // no entropy: from -0.2, which is 0
  EXPECT_EQ(ids(sure), (Ids{1}));
}

Candidates penalized(const Ids& last, float repeat, float frequency, float presence, int32_t last_n = 64) {
  SamplerParams params;
  params.repeat_penalty = repeat;
  params.frequency_penalty = frequency;
  params.presence_penalty = presence;
  params.repeat_last_n = last_n;
  Penalties penalties(params, 5, 4096);
  for (const int32_t token : last) penalties.accept(token);
  Candidates c = from_probabilities({0.2f, 0.2f, 0.2f, 0.2f, 0.2f});
  penalties.apply(c);
  return c;
}

TEST(Penalties, RepetitionMultipliesNegativeLogits) {
  expect_probabilities(penalized({0}, 50, 0, 0), {0, 0.25f, 0.25f, 0.25f, 0.25f});
  expect_probabilities(penalized({0, 1, 2}, 50, 0, 0), {0, 0, 0, 0.5f, 0.5f});
  expect_probabilities(penalized({0, 1, 2, 0, 0}, 50, 0, 0), {0, 0, 0, 0.5f, 0.5f});
}

TEST(Penalties, RepetitionDividesPositiveLogits) {
  SamplerParams params;
  params.repeat_penalty = 2.0f;
  Penalties penalties(params, 4, 4096);
  for (const int32_t token : {0, 1, 2}) penalties.accept(token);
  Candidates c;
  c.assign(std::vector<float>{4.0f, -4.0f, 0.0f, 4.0f});
  penalties.apply(c);
  const std::vector<float> expected = {2.0f, -8.0f, 0.0f, 4.0f};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(c.items()[i].logit, expected[i]);
}

TEST(Penalties, FrequencyCountsAndPresenceDoesNot) {
  expect_probabilities(penalized({0}, 1, 5, 5), {0.000011f, 0.249997f, 0.249997f, 0.249997f, 0.249997f});
  expect_probabilities(penalized({0, 1, 2}, 1, 5, 5),
                       {0.000023f, 0.000023f, 0.000023f, 0.499966f, 0.499966f});
  expect_probabilities(penalized({0, 1, 2, 0, 0}, 1, 5, 5), {0, 0.000023f, 0.000023f, 0.499977f, 0.499977f});
  const Candidates c = penalized({3, 3, 3}, 1, 0.5f, 0.25f);
  EXPECT_FLOAT_EQ(c.items()[3].logit, std::log(0.2f) - 1.75f);
}

TEST(Penalties, IgnoreTokensOutsideTheWindow) {
  const Candidates c = penalized({0, 1, 2, 0, 3, 4}, 1, 1, 0, 2);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_FLOAT_EQ(c.items()[i].logit, std::log(0.2f) - (i >= 3 ? 1.0f : 0.0f)) << i;
  }
  const Candidates off = penalized({0, 1}, 2, 1, 1, 0);
  for (const Candidate& x : off.items()) EXPECT_FLOAT_EQ(x.logit, std::log(0.2f));
}

// Tokens are written as letters: token 0 is "a", 1 is "b", ...
Candidates dried(const std::vector<float>& p, const Ids& last, float multiplier, int32_t allowed,
                 int32_t last_n, const std::vector<std::string>& breakers, float base = 1.1f) {
  SamplerParams params;
  params.dry_multiplier = multiplier;
  params.dry_base = base;
  params.dry_allowed_length = allowed;
  params.dry_penalty_last_n = last_n;
  params.dry_sequence_breakers = breakers;
  Dry dry(params, static_cast<int32_t>(p.size()), 4096,
          [](int32_t token) { return std::string(1, static_cast<char>('a' + token)); });
  for (const int32_t token : last) dry.accept(token);
  Candidates c = from_probabilities(p);
  dry.apply(c);
  return c;
}

TEST(Dry, PublishedCases) {
  const std::vector<float> four(4, 0.25f), five(5, 0.2f);
  expect_probabilities(dried(four, {0, 1}, 1, 2, 4, {}), four);
  expect_probabilities(dried(four, {0, 1, 2, 0, 1}, 1, 2, 5, {}),
                       {0.296923f, 0.296923f, 0.109232f, 0.296923f});
  expect_probabilities(dried(five, {0, 1, 3, 4, 0, 1}, 1, 2, 6, {"d"}), five);
  expect_probabilities(dried(five, {0, 1, 2, 0, 1}, 2, 2, 5, {}),
                       {0.241818f, 0.241818f, 0.032727f, 0.241818f, 0.241818f});
  expect_probabilities(dried(five, {0, 1, 2, 3, 4, 0, 1}, 1, 4, 7, {}), five);
}

float penalty_of(int32_t token, const Ids& last, const std::vector<std::string>& breakers,
                 int32_t last_n = -1, int32_t allowed = 2) {
  const std::vector<float> p(26, 1.0f / 26);
  const Candidates c = dried(p, last, 1.0f, allowed, last_n, breakers, 2.0f);
  return std::log(1.0f / 26) - c.items()[static_cast<size_t>(token)].logit;
}

TEST(Dry, GrowsWithTheLengthOfTheRepeat) {
  // a b c d a b c: d continues a repeat of 3; b continues none, c none of two
  EXPECT_NEAR(penalty_of(3, {0, 1, 2, 3, 0, 1, 2}, {}), 2.0f, 1e-5);  // 2^(3-2)
  EXPECT_NEAR(penalty_of(3, {4, 0, 1, 2, 3, 4, 0, 1, 2}, {}), 4.0f, 1e-5);
  EXPECT_EQ(penalty_of(0, {0, 1, 2, 3, 0, 1, 2}, {}), 0.0f);
  // a b c c b c y a b c: c continues "a b c" (3), y continues "b c" (2), b continues "c" (1, free)
  const Ids text = {0, 1, 2, 2, 1, 2, 24, 0, 1, 2};
  EXPECT_NEAR(penalty_of(2, text, {}), 2.0f, 1e-5);
  EXPECT_NEAR(penalty_of(24, text, {}), 1.0f, 1e-5);
  EXPECT_EQ(penalty_of(1, text, {}), 0.0f);
  EXPECT_NEAR(penalty_of(1, text, {}, -1, 1), 1.0f, 1e-5);  // one repeated token is enough: 2^(1-1)
}

TEST(Dry, AgreesWithTryingEveryPosition) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    Ids history(1 + random() % 60);
    for (int32_t& t : history) t = static_cast<int32_t>(random() % 3);
    const auto n = static_cast<int>(history.size());
    std::vector<int> longest(26, 0);
    for (int end = 1; end < n; ++end) {  // an earlier occurrence ends before `end`
      int length = 0;
      while (length < end &&
             history[static_cast<size_t>(end - 1 - length)] == history[static_cast<size_t>(n - 1 - length)]) {
        ++length;
      }
      int& best = longest[static_cast<size_t>(history[static_cast<size_t>(end)])];
      best = std::max(best, length);
    }
    const std::vector<float> p(26, 1.0f / 26);
    const Candidates c = dried(p, history, 0.5f, 2, -1, {}, 1.25f);
    for (size_t t = 0; t < 3; ++t) {
      const float expected =
          longest[t] >= 2 ? 0.5f * std::pow(1.25f, static_cast<float>(longest[t] - 2)) : 0.0f;
      ASSERT_NEAR(p[t] > 0 ? std::log(1.0f / 26) - c.items()[t].logit : 0, expected, 2e-3f * (1 + expected));
    }
  }
}

TEST(Dry, StopsAtSequenceBreakers) {
  // a b c x a b c: with a breaker x, d is compared only after it
  EXPECT_GT(penalty_of(3, {0, 1, 2, 3, 24, 0, 1, 2}, {"y"}), 0.0f);
  EXPECT_EQ(penalty_of(3, {0, 1, 2, 3, 0, 1, 24}, {"y"}), 0.0f);
  // the breaker in the middle cuts the repeat of 4 to 2
  EXPECT_NEAR(penalty_of(3, {0, 24, 1, 2, 3, 0, 24, 1, 2}, {}), 4.0f, 1e-5);
  EXPECT_NEAR(penalty_of(3, {0, 24, 1, 2, 3, 0, 24, 1, 2}, {"y"}), 1.0f, 1e-5);
  // over several tokens, ending in the second
  EXPECT_NEAR(penalty_of(3, {0, 24, 25, 1, 2, 3, 0, 24, 25, 1, 2}, {"yz"}), 1.0f, 1e-5);
  EXPECT_NEAR(penalty_of(3, {0, 24, 25, 1, 2, 3, 0, 24, 25, 1, 2}, {"zy"}), 8.0f, 1e-5);
  // a breaker itself is never penalized
  EXPECT_EQ(penalty_of(24, {0, 1, 24, 0, 1}, {"y"}), 0.0f);
}

TEST(Dry, HonoursItsRange) {
  EXPECT_GT(penalty_of(3, {0, 1, 2, 3, 4, 5, 0, 1, 2}, {}, 9), 0.0f);
  EXPECT_EQ(penalty_of(3, {0, 1, 2, 3, 4, 5, 0, 1, 2}, {}, 6), 0.0f);
  EXPECT_EQ(penalty_of(3, {0, 1, 2, 3, 0, 1, 2}, {}, 0), 0.0f);
  Ids long_history;
  for (int i = 0; i < 1000; ++i) long_history.push_back(i % 7);
  EXPECT_NEAR(penalty_of(long_history.size() % 7, long_history, {}, 20), std::pow(2.0f, 11.0f),
              1e-2);  // 13 - 2
}

TEST(Dry, HugeRepeatsStayFinite) {
  Ids history(3000, 0);
  const float penalty = penalty_of(0, history, {});
  EXPECT_TRUE(std::isfinite(penalty));
  EXPECT_GT(penalty, 1e37f);
}

// The mean surprise of a long text drawn from a Zipf distribution, measured by that distribution.
double mean_surprise(int32_t version, float target) {
  SamplerParams params;
  params.mirostat = version;
  params.mirostat_ent = target;
  constexpr int kVocab = 2000;
  std::vector<float> logits(kVocab);
  for (int i = 0; i < kVocab; ++i)
    logits[static_cast<size_t>(i)] = -1.1f * std::log(static_cast<float>(i + 1));
  Mirostat mirostat(params, kVocab);
  EXPECT_EQ(mirostat.mu(), 2.0 * target);
  Rng rng(5);
  double sum = 0.0;
  constexpr int kSkipped = 500, kCounted = 4000;
  Candidates c;
  for (int i = 0; i < kSkipped + kCounted; ++i) {
    c.assign(logits);
    const size_t chosen = mirostat.draw(c, rng);
    if (i >= kSkipped) sum += -std::log2(c.items()[chosen].p);
  }
  return sum / kCounted;
}

TEST(Mirostat, BothVersionsReachTheTargetSurprise) {
  for (const int32_t version : {1, 2}) {
    for (const float target : {2.0f, 3.5f, 5.0f}) {
      EXPECT_NEAR(mean_surprise(version, target), target, 0.15) << "version " << version;
    }
  }
}

TEST(Mirostat, WorksWithASingleCandidate) {
  for (const int32_t version : {1, 2}) {
    SamplerParams params;
    params.mirostat = version;
    Rng rng(1);
    Mirostat mirostat(params, 4);
    Candidates c;
    for (const std::vector<float>& logits :
         {std::vector<float>{0, 0, 0, 0}, std::vector<float>{-kInf, 1, -kInf, -kInf},
          std::vector<float>{2}}) {
      c.assign(logits);
      const size_t chosen = mirostat.draw(c, rng);
      EXPECT_GT(c.items()[chosen].p, 0.0f);
      EXPECT_TRUE(std::isfinite(mirostat.mu()));
    }
  }
}

}  // namespace
}  // namespace tandem
