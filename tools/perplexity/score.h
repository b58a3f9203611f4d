// Scores how well a model predicts a text: the arithmetic of perplexity, apart from the command.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "engine/session.h"

namespace tandem::tools {

// Returns -log softmax(logits)[target], in double.
double negative_log_likelihood(std::span<const float> logits, int32_t target);

// Running estimate over scored tokens.
class PerplexityEstimate {
 public:
  void add(double nll);
  int64_t count() const { return count_; }
  double perplexity() const;  // exp of the mean
  // Standard error of perplexity(), from the spread of the values; 0 for fewer than two.
  double standard_error() const;

 private:
  int64_t count_ = 0;
  double sum_ = 0, sum_of_squares_ = 0;
};

// Index of the first scored token of a chunk, as in llama-perplexity: earlier tokens have too little context.
inline int64_t first_scored(int64_t chunk_size) {
  return chunk_size / 2 + 1;
}

// Receives the logits [n_vocab] from which a scored token was predicted.
using ScoreFn = std::function<void(std::span<const float> logits, int32_t target)>;

// Reads a chunk into the session, which it empties first and which must have room for the chunk and
// all_logits, and passes the scored tokens to `score` in order. `bos` replaces the first token. `stop` is
// called between batches; if it returns true, throws Error(interrupted). Also throws what Session and `score`
// throw.
void score_chunk(Session& session, std::span<const int32_t> chunk, std::optional<int32_t> bos,
                 const ScoreFn& score, const std::function<bool()>& stop);

}  // namespace tandem::tools
