#include "cpu/ops/linear_group.h"

#include <algorithm>

namespace tandem::cpu {
namespace {

// Up to this size every worker encodes the whole input itself: that takes less time than a barrier and the
// cache misses on data another core has just written.
constexpr int64_t kPrivateElements = 16384;

}  // namespace

bool encodes_privately(int64_t n, int64_t k) {
  return n * k <= kPrivateElements || n == 1;
}

EncodedInput::EncodedInput(const LinearKernels& kernels, const float* x, int64_t k, int64_t max_tokens,
                           std::vector<DType> dtypes, std::optional<NormRows> norm)
    : kernels_(kernels), x_(x), k_(k), norm_(std::move(norm)) {
  for (DType dtype : dtypes) {
    if (std::find(dtypes_.begin(), dtypes_.end(), dtype) == dtypes_.end()) dtypes_.push_back(dtype);
  }
  for (DType dtype : dtypes_) {
    offsets_.push_back(shared_bytes_);
    size_t bytes = 0;
    for_deciding_numbers(max_tokens,
                         [&](int64_t n) { bytes = std::max(bytes, kernels.encoded_bytes(dtype, n, k)); });
    shared_bytes_ += align64(bytes);
  }
  size_t normalized_bytes = 0;
  for (int64_t n = 1; n <= max_tokens && encodes_privately(n, k); ++n) {
    for (size_t i = 0; i < dtypes_.size(); ++i) {
      normalized_at_ =
          std::max(normalized_at_, align64(offsets_[i] + kernels.encoded_bytes(dtypes_[i], n, k)));
    }
    if (norm_) normalized_bytes = align64(static_cast<size_t>(n * k) * sizeof(float));
  }
  private_bytes_ = normalized_at_ + normalized_bytes;
}

// Worker 0 puts them where other ops find them.
const float* EncodedInput::normalized(const Worker& worker, int64_t n, std::byte* room) const {
  float* to = worker.index() == 0 ? norm_->output() : reinterpret_cast<float*>(room + normalized_at_);
  for (int64_t row = 0; row < n; ++row) norm_->normalize(row, to + row * k_);
  return to;
}

int64_t EncodedInput::chunks(DType dtype, int64_t n) const {
  const int64_t step = kernels_.encode_granularity(dtype, n);
  return (n + step - 1) / step;
}

size_t EncodedInput::find(DType dtype, int64_t n) const {
  size_t i = 0;
  while (!kernels_.same_encoding(dtypes_[i], dtype, n)) ++i;
  return i;
}

const std::byte* EncodedInput::encode(Worker& worker, int64_t n, std::byte* shared, std::byte* room) const {
  if (encodes_privately(n, k_)) {
    const float* x = norm_ ? normalized(worker, n, room) : x_;
    for (size_t i = 0; i < dtypes_.size(); ++i) {
      if (find(dtypes_[i], n) == i) kernels_.encode(dtypes_[i], x, k_, n, k_, 0, n, room + offsets_[i]);
    }
    return room;
  }
  if (norm_) norm_->run(worker, n);
  int64_t n_items = 0;
  for (DType dtype : dtypes_) n_items += chunks(dtype, n);
  worker.for_each(n_items, [&](int64_t item) {
    size_t i = 0;
    while (item >= chunks(dtypes_[i], n)) item -= chunks(dtypes_[i++], n);
    if (find(dtypes_[i], n) != i) return;
    const int64_t step = kernels_.encode_granularity(dtypes_[i], n), token0 = item * step;
    kernels_.encode(dtypes_[i], x_, k_, n, k_, token0, std::min(token0 + step, n), shared + offsets_[i]);
  });
  return shared;
}

const std::byte* EncodedInput::at(const std::byte* encodings, DType dtype, int64_t n) const {
  return encodings + offsets_[find(dtype, n)];
}

size_t max_scratch_bytes(const LinearKernels& kernels, DType dtype, int64_t max_tokens, int64_t k) {
  size_t bytes = 0;
  for_deciding_numbers(max_tokens,
                       [&](int64_t n) { bytes = std::max(bytes, kernels.scratch_bytes(dtype, n, k)); });
  return align64(bytes);
}

namespace {

constexpr int64_t kManyTokens = 64;
constexpr int64_t kItemsPerWorker = 8;

}  // namespace

int64_t rows_per_item(const LinearKernels& kernels, DType dtype, int64_t n, int64_t m, int64_t k,
                      int n_workers) {
  constexpr int64_t kItemBytes =
      256 << 10;  // of weights: long, because the first chunks of an item are not prefetched
  constexpr int64_t kItemRows = 256;  // with many tokens: each item reads all of them
  const int64_t step = kernels.row_granularity(dtype, n, m, k);
  const int64_t bytes_per_step = static_cast<int64_t>(row_bytes(dtype, k)) * step;
  const int64_t long_enough = (kItemBytes + bytes_per_step - 1) / bytes_per_step;
  const int64_t enough = n < kManyTokens ? long_enough : std::max(long_enough, kItemRows / step);
  const int64_t balanced = m / (step * kItemsPerWorker * n_workers);
  return step * std::max<int64_t>(1, std::min(enough, balanced));
}

ProductItems divide_product(const LinearKernels& kernels, DType dtype, int64_t n, int64_t m, int64_t k,
                            int n_workers) {
  constexpr int64_t kLeastRows = 64;  // the kernels for many tokens unpack so many at once
  static_assert(kManyTokens >= kDividedTokens);
  constexpr int64_t kLeastTokens = 96;  // unpacking takes as long as a few tokens, and each part does it anew
  ProductItems items{rows_per_item(kernels, dtype, n, m, k, n_workers), n, 0, 1, m, n};
  const int64_t rows = std::min(kLeastRows, (m + 15) / 16 * 16);
  if (items.rows < rows && n >= 2 * kLeastTokens) {
    // As many parts as make up for the higher strips.
    const int64_t n_parts = std::min((rows + items.rows - 1) / items.rows, n / kLeastTokens);
    const int64_t step = kernels.encode_granularity(dtype, n);
    items.rows = std::min(rows, items.rows * n_parts);
    items.tokens = ((n + n_parts - 1) / n_parts + step - 1) / step * step;
    items.n_tokens = (n + items.tokens - 1) / items.tokens;
  }
  items.n_rows = (m + items.rows - 1) / items.rows;
  return items;
}

}  // namespace tandem::cpu
