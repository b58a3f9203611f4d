// Compares a model's predictions with those of its base: the statistics of llama-perplexity's
// --kl-divergence.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/perplexity/base_logits.h"

namespace tandem::tools {

struct Estimate {
  double value = 0, error = 0;  // standard error
};

// Keeps single values, for mean and quantiles.
class Sample {
 public:
  void add(double value) { values_.push_back(value); }
  size_t count() const { return values_.size(); }
  Estimate mean() const;
  double quantile(double share) const;  // 0: minimum, 0.5: median, 1: maximum
  double covariance_of_means(const Sample& other) const;

 private:
  std::vector<double> values_;
};

class KlDivergence {
 public:
  // Adds the logits [n_vocab] of this model and of the base for a token followed by `target`.
  void add(std::span<const float> logits, const PackedLogits& base, int32_t target);

  size_t count() const { return kld_.count(); }
  const Sample& kld() const { return kld_; }
  const Sample& p_difference() const { return p_difference_; }  // of the target: this minus base
  Estimate perplexity() const;
  Estimate base_perplexity() const;
  Estimate log_ratio() const;  // ln(perplexity / base)
  double correlation() const;  // of the two logarithms
  Estimate p_difference_rms() const;
  Estimate same_top() const;  // share of tokens for which both models predict the same token

 private:
  Sample nll_, base_nll_, kld_, p_difference_, squared_difference_;
  size_t n_same_top_ = 0;
};

std::string kl_table_header();
std::string kl_table_row(int64_t chunk, const KlDivergence& divergence);
std::string kl_report(const KlDivergence& divergence);  // printed at the end

}  // namespace tandem::tools
