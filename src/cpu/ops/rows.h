// Shared by the row-wise ops: divides rows among workers, and reads small weights as floats.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/compiled_op.h"
#include "gguf/quants.h"

namespace tandem::cpu {

// Calls fn(row) for every row, in ranges of about 16 thousand elements (a few microseconds of work): the
// first free worker does a step of one token alone, larger steps are shared. Ends with a barrier.
template <class Fn>
void for_each_row(Worker& worker, int64_t n_rows, int64_t elements_per_row, Fn&& fn) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements_per_row));
  worker.for_each((n_rows + grain - 1) / grain, [&](int64_t range) {
    const int64_t end = std::min(n_rows, (range + 1) * grain);
    for (int64_t row = range * grain; row < end; ++row) fn(row);
  });
}

// A small weight as floats, read from the mapped file when the op is compiled; empty when absent.
inline std::vector<float> weight_floats(const CompileContext& context, TensorId id) {
  if (id == kNoTensor) return {};
  const Tensor& tensor = context.tensor(id);
  TANDEM_CHECK(tensor.weight != nullptr && tensor.weight->data != nullptr);
  std::vector<float> floats(static_cast<size_t>(tensor.n_rows * tensor.n_cols));
  dequantize_row(tensor.dtype, tensor.weight->data, floats.data(), static_cast<int64_t>(floats.size()));
  return floats;
}

// A vector of the model as floats: the device's own if it is F32, else a copy. Null when absent.
class VectorWeight {
 public:
  VectorWeight(const CompileContext& context, TensorId id) {
    if (id == kNoTensor) return;
    if (context.tensor(id).dtype != DType::F32) copy_ = weight_floats(context, id);
    data_ = copy_.empty() ? context.address<const float>(id) : copy_.data();
  }
  VectorWeight(VectorWeight&&) = default;  // a moved vector keeps its address

  const float* data() const { return data_; }  // null when absent

 private:
  std::vector<float> copy_;
  const float* data_ = nullptr;
};

}  // namespace tandem::cpu
