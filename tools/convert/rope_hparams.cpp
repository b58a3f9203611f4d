// Converts the scaling of rotary positions from config.json to GGUF.
#include <cmath>
#include <numbers>

#include "base/log.h"
#include "tools/convert/architectures.h"

namespace tandem::tools {
namespace {

double log_magnitude(double scale, double factor) {
  return scale <= 1.0 ? 1.0 : 0.1 * factor * std::log(scale) + 1.0;
}

// Factor for cos and sin, relative to YaRN's default factor.
void add_yarn(const ModelConfig& c, HparamWriter& out) {
  const JsonObject& s = *c.rope.scaling;
  const double factor = s.number("factor");
  out.text("rope.scaling.type", "yarn");
  out.number("rope.scaling.factor", factor);
  out.integer("rope.scaling.original_context_length", c.rope.n_ctx_orig);
  if (const auto beta = s.optional_number("beta_fast")) out.number("rope.scaling.yarn_beta_fast", *beta);
  if (const auto beta = s.optional_number("beta_slow")) out.number("rope.scaling.yarn_beta_slow", *beta);
  const double usual = log_magnitude(factor, 1.0);
  std::optional<double> wanted = s.optional_number("attention_factor");
  const auto mscale = s.optional_number("mscale"), all_dim = s.optional_number("mscale_all_dim");
  if (!wanted && mscale && all_dim && *mscale != 0 && *all_dim != 0 && !s.has("llama_4_scaling_beta")) {
    wanted = log_magnitude(factor, *mscale) / log_magnitude(factor, *all_dim);
  }
  if (c.latent.rank > 0 && all_dim && *all_dim != 0) {
    // Scores take the factor of all_dim instead of cos and sin. Readers expect a tenth of it under this name.
    out.number("rope.scaling.yarn_log_multiplier", 0.1 * *all_dim);
    const double magnitude = wanted.value_or(usual);
    if (std::fabs(magnitude - 1.0) > 1e-6) out.number("rope.scaling.attn_factor", magnitude);
    return;
  }
  if (wanted && std::fabs(*wanted / usual - 1.0) > 1e-6)
    out.number("rope.scaling.attn_factor", *wanted / usual);
}

// High frequencies stay, low ones are divided by the factor, with a blend between (Llama 3.1,
// arXiv:2407.21783). The file stores the divisor of each frequency.
void add_llama3(const ModelConfig& c, HparamWriter& out) {
  const JsonObject& s = *c.rope.scaling;
  const double factor = s.number("factor");
  const double low = s.optional_number("low_freq_factor").value_or(1.0);
  const double high = s.optional_number("high_freq_factor").value_or(4.0);
  const auto n_ctx = static_cast<double>(c.rope.n_ctx_orig);
  if (!(factor >= 1.0)) s.fail("factor", std::to_string(factor), "a number of at least 1");
  if (!(high > low && low > 0.0))
    s.fail("high_freq_factor", std::to_string(high), "more than low_freq_factor");
  const int64_t n_rot = c.n_rot();
  std::vector<float> divisors;
  for (int64_t i = 0; i < n_rot / 2; ++i) {
    const double turn = 2 * std::numbers::pi *
                        std::pow(c.rope.theta, 2.0 * static_cast<double>(i) / static_cast<double>(n_rot));
    const double share = (n_ctx / turn - low) / (high - low);  // of the unscaled frequency
    const double kept = share < 0 ? 0 : share > 1 ? 1 : share;
    divisors.push_back(static_cast<float>(1.0 / ((1.0 - kept) / factor + kept)));
  }
  out.tensor("rope_freqs.weight", std::move(divisors));
}

std::vector<float> factors(const JsonObject& scaling, const char* key, int64_t n) {
  const auto values = scaling.numbers(key);
  if (!values || static_cast<int64_t>(values->size()) != n) {
    scaling.fail(key, values ? std::to_string(values->size()) + " numbers" : "nothing",
                 std::to_string(n) + " numbers");
  }
  return {values->begin(), values->end()};
}

}  // namespace

void add_rope(const ModelConfig& c, HparamWriter& out) {
  out.number("rope.freq_base", c.rope.theta);
  const std::string& type = c.rope.type;
  if (type == "default") return;
  if (type == "linear") {
    out.text("rope.scaling.type", "linear");
    return out.number("rope.scaling.factor", c.rope.scaling->number("factor"));
  }
  if (type == "yarn") return add_yarn(c, out);
  if (type == "llama3") return add_llama3(c, out);
  if (type == "dynamic") {  // affects only positions past the training context
    return log_warning(
        "{}: GGUF does not support rope scaling \"dynamic\", dropped; expect lower quality past {} tokens",
        c.text.source(), c.n_ctx);
  }
  c.rope.scaling->fail("rope_type", "\"" + type + "\"", "default, linear, yarn, llama3 or dynamic");
}

void add_longrope(const ModelConfig& c, HparamWriter& out) {
  out.integer("rope.scaling.original_context_length", c.rope.n_ctx_orig);
  if (c.rope.type != "longrope") return add_rope(c, out);
  out.number("rope.freq_base", c.rope.theta);
  const JsonObject& s = *c.rope.scaling;
  out.tensor("rope_factors_long.weight", factors(s, "long_factor", c.n_rot() / 2));
  out.tensor("rope_factors_short.weight", factors(s, "short_factor", c.n_rot() / 2));
  const double scale = static_cast<double>(c.n_ctx) / static_cast<double>(c.rope.n_ctx_orig);
  const double usual =
      scale <= 1.0 ? 1.0
                   : std::sqrt(1.0 + std::log(scale) / std::log(static_cast<double>(c.rope.n_ctx_orig)));
  out.number("rope.scaling.attn_factor", s.optional_number("attention_factor").value_or(usual));
}

}  // namespace tandem::tools
