// WeightSlices: parts of weights as weights of their own: rows, for those divided between devices, and experts. Each slice
// is made once and shared by all graphs of a placement, so a copy on a device or in a slot is recognized by
// the slice's address. Owns the slices; the weights that they are cut from outlive it. Thread-safe.
#pragma once

#include <deque>
#include <map>
#include <mutex>

#include "graph/tensor.h"

namespace tandem {

class WeightSlices {
 public:
  // Returns rows [first, first + n) of a matrix, as "blk.0.ffn_up.weight[0:512]"; of a vector, elements.
  const Weight* rows_of(const Weight& whole, int64_t first, int64_t n);
  // Returns the first n experts of a weight of experts as "blk.0.ffn_up_exps.weight[0:8]"; of their biases, n rows. It
  // belongs to no layer.
  const Weight* experts_of(const Weight& whole, int64_t n);
  // Returns the weight that a slice was cut from; any other weight is returned as it is.
  const Weight* whole(const Weight* weight) const;

 private:
  struct Key {
    const Weight* whole;
    int64_t first, n;
    auto operator<=>(const Key&) const = default;
  };
  const Weight* add(const Weight& whole, int64_t first, int64_t n, const Weight& slice);

  mutable std::mutex mutex_;
  std::deque<Weight> slices_;  // a deque: graphs hold pointers
  std::map<Key, const Weight*> by_rows_;
  std::map<const Weight*, const Weight*> whole_;
};

}  // namespace tandem
