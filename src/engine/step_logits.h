// What a step returns: the logits of each of its outputs. Valid until the next step of the executor.
#pragma once

#include "exec/executor.h"
#include "sample/token_logits.h"

namespace tandem {

class StepLogits {
 public:
  StepLogits() = default;
  // What `executor` has computed last.
  StepLogits(Executor& executor, size_t n_vocab) : executor_(&executor), n_vocab_(n_vocab) {}

  // [outputs, n_vocab].
  std::span<const float> all() const { return executor_->logits(); }
  // Those of one output.
  TokenLogits row(size_t i) const {
    const auto all_of_row = [executor = executor_, n = n_vocab_, i] {
      return executor->logits().subspan(i * n, n);
    };
    const std::span<const float> top = executor_->top();
    if (top.empty()) return TokenLogits(all_of_row());
    const size_t n = 2 * executor_->n_top();
    return {top.subspan(i * n, n), all_of_row};
  }

 private:
  Executor* executor_ = nullptr;
  size_t n_vocab_ = 0;
};

}  // namespace tandem
