#include "tools/convert/model_config.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

namespace tandem::tools {
namespace {

constexpr int64_t kMaxDimension = int64_t{1} << 24;  // far above any model; products of two do not overflow

int64_t size_of(const JsonObject& c, const char* key, std::optional<int64_t> fallback = {}) {
  if (fallback && !c.has(key)) return *fallback;
  return c.integer(key, 1, kMaxDimension);
}

int64_t same_for_all_layers(const JsonObject& c, const char* key) {
  const std::vector<double> values = c.numbers(key).value();
  const double first = values.empty() ? -1.0 : values.front();
  const auto n = first >= 0.0 && first <= kMaxDimension ? static_cast<int64_t>(first) : int64_t{-1};
  if (static_cast<double>(n) != first ||
      std::any_of(values.begin(), values.end(), [&](double v) { return v != first; })) {
    c.fail(key, short_json(*c.find(key)), "the same size for all layers");
  }
  return n;
}

// Returns the first key that is present; 0 if none is. A list with a value for each layer must repeat one.
int64_t first_of(const JsonObject& c, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (const Json* value = c.find(key); value && value->is_array()) return same_for_all_layers(c, key);
    if (const auto n = c.optional_integer(key, 0, kMaxDimension)) return *n;
  }
  return 0;
}

// Old files have rope_theta and rope_scaling; new ones rope_parameters, perhaps with an object for each kind
// of layer.
RopeConfig read_rope(const JsonObject& c, int64_t n_ctx, const ConfigDefaults& defaults) {
  RopeConfig rope;
  rope.rotated_share = defaults.rotated_share;
  std::optional<JsonObject> parameters = c.object("rope_parameters");
  if (parameters) {
    if (const auto local = parameters->object("sliding_attention"))
      rope.theta_local = local->optional_number("rope_theta");
    if (const auto full = parameters->object("full_attention")) parameters = full;
  }
  rope.scaling = parameters ? parameters : c.object("rope_scaling");
  rope.theta = defaults.rope_theta;
  if (const auto theta = c.optional_number("rope_theta")) rope.theta = *theta;
  if (const auto share = c.optional_number("partial_rotary_factor")) rope.rotated_share = *share;
  if (const auto theta = c.optional_number("rope_local_base_freq")) rope.theta_local = *theta;
  rope.n_ctx_orig = c.optional_integer("original_max_position_embeddings", 1, INT32_MAX).value_or(n_ctx);
  if (rope.scaling) {
    const JsonObject& s = *rope.scaling;
    const auto type = s.text("rope_type");
    rope.type = type ? *type : s.text("type").value_or("default");
    if (const auto theta = s.optional_number("rope_theta")) rope.theta = *theta;
    if (const auto share = s.optional_number("partial_rotary_factor")) rope.rotated_share = *share;
    rope.n_ctx_orig =
        s.optional_integer("original_max_position_embeddings", 1, INT32_MAX).value_or(rope.n_ctx_orig);
  }
  if (rope.type == "su") rope.type = "longrope";  // its first name
  if (!(rope.theta >= 1.0)) c.fail("rope_theta", std::to_string(rope.theta), "a number of at least 1");
  if (!(rope.rotated_share > 0.0 && rope.rotated_share <= 1.0)) {
    c.fail("partial_rotary_factor", std::to_string(rope.rotated_share), "a number above 0, at most 1");
  }
  return rope;
}

// Of DeepSeek's block-scaled FP8, which others adopted.
std::array<int64_t, 2> read_fp8_block(const JsonObject& c) {
  const auto quantization = c.object("quantization_config");
  if (!quantization || !quantization->has("weight_block_size")) return {128, 128};
  const std::vector<double> sizes = quantization->numbers("weight_block_size").value();
  const auto is_size = [](double x) { return x >= 1 && x <= kMaxDimension && x == std::floor(x); };
  if (sizes.size() != 2 || !is_size(sizes[0]) || !is_size(sizes[1])) {
    quantization->fail("weight_block_size", short_json(*quantization->find("weight_block_size")),
                       "two sizes, such as [128, 128]");
  }
  return {static_cast<int64_t>(sizes[0]), static_cast<int64_t>(sizes[1])};
}

LatentConfig read_latent(const JsonObject& c) {
  LatentConfig latent;
  if (!c.has("kv_lora_rank")) return latent;
  latent.rank = size_of(c, "kv_lora_rank");
  if (c.has("q_lora_rank")) latent.q_rank = size_of(c, "q_lora_rank");
  latent.n_rot = size_of(c, "qk_rope_head_dim");
  if (latent.n_rot % 2 != 0) c.fail("qk_rope_head_dim", std::to_string(latent.n_rot), "an even number");
  latent.key = size_of(c, "qk_nope_head_dim") + latent.n_rot;
  latent.value = size_of(c, "v_head_dim");
  return latent;
}

// GGUF has no key for a layer's kind: readers assume attention in every so-manyth layer.
DeltaNetConfig read_delta_net(const JsonObject& c, int64_t n_layer) {
  DeltaNetConfig d;
  if (!c.has("linear_num_value_heads")) return d;
  d.n_head_k = size_of(c, "linear_num_key_heads");
  d.n_head_v = size_of(c, "linear_num_value_heads");
  d.head_dim_k = size_of(c, "linear_key_head_dim");
  d.head_dim_v = size_of(c, "linear_value_head_dim");
  if (d.n_head_v % d.n_head_k != 0) {
    c.fail("linear_num_key_heads", std::to_string(d.n_head_k),
           "a divisor of the " + std::to_string(d.n_head_v) + " value heads");
  }
  const auto kinds = c.texts("layer_types");
  d.attention_interval = c.optional_integer("full_attention_interval", 1, n_layer + 1).value_or(4);
  if (!kinds) return d;
  const auto first = std::ranges::find(*kinds, "full_attention") - kinds->begin();
  d.attention_interval = first + 1;
  for (size_t i = 0; i < kinds->size(); ++i) {
    const bool full = (static_cast<int64_t>(i) + 1) % d.attention_interval == 0;
    if ((*kinds)[i] == (full ? "full_attention" : "linear_attention")) continue;
    c.fail("layer_types", short_json(*c.find("layer_types")),
           "linear_attention, and full_attention in every n-th layer");
  }
  return d;
}

// Returns the first of the keys that is present, the last one if none is.
const char* key_of(const JsonObject& c, std::initializer_list<const char*> keys) {
  const auto* found = std::ranges::find_if(keys, [&](const char* key) { return c.has(key); });
  return found == keys.end() ? *(keys.end() - 1) : *found;
}

LayerKind layer_kind(const JsonObject& c, const char* key, const std::string& name) {
  constexpr std::pair<LayerKind, std::string_view> kNames[] = {
      {LayerKind::attention, "attention full_attention *"},
      {LayerKind::recurrent, "conv mamba linear_attention M"},
      {LayerKind::feed_forward, "mlp moe - E"}};
  for (const auto& [kind, names] : kNames) {
    if (lists_name(names, name)) return kind;
  }
  c.fail(key, "\"" + name + "\"",
         "one of: attention full_attention conv mamba linear_attention mlp moe, or in a pattern * M - E");
}

// Of models with Mamba-2, whose keys differ: Granite 4's and Nemotron-H's.
SsmConfig read_ssm(const JsonObject& c, int64_t n_embd) {
  SsmConfig s;
  if (!c.has("mamba_n_heads") && !c.has("mamba_num_heads")) return s;
  s.n_head = size_of(c, key_of(c, {"mamba_n_heads", "mamba_num_heads"}));
  const char* dim = key_of(c, {"mamba_d_head", "mamba_head_dim"});
  if (const Json* value = c.find(dim); value && *value == "auto") {
    s.head_dim = size_of(c, "mamba_expand", 2) * n_embd / s.n_head;
  } else {
    s.head_dim = size_of(c, dim);
  }
  const char* groups = key_of(c, {"mamba_n_groups", "n_groups"});
  s.n_group = size_of(c, groups);
  s.n_state = size_of(c, key_of(c, {"mamba_d_state", "ssm_state_size"}));
  if (s.n_head % s.n_group != 0)
    c.fail(groups, std::to_string(s.n_group), "a divisor of the " + std::to_string(s.n_head) + " heads");
  const char* limit_key = key_of(c, {"mamba_dt_limit", "time_step_limit"});
  const auto limit = c.numbers(limit_key);
  if (limit && (limit->size() != 2 || (*limit)[0] > 0.0 || (*limit)[1] < 1e30))
    c.fail(limit_key, short_json(*c.find(limit_key)), "[0.0, Infinity], as readers of GGUF assume");
  return s;
}

constexpr std::initializer_list<const char*> kConvWidthKeys = {"linear_conv_kernel_dim", "conv_L_cache",
                                                               "mamba_d_conv", "conv_kernel"};

void check_conv_width(const JsonObject& c, int64_t width) {
  constexpr int64_t kMin = 2, kMax = 16;
  if (width >= kMin && width <= kMax) return;
  c.fail(key_of(c, kConvWidthKeys), std::to_string(width), format("an integer from {} to {}", kMin, kMax));
}

// LFM2 gives two thirds of its feed-forward layers' width, times a factor, rounded up.
int64_t adjusted_ff(const JsonObject& c, int64_t n_ff) {
  if (!c.boolean("block_auto_adjust_ff_dim").value_or(false)) return n_ff;
  const int64_t step = size_of(c, "block_multiple_of", 256);
  const double factor = c.optional_number("block_ffn_dim_multiplier").value_or(1.0);
  const double width = std::floor(factor * static_cast<double>(2 * n_ff / 3));
  if (!(width >= 1.0 && width <= static_cast<double>(kMaxDimension)))
    c.fail("block_ffn_dim_multiplier", std::to_string(factor), "a factor near 1");
  return ceil_div(static_cast<int64_t>(width), step) * step;
}

int64_t read_layer_count(const JsonObject& c) {
  const std::vector<LayerKind> kinds = read_layer_kinds(c);
  if (!c.has("num_hidden_layers") && !kinds.empty()) return static_cast<int64_t>(kinds.size());
  const int64_t n = c.integer("num_hidden_layers", 1, 10000);
  if (!kinds.empty() && static_cast<int64_t>(kinds.size()) != n) {
    c.fail("num_hidden_layers", std::to_string(n),
           "one for each of the " + std::to_string(kinds.size()) + " kinds of layers");
  }
  return n;
}

// A kind that no architecture here has must not pass for attention. Which kinds an architecture takes, and in what
// order, is checked where they are read.
void check_layer_kinds(const JsonObject& c) {
  constexpr std::string_view kKinds[] = {
      "full_attention", "sliding_attention", "linear_attention", "attention", "mamba", "conv", "mlp", "moe"};
  for (const std::string& kind : c.texts("layer_types").value_or(std::vector<std::string>{})) {
    if (std::ranges::find(kKinds, kind) != std::end(kKinds)) continue;
    c.fail("layer_types", "\"" + kind + "\"", "a kind of layer such as full_attention or sliding_attention");
  }
}

// Readers take the last layer for one of full attention, whatever layer_types says.
MixedAttention read_mixed_attention(const JsonObject& c, int64_t n_layer, int64_t n_head,
                                    const ConfigDefaults& defaults) {
  MixedAttention m;
  if (!defaults.head_dim_full) return m;
  const auto kinds = c.texts("layer_types");
  if (kinds && static_cast<int64_t>(kinds->size()) != n_layer) {
    c.fail("layer_types", std::to_string(kinds->size()) + " kinds",
           "one for each of the " + std::to_string(n_layer) + " layers");
  }
  for (int64_t i = 0; i < n_layer; ++i) {
    const std::string usual = (i + 1) % 6 == 0 ? "full_attention" : "sliding_attention";
    const std::string& kind = kinds ? (*kinds)[i] : usual;
    if (kind != "full_attention" && kind != "sliding_attention") {
      c.fail("layer_types", "\"" + kind + "\"", "sliding_attention or full_attention");
    }
    m.slides.push_back(kind == "sliding_attention" && i + 1 < n_layer);
  }
  m.head_dim_full = size_of(c, "global_head_dim", defaults.head_dim_full);
  if (m.head_dim_full % 2 != 0) c.fail("global_head_dim", std::to_string(m.head_dim_full), "an even number");
  m.values_are_keys = c.boolean("attention_k_eq_v").value_or(false);
  const int64_t n_head_kv = size_of(c, "num_key_value_heads", defaults.n_head_kv);
  m.n_head_kv_full = m.values_are_keys ? size_of(c, "num_global_key_value_heads", n_head_kv) : n_head_kv;
  if (n_head % m.n_head_kv_full != 0) {
    c.fail("num_global_key_value_heads", std::to_string(m.n_head_kv_full),
           "a divisor of the " + std::to_string(n_head) + " heads");
  }
  m.n_shared = c.optional_integer("num_kv_shared_layers", 0, n_layer - 1).value_or(0);
  const auto own = m.slides.end() - m.n_shared;
  for (auto it = own; it != m.slides.end(); ++it) {
    if (std::find(m.slides.begin(), own, *it) != own) continue;
    c.fail("num_kv_shared_layers", std::to_string(m.n_shared),
           std::string("fewer: no layer before them has ") + (*it ? "a sliding window" : "full attention"));
  }
  m.wide_shared = c.boolean("use_double_wide_mlp").value_or(false);
  return m;
}

}  // namespace

