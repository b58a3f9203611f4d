// Which form of latent attention (graph/ops.h) is the cheaper one, by its operations. A query and a position cost the
// absorbed form rank + n_rot + rank multiplications, the expanded one key + value; but before, the expanded form makes
// a head's keys and values of every position, once a step, where the absorbed one transforms queries and results. So
// the expanded form is for many tokens: those of DeepSeek V3 from 171 behind a long text on, from 52 at its start.
#pragma once

#include "graph/ops.h"

namespace tandem {

// Operations of a sequence's n_tokens tokens behind n_past others, all heads.
struct LatentOps {
  double absorbed = 0, expanded = 0;
};
LatentOps latent_ops(const LatentAttentionParams& op, double n_tokens, double n_past);

// Returns whether the op takes the expanded form for such a sequence. Never for a single token.
bool expands(const LatentAttentionParams& op, double n_tokens, double n_past);

// The first position that a query at `position` sees.
inline int64_t first_seen(const LatentAttentionParams& op, int64_t position) {
  return op.window > 0 ? std::max<int64_t>(0, position - op.window + 1) : 0;
}

// The absorbed form's attention.
AttentionParams absorbed_attention(const LatentAttentionParams& op);

}  // namespace tandem
