// Attention of two instruction sets: one has the better kernel for some calls, such as tiles of many queries or a quantized
// cache; the others take the one below.
#pragma once

#include <algorithm>

#include "cpu/attention_kernels.h"

namespace tandem::cpu {

// `own` where takes(call), `below` elsewhere, which may hold fewer queries at a time.
template <const AttentionKernels& (*own)(), bool (*takes)(const AttentionCall&),
          const AttentionKernels& (*below)()>
class AttentionWith {
 public:
  static AttentionKernels table() {
    return {std::max(own().max_queries, below().max_queries),
            scratch_bytes,
            attend,
            below().store_row,
            takes_heads,
            attend_heads};
  }

 private:
  // `n` queries of the call from `first` on.
  static AttentionCall part(const AttentionCall& call, int64_t first, int64_t n) {
    AttentionCall some = call;
    some.n_queries = std::min(n, call.n_queries - first);
    some.q += first;
    some.positions += first;
    some.acc += first * call.head_dim_v;
    some.sum += first;
    some.max += first;
    return some;
  }

  static size_t scratch_bytes(const AttentionCall& call) {
    AttentionCall few = call;
    few.n_queries = std::min(call.n_queries, below().max_queries);
    const size_t bytes = below().scratch_bytes(few);
    return takes(call) ? std::max(bytes, own().scratch_bytes(call)) : bytes;
  }

  static bool takes_heads(const AttentionCall& call) {
    const AttentionKernels& kernels = takes(call) ? own() : below();
    return kernels.takes_heads && kernels.takes_heads(call);
  }
  static void attend_heads(const AttentionCall* calls, int64_t n, std::byte* scratch) {
    (takes(calls[0]) ? own() : below()).attend_heads(calls, n, scratch);
  }

  static void attend(const AttentionCall& call, std::byte* scratch) {
    if (takes(call)) return own().attend(call, scratch);
    for (int64_t first = 0; first < call.n_queries; first += below().max_queries) {
      below().attend(part(call, first, below().max_queries), scratch);
    }
  }
};

}  // namespace tandem::cpu
