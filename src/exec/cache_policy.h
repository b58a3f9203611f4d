// CachePolicy: which experts of a layer a cache keeps. Every expert has a score; the one in a slot with the lowest goes, for
// one with a score that is not lower. A policy that looks ahead is also told what the layer before guesses. Another policy
// is another class with the same functions.
//
// Not synchronized.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tandem {

class CachePolicy {
 public:
  virtual ~CachePolicy() = default;
  // A step uses the expert for n_tokens; once for each expert of the step.
  virtual void used(size_t expert, int64_t n_tokens) = 0;
  virtual void end_step() = 0;
  virtual double score(size_t expert) const = 0;
  // Whether experts that the coming step is likely to use are brought before it asks for them, and expect() names them.
  virtual bool looks_ahead() const { return false; }
  virtual void expect(std::span<const int32_t>) {}
};
using MakeCachePolicy = std::function<std::unique_ptr<CachePolicy>(size_t n_expert)>;
// The one that is used where nothing else is asked for.
std::unique_ptr<CachePolicy> usual_cache_policy(size_t n_expert);

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
class KeepsFrequent : public CachePolicy {
 public:
  static constexpr double kHalfLife = 256;
  KeepsFrequent(size_t n_expert, double half_life);
  void used(size_t expert, int64_t n_tokens) override;
  void end_step() override;
  double score(size_t expert) const override { return uses_[expert]; }

 private:
  double growth_, now_ = 1;   // a use counts more with every step, instead of the others less
  std::vector<double> uses_;  // [expert]
};

// The same, and those that the coming step is likely to use stay until it has run.
class KeepsExpected final : public KeepsFrequent {
 public:
  KeepsExpected(size_t n_expert, double half_life)
      : KeepsFrequent(n_expert, half_life), is_expected_(n_expert, false) {}
  void end_step() override;
  double score(size_t expert) const override;
  bool looks_ahead() const override { return true; }
  void expect(std::span<const int32_t> experts) override;

 private:
  std::vector<bool> is_expected_;  // [expert]
};

}  // namespace tandem
