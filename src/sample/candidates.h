// The tokens that can still be chosen, with their logits. Every sampler removes some or changes logits; the
// token is drawn from the rest. The storage is reused from token to token. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sample/logit_scan.h"
#include "sample/rng.h"
#include "sample/token_logits.h"

namespace tandem {

struct Candidate {
  int32_t id;
  float logit;
  float p;  // valid only right after softmax()
};

// Higher logit first; lower id first on ties, so that the order is unique.
inline bool comes_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

class Candidates {
 public:
  // Sets every token with its logit [n_vocab]; no logit is NaN.
  void assign(std::span<const float> logits);
  // Sets the k largest logits of the scan, perhaps a few more.
  void assign_largest(LogitScan& scan, size_t k);
  // Sets the k largest of those that are known to be, at least one.
  void assign_top(const TokenLogits& logits, size_t k);

  size_t size() const { return items_.size(); }
  std::span<const Candidate> items() const { return items_; }
  // For changing logits; call logits_changed() afterwards unless the order stays the same.
  std::span<Candidate> mutable_items() { return items_; }
  void logits_changed() { n_sorted_ = 0; }

  // Moves the first n in order to the front, sorted. Cheap if n is small or they are sorted already.
  void sort_front(size_t n);
  void sort() { sort_front(size()); }
  // Keeps the first n, at least one.
  void keep_front(size_t n);
  // Removes the first n.
  void drop_front(size_t n);
  // Keeps the candidates with a logit of at least min_logit, in their order.
  void keep_from(float min_logit);

  float max_logit() const;
  // Sets p of all candidates to their probability.
  void softmax();
  // Returns the index of the first in order: the greedy choice.
  size_t best() const;

 private:
  std::vector<Candidate> items_;
  size_t n_sorted_ = 0;  // items at the front that are sorted and come before all others
};

// Draws an index with the probability given by softmax(). Never one with probability zero.
size_t draw(Candidates& candidates, Rng& rng);

}  // namespace tandem
