// The largest logits of each output, as top_k (graph/ops.h) has them, of logits that the host has made.
#pragma once

#include <span>
#include <vector>

namespace tandem {

// logits: [rows, n_vocab]. Returns [rows, 2 * k], the bits of the ids before the logits.
std::vector<float> top_logits(std::span<const float> logits, size_t n_vocab, size_t k);

}  // namespace tandem
