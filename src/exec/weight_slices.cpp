#include "exec/weight_slices.h"

#include "base/error.h"

namespace tandem {

const Weight* WeightSlices::rows_of(const Weight& whole, int64_t first, int64_t n) {
  const bool is_vector = whole.n_rows == 1;
  TANDEM_CHECK(whole.n_mats == 1 && first >= 0 && n > 0);
  TANDEM_CHECK(first + n <= (is_vector ? whole.n_cols : whole.n_rows));
  const std::lock_guard lock(mutex_);
  const auto [it, added] = by_rows_.try_emplace(Key{&whole, first, n}, nullptr);
  if (!added) return it->second;
  Weight& slice = slices_.emplace_back(whole);
  slice.name += "[" + std::to_string(first) + ":" + std::to_string(first + n) + "]";
  slice.data += is_vector ? row_bytes(whole.dtype, first)
                          : row_bytes(whole.dtype, whole.n_cols) * static_cast<size_t>(first);
  (is_vector ? slice.n_cols : slice.n_rows) = n;
  whole_[&slice] = &whole;
  return it->second = &slice;
}

const Weight* WeightSlices::whole(const Weight* weight) const {
  const std::lock_guard lock(mutex_);
  const auto found = whole_.find(weight);
  return found == whole_.end() ? weight : found->second;
}

}  // namespace tandem
