// For tests of samplers without a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "sample/sampler.h"

namespace tandem::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

// Of a vocabulary in which every token is "x".
inline SamplerModel sampler_model(size_t n_vocab) {
  return {.n_vocab = static_cast<int32_t>(n_vocab), .n_ctx = 512, .eog = {}, .piece = [](int32_t) {
            return "x";
          }};
}

}  // namespace tandem::test
