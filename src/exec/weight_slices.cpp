#include "exec/weight_slices.h"

#include "base/error.h"

namespace tandem {

const Weight* WeightSlices::rows_of(const Weight& whole, int64_t first, int64_t n) {
  const bool is_vector = whole.n_rows == 1;
  TANDEM_CHECK(whole.n_mats == 1 && first >= 0 && n > 0);
  TANDEM_CHECK(first + n <= (is_vector ? whole.n_cols : whole.n_rows));
  Weight slice = whole;
  slice.data += is_vector ? row_bytes(whole.dtype, first)
                          : row_bytes(whole.dtype, whole.n_cols) * static_cast<size_t>(first);
  (is_vector ? slice.n_cols : slice.n_rows) = n;
  return add(whole, first, n, slice);
}

const Weight* WeightSlices::experts_of(const Weight& whole, int64_t n) {
  Weight slice = whole;
  int64_t& count = whole.n_mats > 1 ? slice.n_mats : slice.n_rows;
  TANDEM_CHECK(n > 0 && n < count);
  count = n;
  slice.layer = -1;
  return add(whole, 0, n, slice);
}

const Weight* WeightSlices::add(const Weight& whole, int64_t first, int64_t n, const Weight& slice) {
  const std::lock_guard lock(mutex_);
  const auto [it, added] = by_rows_.try_emplace(Key{&whole, first, n}, nullptr);
  if (!added) return it->second;
  Weight& kept = slices_.emplace_back(slice);
  kept.name += "[" + std::to_string(first) + ":" + std::to_string(first + n) + "]";
  whole_[&kept] = &whole;
  return it->second = &kept;
}

const Weight* WeightSlices::whole(const Weight* weight) const {
  const std::lock_guard lock(mutex_);
  const auto found = whole_.find(weight);
  return found == whole_.end() ? weight : found->second;
}

}  // namespace tandem
