// A Llama of two layers whose weights are computed, not trained, so that it recalls what follows a token: in a text of pairs of a key
// and a value, it predicts the value of a key that comes again. Each layer has one head:
//   0: looks one position back, by its rotated columns alone, and adds the code of the token there;
//   1: looks where that code is its own token's (an induction head, arXiv:2209.11895), and adds the code of the token there.
// Codes are random vectors, so how well it recalls follows from how exactly keys and values are cached and read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/tiny_model.h"

namespace tandem::test {

// What distance means to layer 1. trained: like a trained model, it takes what is as far back as 512 tokens as it takes its
// neighbours, but beyond that a slowly rotated pair of columns turns against what it looks for.
enum class Distance { ignored, trained };
TinyModel recall_model(int64_t n_ctx_train, Distance distance = Distance::ignored);

// A text of n_pairs pairs of different keys, which starts with a token of its own, and the same pairs in another order.
struct RecallText {
  std::vector<int32_t> pairs;    // 1 + 2 * n_pairs
  std::vector<int32_t> queries;  // key, value, key, ...
};
RecallText recall_text(int64_t n_pairs, uint64_t seed);

}  // namespace tandem::test
