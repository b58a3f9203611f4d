// top_k: the largest columns of each row. Reads n * c floats once; a list of the k largest so far takes few of them.
#include "graph/top_k.h"

#include <algorithm>
#include <array>
#include <bit>

#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledTopK final : public CompiledOp {
 public:
  CompiledTopK(const CompileContext& context, const Node& node, const TopKOp& op)
      : k_(op.k),
        x_shape_(context.tensor(op.x)),
        x_(context.address<const float>(op.x)),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_cols = x_shape_.n_cols;
    for_each_row(worker, row_count(x_shape_, context.shape), n_cols,
                 [&](int64_t row) { choose(x_ + row * n_cols, y_ + row * 2 * k_); });
  }

 private:
  void choose(const float* x, float* y) const {
    std::array<uint64_t, kMaxTopK> keys{};  // descending; at first nothing
    uint64_t* const end = keys.data() + k_;
    for (int64_t i = 0; i < x_shape_.n_cols; ++i) {
      const uint64_t key = top_key(std::bit_cast<uint32_t>(x[i]), static_cast<uint32_t>(i));
      if (key <= end[-1]) continue;
      uint64_t* const place = std::upper_bound(keys.data(), end, key, std::greater<>());
      std::copy_backward(place, end - 1, end);
      *place = key;
    }
    for (int64_t i = 0; i < k_; ++i) {
      y[i] = std::bit_cast<float>(column_of_key(keys[static_cast<size_t>(i)]));
      y[k_ + i] = std::bit_cast<float>(bits_of_key(keys[static_cast<size_t>(i)]));
    }
  }

  int64_t k_;
  const Tensor& x_shape_;
  const float* x_;  // [n, c]
  float* y_;        // [n, 2 * k]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const TopKOp& op) {
  return std::make_unique<CompiledTopK>(context, node, op);
}

}  // namespace tandem::cpu