std::vector<LayerKind> read_layer_kinds(const JsonObject& c) {
  std::vector<LayerKind> kinds;
  const bool names_all = c.has("conv_L_cache") || c.has("mamba_n_heads") || c.has("mamba_num_heads");
  if (!names_all) return kinds;
  if (const auto pattern = c.text("hybrid_override_pattern")) {
    for (const char letter : *pattern)
      kinds.push_back(layer_kind(c, "hybrid_override_pattern", std::string(1, letter)));
    return kinds;
  }
  const char* key = key_of(c, {"layers_block_type", "layer_types"});
  if (const auto names = c.texts(key)) {
    for (const std::string& name : *names) kinds.push_back(layer_kind(c, key, name));
    return kinds;
  }
  const auto n_layer = c.integer("num_hidden_layers", 1, 10000);
  kinds.assign(static_cast<size_t>(n_layer), LayerKind::recurrent);
  for (const double at : c.numbers("full_attn_idxs").value_or(std::vector<double>{})) {
    if (!(at >= 0 && at < static_cast<double>(n_layer)))
      c.fail("full_attn_idxs", std::to_string(at), "one of the " + std::to_string(n_layer) + " layers");
    kinds[static_cast<size_t>(at)] = LayerKind::attention;
  }
  return kinds;
}

