// The tokens that can still be chosen, with their logits. Every sampler takes some of them away or changes
// logits; what is left is drawn from. The storage is reused from token to token. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sample/logit_scan.h"
#include "sample/rng.h"

namespace tandem {

struct Candidate {
  int32_t id;
  float logit;
  float p;  // only right after softmax()
};

// Higher logit first, lower id first among equals, so that every order is the only one.
inline bool comes_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

class Candidates {
 public:
  // Every token with its logit [n_vocab], none of them NaN.
  void assign(std::span<const float> logits);
  // The k largest and perhaps more; the logits are those that were scanned.
  void assign_largest(LogitScan& scan, size_t k);

  size_t size() const { return items_.size(); }
  std::span<const Candidate> items() const { return items_; }
  // To change logits; call logits_changed() after, unless the order stays.
  std::span<Candidate> mutable_items() { return items_; }
  void logits_changed() { n_sorted_ = 0; }

  // Puts the n first of the order at the front, sorted. Costs little when n is small or it is already so.
  void sort_front(size_t n);
  void sort() { sort_front(size()); }
  // Keeps the first n (at least one is there to keep).
  void keep_front(size_t n);
  // Takes the first n away.
  void drop_front(size_t n);
  // Keeps those that are not below this logit, in their order.
  void keep_from(float min_logit);

  float max_logit() const;
  // Sets p of all candidates to their probability.
  void softmax();
  // Index of the first of the order: the greedy choice.
  size_t best() const;

 private:
  std::vector<Candidate> items_;
  size_t n_sorted_ = 0;  // so many at the front are sorted, and none of the others comes before them
};

// Draws an index with the probability that softmax() gives. Never one with probability zero.
size_t draw(Candidates& candidates, Rng& rng);

}  // namespace tandem
