#include "exec/weight_slices.h"

#include <cstring>

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
  return add({&whole, first, n}, slice);
}

const Weight* WeightSlices::experts_of(const Weight& whole, int64_t n) {
  Weight slice = whole;
  int64_t& count = whole.n_mats > 1 ? slice.n_mats : slice.n_rows;
  TANDEM_CHECK(n > 0 && n < count);
  count = n;
  slice.layer = -1;
  return add({&whole, 0, n, Of::slots}, slice);
}

const Weight* WeightSlices::mats_of(const Weight& whole, int64_t first, int64_t n) {
  if (whole.n_mats == 1) return rows_of(whole, first, n);
  TANDEM_CHECK(first >= 0 && n > 0 && first + n <= whole.n_mats);
  Weight slice = whole;
  slice.n_mats = n;
  if (slice.data)
    slice.data += row_bytes(whole.dtype, whole.n_cols) * static_cast<size_t>(first * whole.n_rows);
  return add({&whole, first, n}, slice);
}

const Weight* WeightSlices::columns_of(const Weight& whole, int64_t first, int64_t n) {
  const int64_t block = dtype_info(whole.dtype).block_elements;
  TANDEM_CHECK(whole.n_mats == 1 && first >= 0 && n > 0 && first + n <= whole.n_cols);
  TANDEM_CHECK(first % block == 0 && n % block == 0);
  Weight slice = whole;
  slice.n_cols = n;
  slice.data = nullptr;
  slice.in_file = false;
  return add({&whole, first, n, Of::columns}, slice);
}

std::vector<std::byte> WeightSlices::packed(const Weight* weight) const {
  std::unique_lock lock(mutex_);
  const auto found = keys_.find(weight);
  if (found == keys_.end() || found->second.of != Of::columns) return {};
  const Key key = found->second;
  lock.unlock();
  const size_t n_whole = row_bytes(key.whole->dtype, key.whole->n_cols);
  const size_t n_row = row_bytes(weight->dtype, weight->n_cols);
  const std::byte* from = key.whole->data + row_bytes(weight->dtype, key.first);
  std::vector<std::byte> bytes(n_row * static_cast<size_t>(weight->n_rows));
  for (size_t row = 0; row < static_cast<size_t>(weight->n_rows); ++row) {
    std::memcpy(bytes.data() + row * n_row, from + row * n_whole, n_row);
  }
  return bytes;
}

const std::byte* WeightSlices::kept(const Weight& weight) {
  if (weight.data) return weight.data;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kept_.find(&weight); found != kept_.end()) return found->second.data();
  }
  std::vector<std::byte> bytes = packed(&weight);
  const std::lock_guard lock(mutex_);
  return kept_.try_emplace(&weight, std::move(bytes)).first->second.data();
}

const Weight* WeightSlices::add(const Key& key, const Weight& slice) {
  const std::lock_guard lock(mutex_);
  const auto [it, added] = by_key_.try_emplace(key, nullptr);
  if (!added) return it->second;
  Weight& kept = slices_.emplace_back(slice);
  kept.name += (key.of == Of::columns ? "[:," : "[") + std::to_string(key.first) + ":" +
               std::to_string(key.first + key.n) + "]";
  keys_[&kept] = key;
  return it->second = &kept;
}

const Weight* WeightSlices::whole(const Weight* weight) const {
  const std::lock_guard lock(mutex_);
  const auto found = keys_.find(weight);
  return found == keys_.end() ? weight : found->second.whole;
}

}  // namespace tandem
