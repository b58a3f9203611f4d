#include "capi/options.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>

#include "base/text.h"
#include "capi/call.h"
#include "plan/kv_formats.h"
#include "sample/grammar/grammar.h"
#include "sample/json_schema/json_schema.h"

namespace tandem::capi {
namespace {

constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max();

struct IntSetting {
  const char* name;
  int64_t min, max;
  void (*set)(tandem_options& o, int64_t value);
};
struct RealSetting {
  const char* name;
  float SamplerParams::*field;
};
struct TextSetting {
  const char* name;
  void (*set)(tandem_options& o, const std::string& value);
};

std::optional<size_t> bytes_or_free(int64_t value) {
  return value == 0 ? std::nullopt : std::optional<size_t>(value);
}

constexpr IntSetting kInts[] = {
    {"mmap", 0, 1, [](tandem_options& o, int64_t v) { o.engine.model.open.mmap = v != 0; }},
    {"mlock", 0, 1, [](tandem_options& o, int64_t v) { o.engine.model.open.mlock = v != 0; }},
    {"self_extend", 1, kMaxSelfExtend,
     [](tandem_options& o, int64_t v) { o.engine.model.rope.self_extend.factor = v; }},
    {"self_extend_width", 1, kMax,
     [](tandem_options& o, int64_t v) { o.engine.model.rope.self_extend.neighbours = v; }},
    {"n_ctx", 0, kMax, [](tandem_options& o, int64_t v) { o.engine.context.n_ctx = v; }},
    {"n_ubatch", 1, kMax,
     [](tandem_options& o, int64_t v) {
       o.engine.context.n_ubatch = v;
       o.engine.context.n_batch = std::max(o.engine.context.n_batch, v);
       o.engine.context.n_ubatch_given = true;
     }},
    {"n_state_checkpoints", 0, 1024,
     [](tandem_options& o, int64_t v) { o.engine.context.n_state_checkpoints = v; }},
    {"n_draft", 0, 64, [](tandem_options& o, int64_t v) { o.engine.context.n_draft = v; }},
    {"n_deferred", 0, kMax, [](tandem_options& o, int64_t v) { o.engine.context.n_deferred = v; }},
    {"n_threads", -1, 4096,
     [](tandem_options& o, int64_t v) { o.engine.devices.n_threads = static_cast<int32_t>(v); }},
    {"n_threads_batch", -1, 4096,
     [](tandem_options& o, int64_t v) { o.engine.devices.n_threads_batch = static_cast<int32_t>(v); }},
    {"n_gpu_layers", -1, kMax,
     [](tandem_options& o, int64_t v) {
       o.engine.offload.n_gpu_layers = v < 0 ? std::nullopt : std::optional(v);
     }},
    {"kv_prefetched", 0, 1, [](tandem_options& o, int64_t v) { o.engine.offload.kv_prefetched = v != 0; }},
    {"kv_split", 0, kMax,
     [](tandem_options& o, int64_t v) { o.engine.offload.kv_split = v == 0 ? std::nullopt : std::optional(v); }},
    {"gpu_weights_percent", -1, 100,
     [](tandem_options& o, int64_t v) {
       o.engine.offload.gpu_weights_percent = v < 0 ? std::nullopt : std::optional(static_cast<double>(v));
     }},
    {"expert_cache", -1, kMaxBytes,
     [](tandem_options& o, int64_t v) {
       o.engine.offload.expert_cache = v < 0 ? std::nullopt : std::optional(static_cast<size_t>(v));
     }},
    {"max_ram", 0, kMaxBytes,
     [](tandem_options& o, int64_t v) { o.engine.offload.budgets.max_ram = bytes_or_free(v); }},
    {"max_vram", 0, kMaxBytes,
     [](tandem_options& o, int64_t v) { o.engine.offload.budgets.max_vram = bytes_or_free(v); }},
    {"kv_memory", 0, kMaxBytes,
     [](tandem_options& o, int64_t v) { o.engine.context.kv_memory = bytes_or_free(v); }},
    {"kv_store_bytes", 0, kMaxBytes,
     [](tandem_options& o, int64_t v) { o.kv_store_bytes = static_cast<uint64_t>(v); }},
    {"n_predict", -1, kMax, [](tandem_options& o, int64_t v) { o.generation.n_predict = v; }},
    {"n_logprobs", -1, kMax,
     [](tandem_options& o, int64_t v) { o.generation.n_logprobs = static_cast<int32_t>(v); }},
    {"context_shift", 0, 1, [](tandem_options& o, int64_t v) { o.generation.context_shift = v != 0; }},
    {"exact_shift", 0, 1, [](tandem_options& o, int64_t v) { o.generation.exact_shift = v != 0; }},
    {"n_keep", -1, kMax, [](tandem_options& o, int64_t v) { o.generation.n_keep = v; }},
    {"special", 0, 1,
     [](tandem_options& o, int64_t v) {
       o.generation.special = v != 0 ? SpecialText::shown : SpecialText::hidden;
     }},
    {"seed", -1, std::numeric_limits<int64_t>::max(),
     [](tandem_options& o, int64_t v) { o.sampling.seed = v; }},
    {"top_k", -kMax, kMax, [](tandem_options& o, int64_t v) { o.sampling.top_k = static_cast<int32_t>(v); }},
    {"repeat_last_n", -1, kMax,
     [](tandem_options& o, int64_t v) { o.sampling.repeat_last_n = static_cast<int32_t>(v); }},
    {"dry_allowed_length", 0, kMax,
     [](tandem_options& o, int64_t v) { o.sampling.dry_allowed_length = static_cast<int32_t>(v); }},
    {"dry_penalty_last_n", -1, kMax,
     [](tandem_options& o, int64_t v) { o.sampling.dry_penalty_last_n = static_cast<int32_t>(v); }},
    {"mirostat", 0, 2, [](tandem_options& o, int64_t v) { o.sampling.mirostat = static_cast<int32_t>(v); }},
    {"ignore_eos", 0, 1, [](tandem_options& o, int64_t v) { o.sampling.ignore_eos = v != 0; }},
    {"think", 0, 1, [](tandem_options& o, int64_t v) { o.think = v != 0; }},
};

constexpr RealSetting kReals[] = {
    {"temp", &SamplerParams::temp},
    {"top_p", &SamplerParams::top_p},
    {"min_p", &SamplerParams::min_p},
    {"typical_p", &SamplerParams::typical_p},
    {"top_n_sigma", &SamplerParams::top_n_sigma},
    {"xtc_probability", &SamplerParams::xtc_probability},
    {"xtc_threshold", &SamplerParams::xtc_threshold},
    {"dynatemp_range", &SamplerParams::dynatemp_range},
    {"dynatemp_exponent", &SamplerParams::dynatemp_exponent},
    {"repeat_penalty", &SamplerParams::repeat_penalty},
    {"presence_penalty", &SamplerParams::presence_penalty},
    {"frequency_penalty", &SamplerParams::frequency_penalty},
    {"dry_multiplier", &SamplerParams::dry_multiplier},
    {"dry_base", &SamplerParams::dry_base},
    {"mirostat_lr", &SamplerParams::mirostat_lr},
    {"mirostat_ent", &SamplerParams::mirostat_ent},
};

DType cache_dtype(const std::string& value) {
  if (const auto dtype = find_cache_dtype(value)) return *dtype;
  throw_error(ErrorCode::usage, "'{}' is none of {}", printable(value), joined(cache_dtype_names(), ", "));
}

Toggle toggle_of(const std::string& value) {
  if (value == "on") return Toggle::on;
  if (value == "off") return Toggle::off;
  if (value == "auto") return Toggle::automatic;
  throw_error(ErrorCode::usage, "'{}' is none of on, off, auto", printable(value));
}

SplitMode split_mode_of(const std::string& value) {
  if (value == "none") return SplitMode::none;
  if (value == "layer") return SplitMode::layer;
  if (value == "tensor") return SplitMode::tensor;
  if (value == "auto") return SplitMode::automatic;
  throw_error(ErrorCode::usage, "'{}' is none of none, layer, tensor, auto", printable(value));
}

std::vector<double> shares_of(const std::string& value) {
  std::vector<double> shares;
  for (size_t begin = 0; begin < value.size();) {
    const size_t end = std::min(value.find(',', begin), value.size());
    const std::string text = value.substr(begin, end - begin);
    char* rest = nullptr;
    shares.push_back(std::strtod(text.c_str(), &rest));
    if (text.empty() || *rest != '\0' || !std::isfinite(shares.back()) || shares.back() < 0)
      throw_error(ErrorCode::usage, "'{}' is no share of a GPU: numbers from 0 on, \"3,1\"", printable(text));
    begin = end + 1;
  }
  return shares;
}

void set_devices(tandem_options& o, const std::string& value) {
  DeviceOptions& devices = o.engine.devices;
  devices.no_gpus = value == "none";
  devices.gpus.clear();
  if (devices.no_gpus) return;
  for (size_t begin = 0; begin < value.size();) {
    const size_t end = std::min(value.find(',', begin), value.size());
    devices.gpus.push_back(value.substr(begin, end - begin));
    begin = end + 1;
  }
}

void set_grammar(tandem_options& o, const std::string& gbnf, const char* name) {
  o.sampling.grammar = gbnf.empty() ? nullptr : Grammar::parse(gbnf, {name, ErrorCode::bad_file});
}

constexpr TextSetting kTexts[] = {
    {"k_dtype",
     [](tandem_options& o, const std::string& v) {
       o.engine.context.k_dtype = cache_dtype(v);
       o.engine.context.kv_dtype_given = true;
     }},
    {"v_dtype",
     [](tandem_options& o, const std::string& v) {
       o.engine.context.v_dtype = cache_dtype(v);
       o.engine.context.kv_dtype_given = true;
     }},
    {"kv_type_layers",
     [](tandem_options& o, const std::string& v) {
       o.engine.context.kv_type_layers = v.empty() ? std::vector<KvTypeRange>() : parse_kv_type_layers(v);
       o.engine.context.kv_dtype_given |= !v.empty();
     }},
    {"kv_rotate", [](tandem_options& o, const std::string& v) { o.engine.context.kv_rotate = toggle_of(v); }},
    {"sparse_kv",
     [](tandem_options& o, const std::string& v) {
       o.engine.context.sparse_kv = v.empty() ? SparseReads{} : parse_sparse_kv(v);
     }},
    {"kv_spill", [](tandem_options& o, const std::string& v) { o.engine.context.kv_spill = v; }},
    {"devices", set_devices},
    {"isa", [](tandem_options& o, const std::string& v) { o.engine.devices.isa = v; }},
    {"split_mode",
     [](tandem_options& o, const std::string& v) { o.engine.offload.split_mode = split_mode_of(v); }},
    {"tensor_split",
     [](tandem_options& o, const std::string& v) { o.engine.offload.tensor_split = shares_of(v); }},
    {"kv_on_host", [](tandem_options& o, const std::string& v) { o.engine.offload.kv_on_host = toggle_of(v); }},
    {"stream", [](tandem_options& o, const std::string& v) { o.engine.offload.stream = toggle_of(v); }},
    {"pin", [](tandem_options& o, const std::string& v) { o.engine.offload.pin = toggle_of(v); }},
    {"disk", [](tandem_options& o, const std::string& v) { o.engine.offload.disk = toggle_of(v); }},
    {"huge_pages", [](tandem_options& o, const std::string& v) { o.engine.offload.huge_pages = toggle_of(v); }},
    {"kv_store", [](tandem_options& o, const std::string& v) { o.kv_store = v; }},
    {"samplers", [](tandem_options& o, const std::string& v) { o.sampling.stages = parse_sampler_names(v); }},
    {"grammar", [](tandem_options& o, const std::string& v) { set_grammar(o, v, "grammar"); }},
    {"json_schema",
     [](tandem_options& o, const std::string& v) {
       const GrammarSource source{"json_schema", ErrorCode::bad_file};
       set_grammar(o, v.empty() ? "" : json_schema_to_gbnf(v, source), "json_schema");
     }},
    {"chat_template", [](tandem_options& o, const std::string& v) { o.chat_template = v; }},
};

template <class Settings>
auto find(const Settings& settings, std::string_view name) {
  const auto found =
      std::find_if(std::begin(settings), std::end(settings), [&](const auto& s) { return name == s.name; });
  return found == std::end(settings) ? nullptr : &*found;
}

// Says why a setting of the wanted kind was not found.
[[noreturn]] void not_found(const char* name) {
  const char* kind = find(kInts, name) != nullptr    ? "an integer"
                     : find(kReals, name) != nullptr ? "a real number"
                     : find(kTexts, name) != nullptr ? "a text"
                                                     : nullptr;
  if (kind == nullptr) throw_error(ErrorCode::usage, "there is no setting '{}'", printable(name));
  throw_error(ErrorCode::usage, "the setting {} is {}", name, kind);
}

// Changes a copy first, so that a refused value leaves the options as they were.
template <class Change>
tandem_status set(tandem_options* options, const char* name, const Change& change) {
  return guarded([&] {
    need(options, "options");
    need(name, "name");
    tandem_options changed = *options;
    change(changed);
    validate(changed.sampling);
    *options = std::move(changed);
  });
}

}  // namespace

const tandem_options& defaults() {
  static const tandem_options options;
  return options;
}

ConversationOptions conversation_options(const tandem_options& o) {
  ConversationOptions c;
  c.sampling = o.sampling;
  c.n_predict = o.generation.n_predict;
  c.context_shift = o.generation.context_shift;
  c.exact_shift = o.generation.exact_shift;
  c.think = o.think;
  c.stop = o.generation.stop;
  c.n_logprobs = o.generation.n_logprobs;
  return c;
}

}  // namespace tandem::capi

