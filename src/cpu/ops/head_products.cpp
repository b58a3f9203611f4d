// An item of work is some rows of a head's matrix for some tokens, whose columns are encoded right before: W is read
// once per token range, and the input once per strip. Cost: 2 * H * m * k operations a token; one token reads all of W.
#include "cpu/ops/head_products.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "cpu/ops/linear_group.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kMaxTokens = 256;  // in an item: bounds the encoded input

}  // namespace

HeadProducts::HeadProducts(const CompileContext& context, TensorId weight, int64_t x_cols, int64_t max_tokens)
    : kernels_(context.kernels.linear),
      weight_(*context.tensor(weight).weight),
      w_(context.address<const std::byte>(weight)),
      x_cols_(x_cols),
      n_kept_(x_cols - weight_.n_cols),
      y_cols_(weight_.n_rows + n_kept_) {
  const int64_t most = std::min(kMaxTokens, max_tokens);
  for (int64_t n = 1; n <= most; ++n) {
    encoded_bytes_ =
        std::max(encoded_bytes_, align64(kernels_.encoded_bytes(weight_.dtype, n, weight_.n_cols)));
  }
  scratch_bytes_ = encoded_bytes_ + max_scratch_bytes(kernels_, weight_.dtype, most, weight_.n_cols);
}

void HeadProducts::run(Worker& worker, const float* x, float* y, int64_t n, std::byte* scratch) const {
  if (n == 0) return;
  const int64_t ld_x = weight_.n_mats * x_cols_, ld_y = weight_.n_mats * y_cols_;
  const int64_t n_ranges = ceil_div(n, kMaxTokens), n_pairs = weight_.n_mats * n_ranges;
  const int64_t strip = strip_rows(std::min(n, kMaxTokens), n_pairs, worker.count());
  const int64_t n_strips = ceil_div(weight_.n_rows, strip);
  worker.for_each(n_pairs * n_strips, [&](int64_t item) {
    const int64_t first = item % n_strips * strip, pair = item / n_strips;
    const int64_t token = pair % n_ranges * kMaxTokens;
    multiply(pair / n_ranges, {x + token * ld_x, y + token * ld_y, std::min(kMaxTokens, n - token)}, first,
             std::min(first + strip, weight_.n_rows), scratch);
  });
}

// Rows of a head's matrix in an item: all, or fewer where heads are few.
int64_t HeadProducts::strip_rows(int64_t n, int64_t n_pairs, int n_workers) const {
  const int64_t step = kernels_.row_granularity(weight_.dtype, n, weight_.n_rows, weight_.n_cols);
  constexpr int64_t kItemsPerWorker = 4;  // wanted, so that all workers finish together
  const int64_t n_strips = ceil_div(kItemsPerWorker * n_workers, n_pairs);
  return ceil_div(ceil_div(weight_.n_rows, n_strips), step) * step;
}

// Rows [row0, row1) of a head's matrix; the first rows' item also copies the columns that stay.
void HeadProducts::multiply(int64_t head, const Rows& rows, int64_t row0, int64_t row1,
                            std::byte* scratch) const {
  const int64_t ld_x = weight_.n_mats * x_cols_, ld_y = weight_.n_mats * y_cols_;
  const float* x = rows.x + head * x_cols_;
  float* y = rows.y + head * y_cols_;
  kernels_.encode(weight_.dtype, x, ld_x, rows.n, weight_.n_cols, 0, rows.n, scratch);
  LinearCall call;
  call.dtype = weight_.dtype;
  call.w = w_ + row_bytes(weight_.dtype, weight_.n_cols) * static_cast<size_t>(head * weight_.n_rows);
  call.n = rows.n;
  call.m = weight_.n_rows;
  call.k = weight_.n_cols;
  call.x = scratch;
  call.y = y;
  call.ldy = ld_y;
  kernels_.multiply(call, row0, row1, scratch + encoded_bytes_);
  if (row0 > 0 || n_kept_ == 0) return;
  for (int64_t t = 0; t < rows.n; ++t) {
    memcpy(y + t * ld_y + weight_.n_rows, x + t * ld_x + weight_.n_cols,
           static_cast<size_t>(n_kept_) * sizeof(float));
  }
}

}  // namespace tandem::cpu
