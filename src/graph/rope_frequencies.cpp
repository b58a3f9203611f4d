#include "graph/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem {
namespace {

// Returns the fractional index of the pair that makes `turns` full turns within the original context.
double pair_of_turns(const RopeParams& rope, double turns) {
  const double n_ctx = static_cast<double>(rope.n_ctx_orig);
  return static_cast<double>(rope.n_rot) * std::log(n_ctx / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(static_cast<double>(rope.freq_base)));
}

// Returns how much pair i keeps of its unscaled frequency: 1 for fast pairs, 0 for slow ones, linear in
// between (YaRN, arXiv:2309.00071, section 3.2, with the ramp over pair indices as in the authors' code and
// in GGUF models).
double unscaled_share(const RopeParams& rope, int64_t i) {
  if (rope.ext_factor == 0.0f) return 0.0;
  double first = pair_of_turns(rope, rope.beta_fast), last = pair_of_turns(rope, rope.beta_slow);
  if (rope.yarn_truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  const double low = std::max(0.0, first), high = std::min(static_cast<double>(rope.n_rot - 1), last);
  const double ramp = (static_cast<double>(i) - low) / std::max(0.001, high - low);
  return (1.0 - std::clamp(ramp, 0.0, 1.0)) * rope.ext_factor;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeParams& rope, std::span<const float> factors) {
  std::vector<double> frequency(static_cast<size_t>(rope.n_rot / 2));
  for (int64_t i = 0; i < rope.n_rot / 2; ++i) {
    const double unscaled = std::pow(static_cast<double>(rope.freq_base),
                                     -2.0 * static_cast<double>(i) / static_cast<double>(rope.n_rot)) /
                            (factors.empty() ? 1.0 : factors[i]);
    const double share = unscaled_share(rope, i);
    frequency[i] = unscaled * (share + (1.0 - share) * rope.freq_scale);
  }
  return frequency;
}

float rope_magnitude(const RopeParams& rope) {
  if (rope.ext_factor == 0.0f) return rope.attn_factor;
  return static_cast<float>(rope.attn_factor * (1.0 + 0.1 * std::log(1.0 / rope.freq_scale)));
}

float rope_temperature(const RopeParams& rope, int32_t position) {
  if (rope.temperature_scale == 0.0f) return 1.0f;
  return static_cast<float>(1.0 + rope.temperature_scale *
                                      std::log1p(static_cast<double>(position / rope.temperature_length)));
}

}  // namespace tandem
