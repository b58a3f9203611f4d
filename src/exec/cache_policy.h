// CachePolicy: which experts of a layer a cache keeps. Every expert has a score; the one in a slot with the lowest goes, for
// one with a score that is not lower. Another policy is another class with the same two functions.
//
// Not synchronized.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace tandem {

class CachePolicy {
 public:
  virtual ~CachePolicy() = default;
  // A step uses the expert for n_tokens; once for each expert of the step.
  virtual void used(size_t expert, int64_t n_tokens) = 0;
  virtual void end_step() = 0;
  virtual double score(size_t expert) const = 0;
};

// Experts used last stay.
class KeepsRecent final : public CachePolicy {
 public:
  explicit KeepsRecent(size_t n_expert) : used_in_(n_expert, 0) {}
  void used(size_t expert, int64_t) override { used_in_[expert] = step_; }
  void end_step() override { ++step_; }
  double score(size_t expert) const override { return static_cast<double>(used_in_[expert]); }

 private:
  uint64_t step_ = 1;
  std::vector<uint64_t> used_in_;  // [expert] step; 0: none
};

// Experts used most stay, where a use counts half after `half_life` steps.
class KeepsFrequent final : public CachePolicy {
 public:
  KeepsFrequent(size_t n_expert, double half_life);
  void used(size_t expert, int64_t n_tokens) override;
  void end_step() override;
  double score(size_t expert) const override { return uses_[expert]; }

 private:
  double growth_, now_ = 1;   // a use counts more with every step, instead of the others less
  std::vector<double> uses_;  // [expert]
};

}  // namespace tandem
