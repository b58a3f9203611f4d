// Guesses from the text so far, and how many guesses a step checks.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "speculate/ngram_drafter.h"
#include "speculate/speculation.h"

namespace tandem {
namespace {

std::vector<int32_t> ngram_guesses(const std::vector<int32_t>& text, size_t n) {
  NgramDrafter drafter;
  std::vector<int32_t> ids;
  drafter.draft(text, [&](const Guess& g) {
    ids.push_back(g.id);
    return ids.size() < n;
  });
  return ids;
}

using Ids = std::vector<int32_t>;

TEST(NgramDrafter, FollowsTheLongestAgreement) {
  // ... 1 2 3 appears twice: after 9 (as at the end), and later after 8.
  EXPECT_EQ(ngram_guesses({9, 1, 2, 3, 40, 41, 8, 1, 2, 3, 50, 51, 9, 1, 2, 3}, 2), (Ids{40, 41}));
  // Of two that agree as long, the latest.
  EXPECT_EQ(ngram_guesses({7, 1, 2, 60, 6, 1, 2, 70, 5, 1, 2}, 1), (Ids{70}));
}

TEST(NgramDrafter, NeedsTwoTokens) {
  EXPECT_TRUE(ngram_guesses({1}, 4).empty());
  EXPECT_TRUE(ngram_guesses({1, 1}, 4).empty());
  EXPECT_TRUE(ngram_guesses({5, 1, 6, 1}, 4).empty());
  EXPECT_EQ(ngram_guesses({5, 1, 6, 5, 1}, 1), (Ids{6}));
}

TEST(NgramDrafter, RepeatsAPeriod) {
  EXPECT_EQ(ngram_guesses({1, 2, 3, 1, 2, 3, 1, 2}, 7), (Ids{3, 1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(ngram_guesses({4, 4, 4, 4}, 3), (Ids{4, 4, 4}));
}

// Every guess agrees with the definition, on texts of few different tokens.
TEST(NgramDrafter, AgreesWithASlowSearch) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> text(1 + random() % 60);
    for (int32_t& id : text) id = static_cast<int32_t>(random() % 4);
    size_t best = 1, end_of_best = 0;
    for (size_t end = 1; end < text.size(); ++end) {
      size_t n = 0;
      while (n < end && text[end - 1 - n] == text[text.size() - 1 - n]) ++n;
      if (n > 1 && n >= best) {
        best = n;
        end_of_best = end;
      }
    }
    const Ids found = ngram_guesses(text, 1);
    if (end_of_best == 0) {
      EXPECT_TRUE(found.empty());
    } else {
      EXPECT_EQ(found, Ids{text[end_of_best]});
    }
  }
}

// A drafter whose guesses the test makes.
class NoDrafter final : public Drafter {
 public:
  explicit NoDrafter(double prior) : prior_(prior) {}
  void draft(std::span<const int32_t>, const std::function<bool(const Guess&)>&) override {}
  bool is_free() const override { return true; }
  double prior(int) const override { return prior_; }

 private:
  double prior_;
};

// Texts of guesses that are right with a probability of their confidence, on a machine whose steps of n rows take
// seconds(n), each guess guess_seconds.
struct Machine {
  std::function<double(int64_t)> seconds;
  double guess_seconds = 0;
  double noise = 0;  // of times, relative
  bool is_recurrent = false;
  double first = 1;  // times as long takes the first step of a size
};

struct SimulatedRun {
  double seconds = 0;
  double preparing = 0;  // of them, what first steps took beyond the usual
  int64_t n_tokens = 0;
  double per_token() const { return seconds / static_cast<double>(n_tokens); }
};

constexpr int64_t kMaxGuesses = 16;

SimulatedRun simulate(const Machine& m, const std::function<double(int64_t)>& p_right, int64_t n_tokens,
                      uint32_t seed) {
  const NoDrafter drafter(0.5);
  DraftPolicy policy(drafter, kMaxGuesses);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  SimulatedRun out;
  std::set<int64_t> seen;  // sizes of steps
  int64_t n_again = 0;
  while (out.n_tokens < n_tokens) {
    const DraftPolicy::Step step{1 + n_again, m.is_recurrent};
    std::vector<Guess> guesses;
    const auto wants = [&] {
      return static_cast<int64_t>(guesses.size()) < kMaxGuesses &&
             (m.guess_seconds == 0 || policy.wants_more(guesses, step));
    };
    while (wants()) guesses.push_back({0, static_cast<int>(p_right(out.n_tokens) * kConfidences)});
    const int64_t k = policy.n_to_check(guesses, step);
    const double drafting = m.guess_seconds * static_cast<double>(guesses.size());
    const bool is_first = step.n_rows + k > 1 && seen.insert(step.n_rows + k).second;
    const double taken =
        m.seconds(step.n_rows + k) * (is_first ? m.first : 1) * (1 + m.noise * (uniform(random) - 0.5));
    policy.add_step(step.n_rows + k, taken, m.guess_seconds > 0 ? static_cast<int64_t>(guesses.size()) : 0,
                    drafting);
    int64_t n_right = 0;
    bool wrong = false;
    for (size_t i = 0; i < guesses.size() && !wrong; ++i) {
      wrong = uniform(random) >= p_right(out.n_tokens);
      policy.add_guess(guesses[i].confidence, !wrong);
      if (static_cast<int64_t>(i) >= k) break;  // judged like the first token of a step without guesses
      if (!wrong) ++n_right;
    }
    policy.settle_step(1 + n_right);
    n_again = m.is_recurrent && n_right < k ? step.n_rows + n_right : 0;
    if (is_first) out.preparing += taken * (1 - 1 / m.first);
    out.seconds += taken + drafting;
    out.n_tokens += 1 + n_right;
  }
  return out;
}

std::function<double(int64_t)> linear(double row) {
  return [row](int64_t n) { return 0.01 * (1 + row * static_cast<double>(n - 1)); };
}
std::function<double(int64_t)> always(double p) {
  return [p](int64_t) { return p; };
}

// Guesses that are never right, or cost as much as steps: 3% at most are lost. A step of several tokens takes at most as long as so
// many steps.
TEST(DraftPolicy, LosesAtMostThreePercent) {
  for (const double row : {0.02, 0.1, 0.3, 0.6, 1.0}) {
    for (const double p : {0.0, 0.05, 0.2}) {
      for (const double guess_seconds : {0.0, 0.0005, 0.005, 0.02}) {
        for (const bool is_recurrent : {false, true}) {
          const Machine m{linear(row), guess_seconds, 0.05, is_recurrent};
          for (uint32_t seed = 1; seed <= 3; ++seed) {
            const SimulatedRun out = simulate(m, always(p), 400, seed);
            EXPECT_LT(out.per_token(), 1.03 * 0.01) << "row " << row << ", right " << p << ", guess "
                                                    << guess_seconds << (is_recurrent ? ", recurrent" : "");
          }
        }
      }
    }
  }
}

// A text whose guesses are right at first and then never again: what was gained does not pay for losses.
TEST(DraftPolicy, StopsWhenGuessesGetWorse) {
  const Machine m{linear(0.2), 0, 0.02};
  const SimulatedRun good = simulate(m, always(0.95), 1000, 5);
  const SimulatedRun both = simulate(
      m, [](int64_t n) { return n < 1000 ? 0.95 : 0.0; }, 2000, 5);
  EXPECT_LT(both.seconds - good.seconds, 1.06 * 0.01 * 1000);
}

// As fast as the best fixed number of guesses, or nearly.
TEST(DraftPolicy, FindsTheBestNumber) {
  for (const double row : {0.03, 0.1, 0.3, 0.7}) {
    for (const double p : {0.3, 0.6, 0.8, 0.95, 0.999}) {
      double best = 0.01;
      for (int k = 1; k <= kMaxGuesses; ++k) {
        const double n_tokens = (1 - std::pow(p, k + 1)) / (1 - p);
        best = std::min(best, linear(row)(1 + k) / n_tokens);
      }
      const SimulatedRun out = simulate({linear(row), 0, 0.05}, always(p), 4000, 7);
      EXPECT_LT(out.per_token(), 1.1 * best) << "row " << row << ", right " << p;
    }
  }
}

// With a draft model, which stops drafting where guesses are not worth their time.
TEST(DraftPolicy, FindsTheBestNumberOfGuessesThatCost) {
  for (const double guess : {0.0003, 0.001, 0.003}) {
    for (const double p : {0.5, 0.8, 0.95}) {
      double best = 0.01;
      for (int k = 1; k <= kMaxGuesses; ++k) {
        const double n_tokens = (1 - std::pow(p, k + 1)) / (1 - p);
        best = std::min(best, (linear(0.1)(1 + k) + k * guess) / n_tokens);
      }
      const SimulatedRun out = simulate({linear(0.1), guess, 0.05}, always(p), 4000, 9);
      EXPECT_LT(out.per_token(), 1.12 * best) << "guess " << guess << ", right " << p;
    }
  }
}

// The first step of a size may be slow, as where a GPU's launches are recorded: no reason to give the size up.
TEST(DraftPolicy, TriesASizeAgainThatWasSlowOnce) {
  Machine m{linear(0.1), 0, 0.05};
  const SimulatedRun usual = simulate(m, always(0.95), 1000, 3);
  m.first = 20;
  const SimulatedRun slow = simulate(m, always(0.95), 1000, 3);
  EXPECT_GT(slow.preparing, 0.1);
  EXPECT_LT(slow.seconds - slow.preparing, 1.3 * usual.seconds);
  EXPECT_LT(usual.per_token(), 0.5 * 0.01);
}

// Steps that get cheaper or dearer as the text goes on: measured again.
TEST(DraftPolicy, NothingIsCheckedBeforeAStepWasMeasured) {
  const NoDrafter drafter(1.0);
  DraftPolicy policy(drafter, 4);
  const std::vector<Guess> guesses(4);
  EXPECT_EQ(policy.n_to_check(guesses, {}), 0);
  EXPECT_FALSE(policy.wants_more({}, {}));
  policy.add_step(1, 0.01, 0, 0);
  policy.settle_step(1);
  EXPECT_GT(policy.n_to_check(guesses, {}), 0);
}

TEST(DraftPolicy, EstimatesStepsFromTheirNeighbours) {
  const NoDrafter drafter(0.5);
  DraftPolicy policy(drafter, 8);
  policy.add_step(1, 0.010, 0, 0);
  policy.add_step(5, 0.018, 0, 0);
  EXPECT_DOUBLE_EQ(policy.step_seconds(1), 0.010);
  EXPECT_DOUBLE_EQ(policy.step_seconds(3), 0.014);
  EXPECT_NEAR(policy.step_seconds(9), 0.026, 1e-12);
}

}  // namespace
}  // namespace tandem
