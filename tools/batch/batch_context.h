// The default context of a batch, shared by `tandem batch` and `tandem plan`.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/options.h"

namespace tandem::tools {

// Sets the context of n_parallel sequences. Automatic: at most 2048 tokens per sequence, or the training context if
// that is more; fewer if weights then stay in faster memory, and 2048 per sequence where no context keeps them
// there. Of one sequence, n_ctx_sequence 0: the training context.
inline void set_batch_context(ContextOptions& c, int64_t n_parallel, int64_t n_trained) {
  constexpr int64_t kDefaultTokens = 2048;
  c.min_ctx = n_parallel * std::min(n_trained, kDefaultTokens);
  c.max_ctx = std::max(n_trained, c.min_ctx);
  if (c.n_ctx <= 0 && c.n_ctx_given) c.n_ctx = c.max_ctx;
  if (c.n_ctx_sequence <= 0) c.n_ctx_sequence = n_trained;
  c.n_sequences = n_parallel;
}

}  // namespace tandem::tools
