#include "tools/perplexity/kl_divergence.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tandem::tools {
namespace {

constexpr float kMinLogProbability = -16.0f;  // clamped in the base file: rarer tokens contribute nothing

Estimate exp_of(const Estimate& log) {
  return {std::exp(log.value), std::exp(log.value) * log.error};
}

}  // namespace

Estimate Sample::mean() const {
  if (values_.empty()) return {};
  const auto n = static_cast<double>(values_.size());
  double sum = 0, squares = 0;
  for (const double v : values_) sum += v;
  const double mean = sum / n;
  for (const double v : values_) squares += (v - mean) * (v - mean);
  return {mean, values_.size() > 1 ? std::sqrt(squares / n / (n - 1)) : 0.0};
}

double Sample::quantile(double share) const {
  if (values_.empty()) return 0;
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const double above = at - static_cast<double>(below);
  return (1 - above) * sorted[below] + above * sorted[std::min(below + 1, sorted.size() - 1)];
}

double Sample::covariance_of_means(const Sample& other) const {
  TANDEM_CHECK(count() == other.count());
  if (count() < 2) return 0;
  const double mine = mean().value, theirs = other.mean().value;
  double sum = 0;
  for (size_t i = 0; i < count(); ++i) sum += (values_[i] - mine) * (other.values_[i] - theirs);
  const auto n = static_cast<double>(count());
  return sum / n / (n - 1);
}

void KlDivergence::add(std::span<const float> logits, const PackedLogits& base, int32_t target) {
  const size_t top = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const size_t base_top =
      static_cast<size_t>(std::max_element(base.q.begin(), base.q.end()) - base.q.begin());
  double sum_exp = 0;
  for (const float logit : logits) sum_exp += std::exp(static_cast<double>(logit) - logits[top]);
  const double log_sum = logits[top] + std::log(sum_exp);
  double divergence = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float log_base = base.log_probability(i);
    if (log_base <= kMinLogProbability) continue;
    divergence += std::exp(static_cast<double>(log_base)) * (log_base - (logits[i] - log_sum));
  }
  const auto at = static_cast<size_t>(target);
  const double nll = log_sum - logits[at], base_nll = -base.log_probability(at);
  const double difference = std::exp(-nll) - std::exp(-base_nll);
  nll_.add(nll);
  base_nll_.add(base_nll);
  kld_.add(divergence);
  p_difference_.add(difference);
  squared_difference_.add(difference * difference);
  n_same_top_ += top == base_top;
}

Estimate KlDivergence::perplexity() const {
  return exp_of(nll_.mean());
}
Estimate KlDivergence::base_perplexity() const {
  return exp_of(base_nll_.mean());
}

Estimate KlDivergence::log_ratio() const {
  const Estimate mine = nll_.mean(), base = base_nll_.mean();
  const double variance =
      mine.error * mine.error + base.error * base.error - 2 * nll_.covariance_of_means(base_nll_);
  return {mine.value - base.value, std::sqrt(std::max(variance, 0.0))};
}

double KlDivergence::correlation() const {
  const double errors = nll_.mean().error * base_nll_.mean().error;
  return errors > 0 ? nll_.covariance_of_means(base_nll_) / errors : 0.0;
}

Estimate KlDivergence::p_difference_rms() const {
  const Estimate square = squared_difference_.mean();
  const double rms = std::sqrt(square.value);
  return {rms, rms > 0 ? 0.5 / rms * square.error : 0.0};
}

Estimate KlDivergence::same_top() const {
  if (count() == 0) return {};
  const auto n = static_cast<double>(count());
  const double share = static_cast<double>(n_same_top_) / n;
  return {share, n > 1 ? std::sqrt(share * (1 - share) / (n - 1)) : 0.0};
}

std::string kl_table_header() {
  return "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence"
         "              Δp RMS            Same top p\n";
}

std::string kl_table_row(int64_t chunk, const KlDivergence& d) {
  const Estimate ppl = d.perplexity(), ratio = d.log_ratio(), kld = d.kld().mean(),
                 rms = d.p_difference_rms();
  const Estimate top = d.same_top();
  return format(
      "{:4}    {:9.4f} ± {:9.4f}    {:10.5f} ± {:10.5f}    {:10.5f} ± {:10.5f}    {:6.3f} ± {:6.3f} %    "
      "{:6.3f} ± "
      "{:6.3f} %\n",
      chunk, ppl.value, ppl.error, ratio.value, ratio.error, kld.value, kld.error, 100 * rms.value,
      100 * rms.error, 100 * top.value, 100 * top.error);
}

namespace {

std::string perplexity_report(const KlDivergence& d) {
  const Estimate ppl = d.perplexity(), base = d.base_perplexity(), log_ratio = d.log_ratio();
  const Estimate ratio = exp_of(log_ratio);
  // The error of the difference, with the covariance of both.
  const double covariance = d.correlation() * ppl.error * base.error;
  const double variance = ppl.error * ppl.error + base.error * base.error - 2 * covariance;
  std::string text = "\n====== Perplexity statistics ======\n";
  text += format("Mean PPL(Q)                   : {:10.6f} ± {:10.6f}\n", ppl.value, ppl.error);
  text += format("Mean PPL(base)                : {:10.6f} ± {:10.6f}\n", base.value, base.error);
  text += format("Cor(ln(PPL(Q)), ln(PPL(base))): {:6.2f}%\n", 100 * d.correlation());
  text += format("Mean ln(PPL(Q)/PPL(base))     : {:10.6f} ± {:10.6f}\n", log_ratio.value, log_ratio.error);
  text += format("Mean PPL(Q)/PPL(base)         : {:10.6f} ± {:10.6f}\n", ratio.value, ratio.error);
  text += format("Mean PPL(Q)-PPL(base)         : {:10.6f} ± {:10.6f}\n", ppl.value - base.value,
                 std::sqrt(std::max(variance, 0.0)));
  return text;
}

struct NamedQuantile {
  const char* name;  // padded to seven columns
  double share;
};
constexpr NamedQuantile kQuantiles[] = {{"Maximum", 1.0},   {"99.9%  ", 0.999}, {"99.0%  ", 0.99},
                                        {"95.0%  ", 0.95},  {"90.0%  ", 0.9},   {"Median ", 0.5},
                                        {"10.0%  ", 0.1},   {" 5.0%  ", 0.05},  {" 1.0%  ", 0.01},
                                        {" 0.1%  ", 0.001}, {"Minimum", 0.0}};

}  // namespace

std::string kl_report(const KlDivergence& d) {
  std::string text = perplexity_report(d);
  const Estimate kld = d.kld().mean(), difference = d.p_difference().mean(), rms = d.p_difference_rms();
  const Estimate top = d.same_top();
  text += "\n====== KL divergence statistics ======\n";
  text += format("Mean    KLD: {:10.6f} ± {:10.6f}\n", kld.value, kld.error);
  for (const auto& [name, share] : kQuantiles)
    text += format("{} KLD: {:10.6f}\n", name, d.kld().quantile(share));
  text += "\n====== Token probability statistics ======\n";
  text += format("Mean    Δp: {:6.3f} ± {:5.3f} %\n", 100 * difference.value, 100 * difference.error);
  for (const auto& [name, share] : kQuantiles) {
    text += format("{} Δp: {:6.3f}%\n", name, 100 * d.p_difference().quantile(share));
  }
  text += format("RMS Δp    : {:6.3f} ± {:5.3f} %\n", 100 * rms.value, 100 * rms.error);
  text += format("Same top p: {:6.3f} ± {:5.3f} %\n", 100 * top.value, 100 * top.error);
  return text;
}

}  // namespace tandem::tools
