// How well a model predicts a text: the arithmetic of perplexity, apart from the command that prints it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "engine/session.h"

namespace tandem::tools {

// -log softmax(logits)[target], in double.
double negative_log_likelihood(std::span<const float> logits, int32_t target);

// Running estimate over scored tokens.
class PerplexityEstimate {
 public:
  void add(double nll);
  int64_t count() const { return count_; }
  double perplexity() const;  // exp of the mean
  // Standard error of perplexity(), from the spread of the single values; 0 with fewer than two of them.
  double standard_error() const;

 private:
  int64_t count_ = 0;
  double sum_ = 0, sum_of_squares_ = 0;
};

// The tokens of a chunk that are scored, as those of llama-perplexity: what lies before has too little
// context.
inline int64_t first_scored(int64_t chunk_size) {
  return chunk_size / 2 + 1;
}

// The logits [n_vocab] that a scored token was predicted with.
using ScoreFn = std::function<void(std::span<const float> logits, int32_t target)>;

// Reads a chunk into the emptied session, which has room for it and all_logits, and hands out the scored
// tokens in order. `bos` takes the place of the first token. `stop`, asked between batches, makes it throw
// Error(interrupted). Throws what Session and `score` throw.
void score_chunk(Session& session, std::span<const int32_t> chunk, std::optional<int32_t> bos,
                 const ScoreFn& score, const std::function<bool()>& stop);

}  // namespace tandem::tools
