#include "graph/ops.h"

namespace tandem {

std::string_view op_name(const Op& op) {
  return std::visit([](const auto& alternative) { return alternative.kName; }, op);
}

InputList inputs_of(const Op& op) {
  return InputList(op);
}

}  // namespace tandem