bool names_mixture(const JsonObject& c) {
  if (const auto pattern = c.text("hybrid_override_pattern")) return pattern->find('E') != std::string::npos;
  const auto names = c.texts(key_of(c, {"layers_block_type", "layer_types"}));
  return names && std::ranges::find(*names, "moe") != names->end();
}

ModelConfig::ModelConfig(const JsonObject& config, const ConfigDefaults& defaults)
    : whole(config), text(config.object("text_config").value_or(config)) {
  n_vocab = size_of(text, "vocab_size", defaults.n_vocab);
  n_embd = size_of(text, "hidden_size");
  n_layer = read_layer_count(text);
  n_head = size_of(text, "num_attention_heads", defaults.n_head);
  n_head_kv = size_of(text, "num_key_value_heads", defaults.n_head_kv ? *defaults.n_head_kv : n_head);
  if (n_head % n_head_kv != 0) {
    text.fail("num_key_value_heads", std::to_string(n_head_kv),
              "a divisor of the " + std::to_string(n_head) + " heads");
  }
  latent = read_latent(text);
  has_head_dim = text.has("head_dim") || defaults.head_dim || latent.rank > 0;
  if (!has_head_dim && n_embd % n_head != 0) {
    text.fail("num_attention_heads", std::to_string(n_head),
              "a divisor of hidden_size " + std::to_string(n_embd));
  }
  head_dim =
      latent.rank > 0 ? latent.key : size_of(text, "head_dim", defaults.head_dim.value_or(n_embd / n_head));
  drops_mtp = defaults.without_mtp;
  mtp_apart = defaults.mtp_apart;
  if (latent.rank == 0 && head_dim % 2 != 0)
    text.fail("head_dim", std::to_string(head_dim), "an even number");
  // Some mixtures have only experts.
  const bool has_n_ff = text.has("intermediate_size") || !text.has("moe_intermediate_size");
  n_ff = text.has("block_ff_dim") ? size_of(text, "block_ff_dim")
                                  : size_of(text, has_n_ff ? "intermediate_size" : "moe_intermediate_size");
  n_ff = adjusted_ff(text, n_ff);
  n_ctx = defaults.n_ctx && !text.has("max_position_embeddings")
              ? *defaults.n_ctx
              : text.integer("max_position_embeddings", 1, INT32_MAX);
  const char* eps_key = key_of(text, {"norm_eps", "layer_norm_epsilon", "rms_norm_eps"});
  norm_eps = defaults.norm_eps && !text.has(eps_key) ? *defaults.norm_eps : text.number(eps_key);
  n_expert = first_of(text, {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"});
  if (!text.boolean("enable_moe_block").value_or(true)) n_expert = 0;
  n_expert_used =
      first_of(text, {"num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k", "top_k_experts"});
  if (n_expert > 0 && (n_expert_used < 1 || n_expert_used > n_expert)) {
    text.fail("num_experts_per_tok", std::to_string(n_expert_used),
              "1 to the " + std::to_string(n_expert) + " experts");
  }
  n_ff_expert = first_of(text, {"moe_intermediate_size"});
  n_shared_experts = first_of(
      text, {"n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"});
  n_ff_shared = first_of(text, {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                                "shared_intermediate_size"});
  if (n_ff_shared == 0) n_ff_shared = n_shared_experts * (n_ff_expert > 0 ? n_ff_expert : n_ff);
  n_dense_layers = first_of(text, {"first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"});
  const auto mlp_kinds = text.texts("mlp_layer_types");
  if (mlp_kinds && !text.has("first_k_dense_replace")) {
    n_dense_layers =
        std::find_if(mlp_kinds->begin(), mlp_kinds->end(), [](const auto& k) { return k != "dense"; }) -
        mlp_kinds->begin();
  }
  mixture_period = std::max<int64_t>(1, first_of(text, {"moe_layer_interval"}));
  const auto said = text.boolean(text.has("tie_embedding") ? "tie_embedding" : "tie_word_embeddings");
  const auto said_outside = whole.boolean("tie_word_embeddings");
  has_tied_key = said || said_outside;
  tied = said ? *said : said_outside.value_or(defaults.tied);
  rope = read_rope(text, n_ctx, defaults);
  check_layer_kinds(text);
  delta_net = read_delta_net(text, n_layer);
  read_recurrent_layers();
  mixed = read_mixed_attention(text, n_layer, n_head, defaults);
  if (defaults.head_dim_full)
    layer_inputs.width = text.optional_integer("hidden_size_per_layer_input", 0, kMaxDimension).value_or(0);
  if (layer_inputs.width > 0) layer_inputs.n_vocab = size_of(text, "vocab_size_per_layer_input", n_vocab);
  fp8_block = read_fp8_block(config);
}

void ModelConfig::read_recurrent_layers() {
  ssm = read_ssm(text, n_embd);
  n_conv = first_of(text, kConvWidthKeys);
  kinds = read_layer_kinds(text);
  has_one_part = std::ranges::find(kinds, LayerKind::feed_forward) != kinds.end();
  if (has_one_part && !names_mixture(text)) n_expert = 0;
  n_latent = first_of(text, {"moe_latent_size"});
  if (std::ranges::find(kinds, LayerKind::recurrent) != kinds.end() || delta_net.n_head_v > 0)
    check_conv_width(text, n_conv);
}

std::string model_class(const JsonObject& config) {
  const auto names = config.texts("architectures");
  if (!names || names->empty()) {
    config.fail("architectures", "nothing", "the class of the model, such as [\"LlamaForCausalLM\"]");
  }
  return names->front();
}

}  // namespace tandem::tools
