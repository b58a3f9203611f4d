// Mirostat 1 and 2: keeps the surprise of the text near a target ("Mirostat: A Neural Text Decoding Algorithm
// that Directly Controls Perplexity", Basu et al. 2020). Holds the state of one sequence.
#pragma once

#include <cstdint>

#include "sample/candidates.h"
#include "sample/params.h"

namespace tandem {

class Mirostat {
 public:
  Mirostat(const SamplerParams& params, int32_t n_vocab);

  // Draws the index of a candidate and updates mu.
  size_t draw(Candidates& candidates, Rng& rng);
  void reset();
  // The largest surprise allowed for the next token, in bits.
  double mu() const { return mu_; }

 private:
  int32_t version_, n_vocab_;
  double target_, rate_;
  double mu_ = 0.0;
};

}  // namespace tandem
