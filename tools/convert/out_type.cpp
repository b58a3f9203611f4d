#include "tools/convert/out_type.h"

#include <string_view>

#include "tools/matrix_factor.h"

namespace tandem::tools {
namespace {

// Weights of products, as opposed to norms, biases, routers and the like.
bool is_matrix(const TensorMapping& mapping) {
  const std::string_view name = mapping.name;
  return mapping.dims.size() > 1 && name.ends_with(".weight") && !name.ends_with("_norm.weight") &&
         name.find("ffn_gate_inp") == std::string_view::npos && name.find("ssm_conv1d") == std::string_view::npos &&
         name.find("shortconv.conv") == std::string_view::npos;
}

}  // namespace

bool stays_nvfp4(const TensorMapping& mapping) {
  return mapping.of_nvfp4() && !factor_name(mapping.name).empty() &&
         mapping.n_cols() % dtype_info(DType::NVFP4).block_elements == 0 && mapping.col_stride == 1 && mapping.col_order.empty();
}

bool is_repacked(const TensorMapping& mapping) {
  return mapping.scales != nullptr || mapping.dtype == DType::NVFP4;
}

OutType resolve_out_type(OutType type, const std::vector<TensorMapping>& mappings) {
  if (type != OutType::automatic) return type;
  int64_t n_bf16 = 0, n_other = 0;
  for (const TensorMapping& mapping : mappings) {
    if (mapping.sources.empty() || is_repacked(mapping) || mapping.dims.size() < 2) continue;
    const SourceDType dtype = mapping.sources[0]->dtype;
    const bool wide_range = dtype == SourceDType::BF16 || dtype == SourceDType::F8_E4M3 || mapping.of_nvfp4();  // with F32 scales
    (wide_range ? n_bf16 : n_other) += mapping.n_elements();
  }
  return n_bf16 > n_other ? OutType::BF16 : OutType::F16;
}

void choose_dtypes(std::vector<TensorMapping>& mappings, OutType type) {
  for (TensorMapping& mapping : mappings) {
    if (is_repacked(mapping)) continue;
    if (!is_matrix(mapping) || type == OutType::F32) {
      mapping.dtype = DType::F32;
    } else if (type == OutType::Q8_0) {  // F16 for rows that are not a whole number of blocks
      mapping.dtype =
          mapping.n_cols() % dtype_info(DType::Q8_0).block_elements == 0 ? DType::Q8_0 : DType::F16;
    } else {
      mapping.dtype = type == OutType::BF16 ? DType::BF16 : DType::F16;
    }
  }
}

}  // namespace tandem::tools
