// What a step returns: the logits of each of its outputs. Valid until the next step.
#pragma once

#include "exec/executor.h"
#include "sample/token_logits.h"

namespace tandem {

// Logits that another rank has made.
class RemoteLogits {
 public:
  virtual ~RemoteLogits() = default;
  // As Executor::logits(), top() and n_top().
  virtual std::span<const float> logits() = 0;
  virtual std::span<const float> top() const = 0;
  virtual size_t n_top() const = 0;
};

class StepLogits {
 public:
  StepLogits() = default;
  // What `executor` has computed last.
  StepLogits(Executor& executor, size_t n_vocab) : executor_(&executor), n_vocab_(n_vocab) {}
  StepLogits(RemoteLogits& remote, size_t n_vocab) : remote_(&remote), n_vocab_(n_vocab) {}

  // [outputs, n_vocab].
  std::span<const float> all() const { return remote_ ? remote_->logits() : executor_->logits(); }
  // Those of one output.
  TokenLogits row(size_t i) const {
    const auto all_of_row = [logits = *this, i] {
      return logits.all().subspan(i * logits.n_vocab_, logits.n_vocab_);
    };
    const std::span<const float> top = this->top();
    if (top.empty()) return TokenLogits(all_of_row());
    const size_t n = 2 * n_top();
    return {top.subspan(i * n, n), all_of_row};
  }
  // The largest of each output, [outputs, 2 * n_top()], as top_k (graph/ops.h) has them; empty: all are there.
  std::span<const float> top() const { return remote_ ? remote_->top() : executor_->top(); }
  size_t n_top() const { return remote_ ? remote_->n_top() : executor_->n_top(); }
  size_t n_vocab() const { return n_vocab_; }

 private:
  Executor* executor_ = nullptr;
  RemoteLogits* remote_ = nullptr;
  size_t n_vocab_ = 0;
};

}  // namespace tandem
