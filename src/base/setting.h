// The settings of the library that a message may speak of: an option that contradicts another one, or one that
// would help. The library calls a setting by the name of its field in the options ("n_gpu_layers"); a program
// on top of it has other names for them, such as flags, and writes them in their place.
//
// In the text of an Error or of a log line a setting stands as a mark, made by setting_text().
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
  rope,  // all that rotates positions, but for YaRN
  yarn,
  // The context.
  n_ctx,
  k_dtype,
  v_dtype,
  n_sequences,
  context_shift,
  // What runs on GPUs.
  n_gpu_layers,
  kv_on_host,
  kv_prefetched,
  kv_split,
  n_kv_layers_gpu,
  tensor_overrides,
  tensor_split,
  main_gpu,
  stream,
  gpu_weights_percent,
  cpu_offload_gib,
  gpu_rows,
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

// A setting as a message names it, with the value that it speaks of; "": with none.
struct SettingValue {
  Setting setting = Setting::mmap;
  std::string value = {};
  bool operator==(const SettingValue&) const = default;
};

// Stands for the setting in a message.
std::string setting_text(Setting setting, std::string_view value = {});
std::string setting_text(Setting setting, int64_t value);

// How a program writes a setting. The library: "n_gpu_layers", "n_gpu_layers=17".
using SettingWriter = std::string (*)(const SettingValue& setting);
std::string library_setting_text(const SettingValue& setting);

// A message with its settings written out.
std::string write_settings(std::string_view message, SettingWriter writer);
// The settings that a message names, in its order.
std::vector<SettingValue> settings_in(std::string_view message);

}  // namespace tandem
