#include "base/setting.h"

#include <iterator>
#include <optional>

#include "base/error.h"

namespace tandem {
namespace {

// In the order of the enum.
constexpr std::string_view kNames[] = {
    "mmap",
    "mlock",
    "metadata_overrides",
    "rope",
    "yarn",
    "self_extend",
    "self_extend_width",
    "n_ctx",
    "k_dtype",
    "v_dtype",
    "kv_type_layers",
    "kv_rotate",
    "sparse_kv",
    "kv_memory",
    "kv_spill",
    "n_sequences",
    "n_deferred",
    "context_shift",
    "devices",
    "n_gpu_layers",
    "kv_on_host",
    "kv_prefetched",
    "kv_split",
    "n_kv_layers_gpu",
    "expert_cache",
    "tensor_overrides",
    "split_mode",
    "tensor_split",
    "main_gpu",
    "stream",
    "gpu_weights_percent",
    "cpu_offload_gib",
    "gpu_rows",
    "pin",
    "disk",
    "max_vram",
    "max_ram",
    "vram_utilization",
    "temp",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "mirostat_lr",
    "mirostat_ent",
    "seed",
    "logit_bias",
};
static_assert(std::size(kNames) == kSettings);

// A mark is kOpen, the name, '=', the value, kClose: two control characters that no readable text has.
constexpr char kOpen = '\x1a', kClose = '\x1c';

std::optional<SettingValue> parse_mark(std::string_view mark) {
  const size_t equals = mark.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  for (int i = 0; i < kSettings; ++i) {
    if (kNames[i] != mark.substr(0, equals)) continue;
    return SettingValue{static_cast<Setting>(i), std::string(mark.substr(equals + 1))};
  }
  return std::nullopt;
}

// Calls text(part) and setting(value) for the parts of a message, in order.
template <class Text, class Found>
void walk(std::string_view message, const Text& text, const Found& setting) {
  for (size_t end; (end = message.find(kClose)) != std::string_view::npos; message.remove_prefix(end + 1)) {
    const size_t begin = message.substr(0, end).rfind(kOpen);
    const auto value = begin == std::string_view::npos
                           ? std::nullopt
                           : parse_mark(message.substr(begin + 1, end - begin - 1));
    text(message.substr(0, value ? begin : end + 1));
    if (value) setting(*value);
  }
  text(message);
}

}  // namespace

std::string_view setting_name(Setting setting) {
  return kNames[static_cast<size_t>(setting)];
}

std::string setting_text(Setting setting, std::string_view value) {
  std::string mark(1, kOpen);
  mark += setting_name(setting);
  mark += '=';
  mark += value;
  return mark += kClose;
}

std::string setting_text(Setting setting, int64_t value) {
  return setting_text(setting, std::to_string(value));
}

void throw_contradiction(const SettingValue& a, const SettingValue& b, const char* why) {
  throw_error(ErrorCode::usage, "{} and {} contradict each other: {}", setting_text(a.setting, a.value),
              setting_text(b.setting, b.value), why);
}

std::string library_setting_text(const SettingValue& s) {
  const std::string name(setting_name(s.setting));
  return s.value.empty() ? name : name + "=" + s.value;
}

std::string write_settings(std::string_view message, SettingWriter writer) {
  std::string out;
  walk(
      message, [&](std::string_view text) { out += text; },
      [&](const SettingValue& value) { out += writer(value); });
  return out;
}

std::vector<SettingValue> settings_in(std::string_view message) {
  std::vector<SettingValue> list;
  walk(
      message, [](std::string_view) {}, [&](const SettingValue& value) { list.push_back(value); });
  return list;
}

}  // namespace tandem
