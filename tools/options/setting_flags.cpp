#include "tools/options/setting_flags.h"

namespace tandem::tools {

std::string_view setting_flag(Setting setting) {
  switch (setting) {
    case Setting::mmap: return "--mmap";
    case Setting::mlock: return "--mlock";
    case Setting::metadata_overrides: return "--override-kv";
    case Setting::rope: return "--rope-*";
    case Setting::yarn: return "--yarn-*";
    case Setting::self_extend: return "--grp-attn-n";
    case Setting::self_extend_width: return "--grp-attn-w";
    case Setting::n_ctx: return "-c";
    case Setting::k_dtype: return "-ctk";
    case Setting::v_dtype: return "-ctv";
    case Setting::kv_type_layers: return "--kv-type-layers";
    case Setting::kv_rotate: return "--kv-rotate";
    case Setting::sparse_kv: return "--sparse-kv";
    case Setting::kv_memory: return "--kv-memory";
    case Setting::kv_spill: return "--kv-spill";
    case Setting::n_sequences: return "-np";
    case Setting::n_deferred: return "--defer-experts";
    case Setting::context_shift: return "--context-shift";
    case Setting::devices: return "--device";
    case Setting::n_gpu_layers: return "-ngl";
    case Setting::kv_on_host: return "-nkvo";
    case Setting::kv_prefetched: return "--kv-offload prefetch";
    case Setting::kv_split: return "--kv-split";
    case Setting::n_kv_layers_gpu: return "--kv-layers-gpu";
    case Setting::tensor_overrides: return "-ot";
    case Setting::split_mode: return "-sm";
    case Setting::tensor_split: return "-ts";
    case Setting::main_gpu: return "-mg";
    case Setting::stream: return "--stream-weights";
    case Setting::gpu_weights_percent: return "--gpu-weights-percent";
    case Setting::cpu_offload_gib: return "--cpu-offload-gb";
    case Setting::expert_cache: return "--expert-cache";
    case Setting::gpu_rows: return "--gpu-rows";
    case Setting::pin: return "--pin-weights";
    case Setting::disk: return "--disk-tier";
    case Setting::max_vram: return "--max-vram";
    case Setting::max_ram: return "--max-ram";
    case Setting::vram_utilization: return "--gpu-memory-utilization";
    case Setting::temp: return "--temp";
    case Setting::dynatemp_range: return "--dynatemp-range";
    case Setting::dynatemp_exponent: return "--dynatemp-exp";
    case Setting::top_p: return "--top-p";
    case Setting::min_p: return "--min-p";
    case Setting::typical_p: return "--typical";
    case Setting::top_n_sigma: return "--top-nsigma";
    case Setting::xtc_probability: return "--xtc-probability";
    case Setting::xtc_threshold: return "--xtc-threshold";
    case Setting::repeat_last_n: return "--repeat-last-n";
    case Setting::repeat_penalty: return "--repeat-penalty";
    case Setting::presence_penalty: return "--presence-penalty";
    case Setting::frequency_penalty: return "--frequency-penalty";
    case Setting::dry_multiplier: return "--dry-multiplier";
    case Setting::dry_base: return "--dry-base";
    case Setting::dry_allowed_length: return "--dry-allowed-length";
    case Setting::dry_penalty_last_n: return "--dry-penalty-last-n";
    case Setting::mirostat: return "--mirostat";
    case Setting::mirostat_lr: return "--mirostat-lr";
    case Setting::mirostat_ent: return "--mirostat-ent";
    case Setting::seed: return "--seed";
    case Setting::logit_bias: return "--logit-bias";
  }
  return "";
}

std::string flag_text(const SettingValue& s) {
  if (s.setting == Setting::mmap && s.value == "off") return "--no-mmap";
  const std::string flag(setting_flag(s.setting));
  return s.value.empty() ? flag : flag + " " + s.value;
}

std::string message_of(const Error& error) {
  return write_settings(error.message(), flag_text);
}

}  // namespace tandem::tools
