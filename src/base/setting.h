// The settings that messages of the library name: options that contradict each other, or that would help.
// The library knows a setting by the name of its field ("n_gpu_layers"). A program has its own names for
// settings, such as flags, and replaces the library's when it prints a message.
//
// The text of an Error or of a log line contains settings as marks, made by setting_text().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

enum class Setting : uint8_t {
  // The model file.
  mmap,
  mlock,
  metadata_overrides,
  rope,  // all RoPE options except YaRN's
  yarn,
  self_extend,
  self_extend_width,
  // The context.
  n_ctx,
  k_dtype,
  v_dtype,
  kv_type_layers,
  kv_rotate,
  sparse_kv,
  kv_memory,
  kv_spill,
  n_sequences,
  n_deferred,
  context_shift,
  // Placement.
  devices,
  n_gpu_layers,
  kv_on_host,
  kv_prefetched,
  kv_split,
  n_kv_layers_gpu,
  expert_cache,
  tensor_overrides,
  split_mode,
  tensor_split,
  main_gpu,
  stream,
  gpu_weights_percent,
  cpu_offload_gib,
  gpu_rows,
  pin,
  disk,
  max_vram,
  max_ram,
  vram_utilization,
  // Sampling.
  temp,
  dynatemp_range,
  dynatemp_exponent,
  top_p,
  min_p,
  typical_p,
  top_n_sigma,
  xtc_probability,
  xtc_threshold,
  repeat_last_n,
  repeat_penalty,
  presence_penalty,
  frequency_penalty,
  dry_multiplier,
  dry_base,
  dry_allowed_length,
  dry_penalty_last_n,
  mirostat,
  mirostat_lr,
  mirostat_ent,
  seed,
  logit_bias,
};
inline constexpr int kSettings = static_cast<int>(Setting::logit_bias) + 1;

// "n_gpu_layers": the field of the options.
std::string_view setting_name(Setting setting);

// A setting in a message, with a value if there is one.
struct SettingValue {
  Setting setting = Setting::mmap;
  std::string value = {};
  bool operator==(const SettingValue&) const = default;
};

// The mark of a setting, for use in a message.
std::string setting_text(Setting setting, std::string_view value = {});
std::string setting_text(Setting setting, int64_t value);

// Throws Error(usage): "A and B contradict each other: WHY".
[[noreturn]] void throw_contradiction(const SettingValue& a, const SettingValue& b, const char* why);

// Prints a setting. The library's: "n_gpu_layers", "n_gpu_layers=17".
using SettingWriter = std::string (*)(const SettingValue& setting);
std::string library_setting_text(const SettingValue& setting);

// Replaces the marks in a message.
std::string write_settings(std::string_view message, SettingWriter writer);
// The settings in a message, in order.
std::vector<SettingValue> settings_in(std::string_view message);

}  // namespace tandem
