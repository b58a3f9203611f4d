// WeightSlices: parts of weights as weights of their own: rows and columns, for those divided between devices, and experts. Each
// slice is made once and shared by all graphs of a placement, so a copy on a device or in a slot is recognized by
// the slice's address. Owns the slices; the weights that they are cut from outlive it. Thread-safe.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "graph/column_runs.h"
#include "graph/tensor.h"

namespace tandem {

class WeightSlices {
 public:
  // Returns rows [first, first + n) of a matrix, as "blk.0.ffn_up.weight[0:512]"; of a vector, elements.
  const Weight* rows_of(const Weight& whole, int64_t first, int64_t n);
  // The same rows or elements in several runs, as "blk.0.attn_qkv.weight[0:64,128:192]". Of more runs than one it has no data,
  // as with columns.
  const Weight* rows_of(const Weight& whole, const ColumnRuns& runs);
  // Returns the first n experts of a weight of experts as "blk.0.ffn_up_exps.weight[0:8]"; of their biases, n rows. It
  // belongs to no layer.
  const Weight* experts_of(const Weight& whole, int64_t n);
  // Returns experts or heads [first, first + n) of a weight with a matrix, or of a bias with a row, for each.
  const Weight* mats_of(const Weight& whole, int64_t first, int64_t n);
  // Returns some columns of every row of a matrix, whole blocks of its dtype, as "blk.0.ffn_down.weight[:,0:512]".
  // Its rows do not lie side by side, so it has no data: packed() and kept() make some.
  const Weight* columns_of(const Weight& whole, const ColumnRuns& runs);
  // Returns the bytes of a slice that has no data; nothing for any other weight.
  std::vector<std::byte> packed(const Weight* weight) const;
  // Returns the data of a weight; of a slice that has none, a copy that is kept.
  const std::byte* kept(const Weight& weight);
  // Returns the weight that a slice was cut from; any other weight is returned as it is.
  const Weight* whole(const Weight* weight) const;

 private:
  enum class Of : uint8_t { rows, columns, slots };
  struct Key {
    const Weight* whole;
    ColumnRuns runs;
    Of of = Of::rows;
    auto operator<=>(const Key&) const = default;
  };
  const Weight* add(const Key& key, const Weight& slice);

  mutable std::mutex mutex_;
  std::deque<Weight> slices_;  // a deque: graphs hold pointers
  std::map<Key, const Weight*> by_key_;
  std::map<const Weight*, Key> keys_;
  std::map<const Weight*, std::vector<std::byte>> kept_;
};

}  // namespace tandem
