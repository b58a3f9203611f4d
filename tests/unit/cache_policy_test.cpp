// Which experts a cache keeps.
#include "exec/cache_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "plan/expert_hits.h"

namespace tandem {
namespace {

// The share of uses that finds its expert, of tokens that choose n_used of the experts with Zipf's law.
double found_share(CachePolicy& policy, size_t n_expert, size_t n_slots, int n_used, int n_steps,
                   unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<double> p(n_expert);
  for (size_t e = 0; e < n_expert; ++e) p[e] = std::pow(static_cast<double>(e + 1), -kUsualExpertSkew);
  std::discrete_distribution<size_t> choose(p.begin(), p.end());
  std::vector<size_t> name(n_expert);  // of the most used experts, as if by lot
  for (size_t e = 0; e < n_expert; ++e) name[e] = e;
  std::shuffle(name.begin(), name.end(), rng);
  std::vector<bool> held(n_expert, false);
  for (size_t e = 0; e < n_slots; ++e) held[e] = true;
  double n_found = 0, n = 0;
  for (int step = 0; step < n_steps; ++step) {
    std::vector<size_t> chosen;
    while (static_cast<int>(chosen.size()) < n_used) {
      const size_t e = name[choose(rng)];
      if (std::ranges::find(chosen, e) == chosen.end()) chosen.push_back(e);
    }
    for (const size_t e : chosen) policy.used(e, 1);
    for (const size_t e : chosen) {
      if (step >= n_steps / 2) n_found += held[e], ++n;
      if (held[e]) continue;
      size_t lowest = n_expert;
      for (size_t o = 0; o < n_expert; ++o) {
        const bool may_go = held[o] && std::ranges::find(chosen, o) == chosen.end();
        if (may_go && (lowest == n_expert || policy.score(o) < policy.score(lowest))) lowest = o;
      }
      if (lowest == n_expert || policy.score(e) < policy.score(lowest)) continue;
      held[lowest] = false;
      held[e] = true;
    }
    policy.end_step();
  }
  return n_found / n;
}

TEST(CachePolicy, RecentUseCountsForOne) {
  KeepsRecent policy(4);
  policy.used(2, 1);
  policy.end_step();
  policy.used(0, 9);
  policy.end_step();
  EXPECT_GT(policy.score(0), policy.score(2));
  EXPECT_GT(policy.score(2), policy.score(1));
  EXPECT_EQ(policy.score(1), policy.score(3));
}

TEST(CachePolicy, UsesCountHalfAfterTheHalfLife) {
  KeepsFrequent policy(3, 8);
  policy.used(0, 4);
  for (int i = 0; i < 8; ++i) policy.end_step();
  policy.used(1, 2);
  EXPECT_NEAR(policy.score(0) / policy.score(1), 1, 1e-9);
  for (int i = 0; i < 100000; ++i) policy.end_step();  // nothing overflows
  policy.used(2, 1);
  EXPECT_TRUE(std::isfinite(policy.score(2)));
  EXPECT_GT(policy.score(2), policy.score(0));
}

// Where tokens choose independently, what is used most is worth more than what was used last, and the planner expects what
// comes out.
TEST(CachePolicy, HitsAreThoseExpected) {
  for (const size_t n_slots : {16u, 48u, 96u}) {
    KeepsRecent recent(128);
    KeepsFrequent frequent(128, 256);
    const double lru = found_share(recent, 128, n_slots, 8, 4000, 5);
    const double lfu = found_share(frequent, 128, n_slots, 8, 4000, 5);
    EXPECT_GT(lfu, lru + 0.02) << n_slots;
    const CachedLayer layer{.n_expert = 128, .n_slots = static_cast<int64_t>(n_slots), .n_used = 8};
    const CacheHits hits = expected_cache_hits(layer, nullptr, 1);
    EXPECT_NEAR(hits.n_asked, 8, 1e-6);
    // Drawing 8 different experts flattens the law a little.
    EXPECT_NEAR(lfu, hits.n_found / hits.n_asked, 0.06) << n_slots;
  }
}

TEST(CachePolicy, RecordedUseIsExpectedToGoOn) {
  const CachedLayer layer{.layer = 3, .n_expert = 4, .n_slots = 2, .n_used = 1};
  ExpertUse use;
  use.counts[3] = {0, 70, 30, 0};
  const CacheHits hits = expected_cache_hits(layer, &use, 1);
  EXPECT_GT(hits.n_found / hits.n_asked, 0.98);
  EXPECT_NEAR(hits.pairs_found, hits.n_found / hits.n_asked, 1e-9);  // a token alone
  const CacheHits of_many = expected_cache_hits(layer, &use, 50);
  EXPECT_NEAR(of_many.n_asked, 2.4, 0.1);  // 0.5 uses of the two that were never used
  EXPECT_LT(of_many.n_found / of_many.n_asked, of_many.pairs_found);
}

}  // namespace
}  // namespace tandem
