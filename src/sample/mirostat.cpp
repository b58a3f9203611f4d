#include "sample/mirostat.h"

#include <algorithm>
#include <cmath>

#include "sample/truncation.h"

namespace tandem {
namespace {

constexpr size_t kFitted = 100;

// Returns how many candidates have an expected surprise of at most mu, if the probabilities follow a Zipf law
// with an exponent fitted to the likeliest, which are sorted at the front.
size_t zipf_k(const Candidates& candidates, double mu, double n_vocab) {
  const auto c = candidates.items();
  double tb = 0.0, tt = 0.0;
  for (size_t i = 0; i + 1 < std::min(c.size(), kFitted) && c[i + 1].p > 0; ++i) {
    const double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    tb += t * std::log(static_cast<double>(c[i].p) / c[i + 1].p);
    tt += t * t;
  }
  if (tt == 0.0) return 1;
  const double s = tb / tt;
  const double epsilon = s - 1.0;
  const double k = std::pow(epsilon * std::exp2(mu) / (1.0 - std::pow(n_vocab, -epsilon)), 1.0 / s);
  if (std::isnan(k)) return c.size();  // a uniform distribution: nothing to fit
  return static_cast<size_t>(std::clamp(k, 1.0, static_cast<double>(c.size())));
}

void keep_by_zipf(Candidates& candidates, double mu, double n_vocab) {
  candidates.sort_front(kFitted);
  top_k(candidates, static_cast<int32_t>(zipf_k(candidates, mu, n_vocab)));
}

// Keeps candidates with a surprise of at most mu bits, and always the likeliest.
void keep_within(Candidates& candidates, double mu) {
  const size_t best = candidates.best();
  const double p_best = candidates.items()[best].p;
  const double limit = std::min(p_best, std::exp2(-mu));
  // p >= limit, in terms of logits
  const double logit = candidates.items()[best].logit + std::log(limit / p_best);
  candidates.keep_from(static_cast<float>(logit));
  candidates.sort();
}

}  // namespace

Mirostat::Mirostat(const SamplerParams& params, int32_t n_vocab)
    : version_(params.mirostat), n_vocab_(n_vocab), target_(params.mirostat_ent), rate_(params.mirostat_lr) {
  reset();
}

size_t Mirostat::draw(Candidates& candidates, Rng& rng) {
  candidates.softmax();
  if (version_ == 1) {
    keep_by_zipf(candidates, mu_, n_vocab_);
  } else {
    keep_within(candidates, mu_);
  }
  const size_t chosen = tandem::draw(candidates, rng);
  mu_ -= rate_ * (-std::log2(static_cast<double>(candidates.items()[chosen].p)) - target_);
  return chosen;
}

void Mirostat::reset() {
  mu_ = 2.0 * target_;
}

}  // namespace tandem
