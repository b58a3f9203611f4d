// The default context of a batch, shared by `tandem batch` and `tandem plan`.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::tools {

struct BatchContext {
  int64_t n_ctx = 0;           // of all sequences together
  int64_t n_ctx_sequence = 0;  // of one sequence
};

// 0 means the default. n_ctx: 2048 tokens per sequence, or the training context if that is more.
// n_ctx_sequence: the training context.
inline BatchContext batch_context(int64_t n_ctx, int64_t n_ctx_sequence, int64_t n_parallel,
                                  int64_t n_trained) {
  constexpr int64_t kDefaultTokens = 2048;
  BatchContext c;
  c.n_ctx = n_ctx > 0 ? n_ctx : std::max(n_trained, n_parallel * std::min(n_trained, kDefaultTokens));
  c.n_ctx_sequence = std::min(n_ctx_sequence > 0 ? n_ctx_sequence : n_trained, c.n_ctx);
  return c;
}

}  // namespace tandem::tools
