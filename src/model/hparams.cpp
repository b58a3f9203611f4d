#include "model/hparams.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/setting.h"

namespace tandem {
namespace {

constexpr int64_t kMaxLayers = 10000;

}  // namespace

int64_t HparamReader::integer(std::string_view suffix, int64_t min, int64_t max) const {
  const std::string k = key(suffix);
  const Value* value = metadata_.find(k);
  int64_t result = 0;
  if (value && value->is_array()) {
    const std::vector<int64_t> per_layer = metadata_.get_vector<int64_t>(k);
    if (per_layer.empty() ||
        std::any_of(per_layer.begin(), per_layer.end(), [&](int64_t v) { return v != per_layer[0]; })) {
      metadata_.fail(k, "a value that differs from layer to layer", "one value for all layers");
    }
    result = per_layer[0];
  } else {
    result = metadata_.get<int64_t>(k);
  }
  if (result < min || result > max) {
    metadata_.fail(k, std::to_string(result), format("an integer from {} to {}", min, max));
  }
  return result;
}

int64_t HparamReader::integer_of_some(std::string_view suffix, int64_t min, int64_t max) const {
  if (!is_array(suffix)) return integer(suffix, min, max);
  const std::string k = key(suffix);
  int64_t result = 0;
  for (const int64_t value : metadata_.get_vector<int64_t>(k)) {
    if (value == 0) continue;
    if (result != 0 && value != result)
      metadata_.fail(k, format("{} and {}", result, value), "one value, and 0 for layers without it");
    result = value;
  }
  if (result != 0 && (result < min || result > max))
    metadata_.fail(k, std::to_string(result), format("an integer from {} to {}", min, max));
  return result;
}

int64_t HparamReader::integer_or(std::string_view suffix, int64_t fallback, int64_t min, int64_t max) const {
  return metadata_.has(key(suffix)) ? integer(suffix, min, max) : fallback;
}

std::vector<int64_t> HparamReader::per_layer(std::string_view suffix, size_t n, int64_t fallback, int64_t min,
                                             int64_t max) const {
  if (!is_array(suffix)) return std::vector<int64_t>(n, integer_or(suffix, fallback, min, max));
  std::vector<int64_t> values = metadata_.get_vector<int64_t>(key(suffix));
  if (values.size() != n) {
    metadata_.fail(key(suffix), std::to_string(values.size()) + " numbers",
                   "one for each of " + std::to_string(n) + " layers");
  }
  for (const int64_t value : values) {
    if (value >= min && value <= max) continue;
    metadata_.fail(key(suffix), std::to_string(value), format("integers from {} to {}", min, max));
  }
  return values;
}

int64_t HparamReader::largest(std::string_view suffix, int64_t min, int64_t max) const {
  if (!is_array(suffix)) return integer(suffix, min, max);
  const auto n = static_cast<size_t>(integer("block_count", 1, kMaxLayers));
  const std::vector<int64_t> values = per_layer(suffix, n, min, min, max);
  return *std::max_element(values.begin(), values.end());
}

float HparamReader::number(std::string_view suffix, float min, float max) const {
  const std::string k = key(suffix);
  const float value = metadata_.get<float>(k);
  if (!std::isfinite(value) || value < min || value > max) {
    metadata_.fail(k, format("{:g}", static_cast<double>(value)),
                   format("a number from {:g} to {:g}", static_cast<double>(min), static_cast<double>(max)));
  }
  return value;
}

float HparamReader::number_or(std::string_view suffix, float fallback, float min, float max) const {
  return metadata_.has(key(suffix)) ? number(suffix, min, max) : fallback;
}

bool HparamReader::flag_or(std::string_view suffix, bool fallback) const {
  return metadata_.get_or<bool>(key(suffix), fallback);
}

bool HparamReader::is_array(std::string_view suffix) const {
  const Value* value = metadata_.find(key(suffix));
  return value != nullptr && value->is_array();
}

std::vector<bool> HparamReader::flags(std::string_view suffix, size_t n) const {
  const std::string k = key(suffix);
  std::vector<bool> result;
  if (metadata_.find(k)->element_type() == ValueType::boolean) {
    for (bool flag : metadata_.get_array<bool>(k)) result.push_back(flag);
  } else {
    for (int64_t flag : metadata_.get_vector<int64_t>(k)) result.push_back(flag != 0);
  }
  if (result.size() != n) {
    metadata_.fail(k, std::to_string(result.size()) + " flags",
                   "one for each of " + std::to_string(n) + " layers");
  }
  return result;
}

Hparams HparamReader::transformer(std::string_view eps_key, LayerKinds kinds) const {
  const auto count = [&](std::string_view suffix) {
    switch (kinds) {
      case LayerKinds::alike: return integer(suffix, 1, kMaxDimension);
      case LayerKinds::mixed: return integer_of_some(suffix, 1, kMaxDimension);
      case LayerKinds::resized: return largest(suffix, 1, kMaxDimension);
    }
    TANDEM_CHECK(false);
  };
  Hparams h;
  h.architecture = architecture_;
  h.name = metadata_.get_or<std::string>("general.name", "");
  h.n_ctx_train = integer("context_length", 1, INT32_MAX);  // positions are 32 bits wide
  h.n_embd = integer("embedding_length", 1, kMaxDimension);
  h.n_layer = integer("block_count", 1, kMaxLayers);
  // Some mixtures without dense layers give only the width of their experts.
  const bool has_n_ff =
      metadata_.has(key("feed_forward_length")) || !metadata_.has(key("expert_feed_forward_length"));
  h.n_ff = count(has_n_ff ? "feed_forward_length" : "expert_feed_forward_length");
  h.n_head = integer("attention.head_count", 1, kMaxDimension);
  if (metadata_.has(key("attention.head_count_kv"))) h.n_head_kv = count("attention.head_count_kv");
  if (h.n_head_kv == 0) h.n_head_kv = h.n_head;  // not given, or no layer has attention
  if (h.n_head % h.n_head_kv != 0) {
    metadata_.fail(key("attention.head_count_kv"), std::to_string(h.n_head_kv),
                   "a divisor of attention.head_count, " + std::to_string(h.n_head));
  }
  const bool has_key_length = metadata_.has(key("attention.key_length"));
  if (!has_key_length && h.n_embd % h.n_head != 0) {
    metadata_.fail(key("attention.head_count"), std::to_string(h.n_head),
                   "a divisor of embedding_length, " + std::to_string(h.n_embd));
  }
  h.head_dim_k = integer_or("attention.key_length", h.n_embd / h.n_head, 1, 65536);
  h.head_dim_v =
      integer_or("attention.value_length", has_key_length ? h.head_dim_k : h.n_embd / h.n_head, 1, 65536);
  // Files of hybrids may name it as that of a usual layer norm.
  constexpr std::string_view kOtherName = "attention.layer_norm_epsilon";
  const bool has_other = metadata_.has(key(kOtherName));
  const float other = has_other ? number(kOtherName, 0.0f, 1.0f) : 0.0f;
  h.norm_eps = has_other && !metadata_.has(key(eps_key)) ? other : number(eps_key, 0.0f, 1.0f);
  return h;
}

void check_self_extend(const SelfExtend& o) {
  const std::string width = setting_text(Setting::self_extend_width, o.neighbours);
  if (o.factor < 1)
    throw_error(ErrorCode::usage, "{}: needed 1 (off) or more", setting_text(Setting::self_extend, o.factor));
  if (!o.on()) return;
  if (o.factor > kMaxSelfExtend) {
    throw_error(ErrorCode::usage, "{}: needed at most {}", setting_text(Setting::self_extend, o.factor),
                kMaxSelfExtend);
  }
  if (o.neighbours < 1 || o.neighbours > INT32_MAX)
    throw_error(ErrorCode::usage, "{}: needed at least 1", width);
  if (o.neighbours % o.factor != 0) {
    throw_error(ErrorCode::usage, "{}: needed a multiple of {}, which is {}", width,
                setting_text(Setting::self_extend), o.factor);
  }
}

RopeScaling HparamReader::rope_scaling() const {
  const auto name = metadata_.get_or<std::string>(key("rope.scaling.type"), "linear");
  if (name == "none" || name == "longrope")
    return RopeScaling::none;  // longrope: its factors are stored as tensors
  if (name == "linear") return RopeScaling::linear;
  if (name == "yarn") return RopeScaling::yarn;
  metadata_.fail(key("rope.scaling.type"), printable(name), "none, linear, yarn or longrope");
}

RopeParams HparamReader::rope(const Hparams& hparams, RopeStyle style, const RopeOverrides& overrides) const {
  RopeParams op;
  op.style = style;
  op.head_dim = hparams.head_dim_k;
  op.n_rot = integer_or("rope.dimension_count", hparams.head_dim_k, 2, hparams.head_dim_k);
  if (op.n_rot % 2 != 0)
    metadata_.fail(key("rope.dimension_count"), std::to_string(op.n_rot), "an even number");
  op.freq_base = overrides.freq_base.value_or(number_or("rope.freq_base", 10000.0f, 1.0f, 1e30f));
  op.n_ctx_orig = overrides.n_ctx_orig.value_or(
      integer_or("rope.scaling.original_context_length", hparams.n_ctx_train, 1, int64_t{1} << 31));

  const RopeScaling in_file = rope_scaling();
  const RopeScaling scaling = overrides.scaling.value_or(in_file);
  float factor = number_or("rope.scale_linear", 1.0f, 1e-6f, 1e6f);  // the name in old files
  factor = number_or("rope.scaling.factor", factor, 0.0f, 1e6f);
  if (factor == 0.0f) factor = 1.0f;
  op.freq_scale = 1.0f / overrides.scale.value_or(factor);
  if (overrides.freq_scale) op.freq_scale = *overrides.freq_scale;
  if (scaling == RopeScaling::none) op.freq_scale = 1.0f;

  op.ext_factor =
      scaling == RopeScaling::yarn
          ? overrides.ext_factor.value_or(number_or("rope.scaling.yarn_ext_factor", 1.0f, -1.0f, 1e6f))
          : 0.0f;
  op.beta_fast = overrides.beta_fast.value_or(number_or("rope.scaling.yarn_beta_fast", 32.0f, 0.0f, 1e6f));
  op.beta_slow = overrides.beta_slow.value_or(number_or("rope.scaling.yarn_beta_slow", 1.0f, 0.0f, 1e6f));
  op.attn_factor = overrides.attn_factor.value_or(number_or("rope.scaling.attn_factor", 1.0f, 0.0f, 1e6f));
  // For models that undo part of YaRN's scaling of q and k.
  const float log_multiplier = number_or("rope.scaling.yarn_log_multiplier", 0.0f, 0.0f, 1e3f);
  if (op.ext_factor != 0.0f && op.freq_scale < 1.0f)
    op.attn_factor /= 1.0f - 0.1f * log_multiplier * std::log(op.freq_scale);
  return op;
}

}  // namespace tandem
