#include "exec/weight_slices.h"

#include <string>

#include "base/error.h"

namespace tandem {
namespace {

void check_runs(const ColumnRuns& runs, int64_t n) {
  int64_t end = 0;
  for (const ColumnRun& run : runs) {
    TANDEM_CHECK(run.first >= end && run.n > 0);
    end = run.first + run.n;
  }
  TANDEM_CHECK(!runs.empty() && end <= n);
}

}  // namespace

const Weight* WeightSlices::rows_of(const Weight& whole, int64_t first, int64_t n) {
  return rows_of(whole, ColumnRuns{{first, n}});
}

const Weight* WeightSlices::rows_of(const Weight& whole, const ColumnRuns& runs) {
  const bool is_vector = whole.n_rows == 1;
  check_runs(runs, is_vector ? whole.n_cols : whole.n_rows);
  TANDEM_CHECK(whole.n_mats == 1);
  Weight slice = whole;
  (is_vector ? slice.n_cols : slice.n_rows) = n_columns(runs);
  if (runs.size() > 1) {
    slice.data = nullptr;
    slice.in_file = false;
  } else if (slice.data) {
    slice.data += is_vector ? row_bytes(whole.dtype, runs.front().first)
                            : row_bytes(whole.dtype, whole.n_cols) * static_cast<size_t>(runs.front().first);
  }
  return add({&whole, runs}, slice);
}

const Weight* WeightSlices::experts_of(const Weight& whole, int64_t n) {
  Weight slice = whole;
  int64_t& count = whole.n_mats > 1 ? slice.n_mats : slice.n_rows;
  TANDEM_CHECK(n > 0 && n < count);
  count = n;
  slice.layer = -1;
  return add({&whole, {{0, n}}, Of::slots}, slice);
}

const Weight* WeightSlices::mats_of(const Weight& whole, int64_t first, int64_t n) {
  if (whole.n_mats == 1) return rows_of(whole, first, n);
  TANDEM_CHECK(first >= 0 && n > 0 && first + n <= whole.n_mats);
  Weight slice = whole;
  slice.n_mats = n;
  if (slice.data)
    slice.data += row_bytes(whole.dtype, whole.n_cols) * static_cast<size_t>(first * whole.n_rows);
  return add({&whole, {{first, n}}}, slice);
}

const Weight* WeightSlices::columns_of(const Weight& whole, const ColumnRuns& runs) {
  const int64_t block = dtype_info(whole.dtype).block_elements;
  check_runs(runs, whole.n_cols);
  TANDEM_CHECK(whole.n_mats == 1);
  for (const ColumnRun& run : runs) TANDEM_CHECK(run.first % block == 0 && run.n % block == 0);
  Weight slice = whole;
  slice.n_cols = n_columns(runs);
  slice.data = nullptr;
  slice.in_file = false;
  return add({&whole, runs, Of::columns}, slice);
}

std::vector<std::byte> WeightSlices::packed(const Weight* weight) const {
  std::unique_lock lock(mutex_);
  const auto found = keys_.find(weight);
  const bool has_none =
      found != keys_.end() && (found->second.of == Of::columns || found->second.runs.size() > 1);
  if (!has_none) return {};
  const Key key = found->second;
  lock.unlock();
  const Weight& whole = *key.whole;
  const bool are_rows = key.of == Of::rows && whole.n_rows > 1;
  const size_t n_row = row_bytes(whole.dtype, whole.n_cols);
  std::vector<std::byte> bytes;
  bytes.reserve(weight->n_bytes());
  const auto add_bytes = [&](size_t first, size_t n) {
    bytes.insert(bytes.end(), whole.data + first, whole.data + first + n);
  };
  for (size_t row = 0; !are_rows && row < static_cast<size_t>(whole.n_rows); ++row) {
    for (const ColumnRun& run : key.runs)
      add_bytes(row * n_row + row_bytes(whole.dtype, run.first), row_bytes(whole.dtype, run.n));
  }
  for (const ColumnRun& run : key.runs) {
    if (are_rows) add_bytes(static_cast<size_t>(run.first) * n_row, static_cast<size_t>(run.n) * n_row);
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
  std::string text;
  for (const ColumnRun& run : key.runs)
    text += (text.empty() ? "" : ",") + std::to_string(run.first) + ":" + std::to_string(run.first + run.n);
  kept.name += (key.of == Of::columns ? "[:," : "[") + text + "]";
  keys_[&kept] = key;
  return it->second = &kept;
}

const Weight* WeightSlices::whole(const Weight* weight) const {
  const std::lock_guard lock(mutex_);
  const auto found = keys_.find(weight);
  return found == keys_.end() ? weight : found->second.whole;
}

}  // namespace tandem
