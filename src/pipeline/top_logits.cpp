#include "pipeline/top_logits.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

#include "graph/top_k.h"

namespace tandem {

std::vector<float> top_logits(std::span<const float> logits, size_t n_vocab, size_t k) {
  std::vector<float> top;
  std::vector<uint64_t> best;  // a heap with the least of them in front
  for (size_t row = 0; row * n_vocab < logits.size(); ++row) {
    best.clear();
    for (size_t i = 0; i < n_vocab; ++i) {
      const uint64_t key =
          top_key(std::bit_cast<uint32_t>(logits[row * n_vocab + i]), static_cast<uint32_t>(i));
      if (best.size() == k) {
        if (key <= best.front()) continue;
        std::ranges::pop_heap(best, std::greater<>());
        best.pop_back();
      }
      best.push_back(key);
      std::ranges::push_heap(best, std::greater<>());
    }
    std::ranges::sort(best, std::greater<>());
    for (const uint64_t key : best) top.push_back(std::bit_cast<float>(column_of_key(key)));
    for (const uint64_t key : best) top.push_back(std::bit_cast<float>(bits_of_key(key)));
  }
  return top;
}

}  // namespace tandem
