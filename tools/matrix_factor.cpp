#include "tools/matrix_factor.h"

#include <algorithm>

namespace tandem::tools {

std::string factor_name(std::string_view tensor) {
  constexpr std::string_view kSuffix = ".weight", kLayer = "blk.";
  constexpr std::string_view kMatrices[] = {
      "attn_q",         "attn_k",       "attn_v",         "attn_output", "attn_qkv",  "attn_gate", "ffn_gate",
      "ffn_up",         "ffn_down",     "ffn_gate_exps",  "ffn_up_exps", "ffn_down_exps",
      "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ssm_in",      "ssm_out",   "ssm_alpha", "ssm_beta",
      "nextn.eh_proj",  "nextn.shared_head_head"};
  if (!tensor.ends_with(kSuffix)) return {};
  const std::string_view base = tensor.substr(0, tensor.size() - kSuffix.size());
  const size_t digits = base.starts_with(kLayer) ? base.find('.', kLayer.size()) : std::string_view::npos;
  const bool is_of_layer = digits != std::string_view::npos && std::ranges::find(kMatrices, base.substr(digits + 1)) != std::end(kMatrices);
  return is_of_layer || base == "output" ? std::string(base) + ".scale" : std::string();
}

}  // namespace tandem::tools
