#include "graph/ops.h"

namespace tandem {

std::string_view op_name(const Op& op) {
  return std::visit([](const auto& alternative) { return alternative.kName; }, op);
}

bool uses_cache(const Op& op) {
  return std::holds_alternative<KvWriteOp>(op) || std::holds_alternative<AttentionOp>(op) ||
         std::holds_alternative<LatentAttentionOp>(op) || std::holds_alternative<CausalConvOp>(op) ||
         std::holds_alternative<DeltaRuleOp>(op) || std::holds_alternative<SsmScanOp>(op);
}

InputList inputs_of(const Op& op) {
  return InputList(op);
}

}  // namespace tandem
