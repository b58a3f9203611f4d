// Penalties on earlier tokens: repetition ("CTRL", Keskar et al. 2019), presence and frequency.
// Holds the last tokens of one sequence. Used by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "sample/candidates.h"
#include "sample/params.h"

namespace tandem {

class Penalties {
 public:
  // `n_ctx`: the window that -1 stands for. Tokens are in [0, n_vocab).
  Penalties(const SamplerParams& params, int32_t n_vocab, int32_t n_ctx);

  bool active() const { return window_size_ > 0; }
  void accept(int32_t token);
  void apply(Candidates& candidates) const;
  void reset();

 private:
  float repeat_, presence_, frequency_;
  size_t window_size_ = 0;
  std::vector<int32_t> window_;  // ring of the last window_size_ tokens, `next_` is the oldest when full
  size_t next_ = 0;
  std::vector<int32_t> counts_;  // [n_vocab] of the tokens in the window
};

}  // namespace tandem
