// Runs of rows of weights as weights of their own, for what is divided between devices. Each is made once and
// shared by all graphs of a placement, so that what is on a device, or in a slot, is known again by its
// address. Owns the slices; the weights they are cut from outlive it. Any thread.
#pragma once

#include <deque>
#include <map>
#include <mutex>

#include "graph/tensor.h"

namespace tandem {

class WeightSlices {
 public:
  // Rows [first, first + n) of a matrix, "blk.0.ffn_up.weight[0:512]"; of a vector, elements.
  const Weight* rows_of(const Weight& whole, int64_t first, int64_t n);
  // What a slice was cut from; any other weight is whole itself.
  const Weight* whole(const Weight* weight) const;

 private:
  struct Key {
    const Weight* whole;
    int64_t first, n;
    auto operator<=>(const Key&) const = default;
  };
  mutable std::mutex mutex_;
  std::deque<Weight> slices_;  // a deque: graphs hold pointers
  std::map<Key, const Weight*> by_rows_;
  std::map<const Weight*, const Weight*> whole_;
};

}  // namespace tandem