using namespace tandem;
using namespace tandem::capi;

tandem_options* tandem_options_new(void) {
  try {
    return new tandem_options;
  } catch (...) {
    fail(TANDEM_ERROR_OUT_OF_MEMORY, "out of memory");
    return nullptr;
  }
}

void tandem_options_free(tandem_options* options) {
  delete options;
}

tandem_status tandem_options_set_int(tandem_options* options, const char* name, int64_t value) {
  if (options != nullptr && name != nullptr && find(kReals, name) != nullptr) {
    return tandem_options_set_real(options, name, static_cast<double>(value));
  }
  return set(options, name, [&](tandem_options& o) {
    const IntSetting* setting = find(kInts, name);
    if (setting == nullptr) not_found(name);
    if (value < setting->min || value > setting->max) {
      throw_error(ErrorCode::usage, "{} is {}, needed {} to {}", name, value, setting->min, setting->max);
    }
    setting->set(o, value);
  });
}

tandem_status tandem_options_set_real(tandem_options* options, const char* name, double value) {
  return set(options, name, [&](tandem_options& o) {
    const RealSetting* setting = find(kReals, name);
    if (setting == nullptr) not_found(name);
    o.sampling.*setting->field = static_cast<float>(value);
  });
}

tandem_status tandem_options_set_text(tandem_options* options, const char* name, const char* value) {
  return set(options, name, [&](tandem_options& o) {
    need(value, "value");
    const TextSetting* setting = find(kTexts, name);
    if (setting == nullptr) not_found(name);
    try {
      setting->set(o, value);
    } catch (const Error& e) {
      const bool named = std::string_view(e.message()).starts_with(name);  // a grammar's errors are
      if (named) throw;
      throw_error(e.code(), "{}: {}", name, e.message());
    }
  });
}

tandem_status tandem_options_add_stop(tandem_options* options, const char* text) {
  return guarded([&] {
    need(options, "options");
    if (text == nullptr) return options->generation.stop.clear();
    if (*text == '\0') throw_error(ErrorCode::usage, "a stop text is empty");
    options->generation.stop.emplace_back(text);
  });
}

tandem_status tandem_options_add_bias(tandem_options* options, int32_t id, float bias) {
  return set(options, "logit_bias", [&](tandem_options& o) { o.sampling.logit_bias.push_back({id, bias}); });
}
