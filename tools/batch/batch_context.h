// How much context a batch has where the options leave it open, so that `tandem plan` speaks of the same.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::tools {

struct BatchContext {
  int64_t n_ctx = 0;           // of all texts together
  int64_t n_ctx_sequence = 0;  // of one
};

// 0 of either is the default: 2048 tokens for each text, or all that the model was trained with if that is
// more, of which one text may have as much as the model was trained with.
inline BatchContext batch_context(int64_t n_ctx, int64_t n_ctx_sequence, int64_t n_parallel,
                                  int64_t n_trained) {
  constexpr int64_t kUsual = 2048;
  BatchContext c;
  c.n_ctx = n_ctx > 0 ? n_ctx : std::max(n_trained, n_parallel * std::min(n_trained, kUsual));
  c.n_ctx_sequence = std::min(n_ctx_sequence > 0 ? n_ctx_sequence : n_trained, c.n_ctx);
  return c;
}

}  // namespace tandem::tools
