#include "graph/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem {
namespace {

// The pair index (as a real number) whose wavelength makes `turns` full turns within the original context.
double pair_of_turns(const RopeOp& op, double turns) {
  const double n_ctx = static_cast<double>(op.n_ctx_orig);
  return static_cast<double>(op.n_rot) * std::log(n_ctx / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(static_cast<double>(op.freq_base)));
}

// How much pair i keeps of its unscaled frequency: 1 for pairs that turn fast, 0 for slow ones, linear in
// between (YaRN, arXiv:2309.00071, section 3.2, with the ramp over pair indices that its authors' code and
// GGUF models use).
double unscaled_share(const RopeOp& op, int64_t i) {
  if (op.ext_factor == 0.0f) return 0.0;
  double first = pair_of_turns(op, op.beta_fast), last = pair_of_turns(op, op.beta_slow);
  if (op.yarn_truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  const double low = std::max(0.0, first), high = std::min(static_cast<double>(op.n_rot - 1), last);
  const double ramp = (static_cast<double>(i) - low) / std::max(0.001, high - low);
  return (1.0 - std::clamp(ramp, 0.0, 1.0)) * op.ext_factor;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeOp& op, std::span<const float> factors) {
  std::vector<double> frequency(static_cast<size_t>(op.n_rot / 2));
  for (int64_t i = 0; i < op.n_rot / 2; ++i) {
    const double unscaled = std::pow(static_cast<double>(op.freq_base),
                                     -2.0 * static_cast<double>(i) / static_cast<double>(op.n_rot)) /
                            (factors.empty() ? 1.0 : factors[static_cast<size_t>(i)]);
    const double share = unscaled_share(op, i);
    frequency[static_cast<size_t>(i)] = unscaled * (share + (1.0 - share) * op.freq_scale);
  }
  return frequency;
}

float rope_magnitude(const RopeOp& op) {
  if (op.ext_factor == 0.0f) return op.attn_factor;
  return static_cast<float>(op.attn_factor * (1.0 + 0.1 * std::log(1.0 / op.freq_scale)));
}

float rope_temperature(const RopeOp& op, int32_t position) {
  if (op.temperature_scale == 0.0f) return 1.0f;
  return static_cast<float>(1.0 + op.temperature_scale *
                                      std::log1p(static_cast<double>(position / op.temperature_length)));
}

}  // namespace tandem
