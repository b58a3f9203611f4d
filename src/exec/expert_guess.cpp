#include "exec/expert_guess.h"

#include <algorithm>
#include <numeric>

#include "device/expert_choice.h"

namespace tandem {
namespace {

// With several sums, which compilers can compute side by side.
float dot(const float* a, const float* b, size_t n) {
  constexpr size_t kSums = 16;
  float sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (size_t j = 0; j < kSums; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return std::accumulate(sums, sums + kSums, 0.0f);
}

void read_row(const Weight& weight, size_t row, std::vector<float>& to) {
  to.resize(static_cast<size_t>(weight.n_cols));
  const DTypeInfo& dtype = dtype_info(weight.dtype);
  dtype.to_float(weight.data + row * row_bytes(weight.dtype, weight.n_cols), to.data(), weight.n_cols);
}

}  // namespace

bool ExpertGuesser::can_guess(const ExpertRouter& router, int64_t n_expert, int64_t n_cols) {
  return router.matrix && router.matrix->n_cols == n_cols && router.matrix->n_rows == n_expert;
}

std::span<const int32_t> ExpertGuesser::guess(const ExpertRouter& router, const float* x, int64_t n_tokens,
                                              int64_t n) {
  compute_logits(router, x, static_cast<size_t>(n_tokens));
  if (router.selection_bias) read_row(*router.selection_bias, 0, selection_bias_);
  room_.resize(ExpertChoice::room_bytes(router.how) / sizeof(float));
  ExpertChoice choice(router.how, reinterpret_cast<std::byte*>(room_.data()));
  guesses_.clear();
  for (int64_t t = 0; t < n_tokens; ++t) {
    const float* bias = router.selection_bias ? selection_bias_.data() : nullptr;
    for (const int32_t expert :
         choice.choose(&logits_[static_cast<size_t>(t * router.matrix->n_rows)], bias, n)) {
      if (std::ranges::find(guesses_, expert) == guesses_.end()) guesses_.push_back(expert);
    }
  }
  return guesses_;
}

void ExpertGuesser::compute_logits(const ExpertRouter& router, const float* x, size_t n_tokens) {
  const auto n_expert = static_cast<size_t>(router.matrix->n_rows);
  const auto n_cols = static_cast<size_t>(router.matrix->n_cols);
  logits_.resize(n_tokens * n_expert);
  for (size_t e = 0; e < n_expert; ++e) {
    read_row(*router.matrix, e, row_);
    for (size_t t = 0; t < n_tokens; ++t)
      logits_[t * n_expert + e] = dot(row_.data(), x + t * n_cols, n_cols);
  }
  if (!router.bias) return;
  read_row(*router.bias, 0, row_);
  for (size_t i = 0; i < logits_.size(); ++i) logits_[i] += row_[i % n_expert];
}

}  // namespace tandem
