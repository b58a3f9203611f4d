// linear: one or more products that read the same input (q, k and v), computed together. The input is encoded
// once; the strips of all weights form one list of items, so small matrices fill the idle time behind large
// ones and the op ends with a single barrier. With many tokens on many threads an item has a part of them. On a
// machine of several memory nodes, each node's workers begin with the rows that its memory has.
#include <array>

#include "base/error.h"
#include "cpu/compiled_op.h"
#include "cpu/ops/linear_group.h"

namespace tandem::cpu {
namespace {

struct Product {
  LinearCall call;  // n and x are the step's
  const Weight* weight;
  Extent extent;
  int64_t fixed_rows;
};

class CompiledLinear : public CompiledOp {
 public:
  CompiledLinear(const CompileContext& context, const float* x, EncodedInput input,
                 std::vector<Product> products)
      : kernels_(context.kernels.linear),
        nodes_(context.nodes),
        x_(x),
        input_(std::move(input)),
        products_(std::move(products)) {
    TANDEM_CHECK(products_.size() <= kMaxProducts);
  }

  void observe(const ProductObserver& observer, const RunContext& context) const override {
    const int64_t n = row_count(products_[0].extent, products_[0].fixed_rows, context.shape);
    for (const Product& p : products_) observer({*p.weight, 0, x_, nullptr, n});
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n = row_count(products_[0].extent, products_[0].fixed_rows, context.shape);
    if (n == 0) return;
    const std::byte* x = input_.encode(worker, n, context.shared, context.scratch);
    std::byte* scratch = context.scratch + input_.private_bytes();
    std::array<ProductItems, kMaxProducts> items;
    int64_t n_items = 0;
    for (size_t i = 0; i < products_.size(); ++i) {
      const LinearCall& call = products_[i].call;
      items[i] = divide_product(kernels_, call.dtype, n, call.m, call.k, worker.count());
      n_items += items[i].count();
    }
    const auto count = [&](size_t i) { return items[i].count(); };
    worker.for_each(n_items, [&](int64_t number) {
      const ListItem item = item_by_node(nodes_, products_.size(), count, number);
      LinearCall call = products_[item.list].call;
      call.n = n;
      call.x = input_.at(x, call.dtype, n);
      const auto [row0, row1] = items[item.list].select(item.index, call);
      kernels_.multiply(call, row0, row1, scratch);
    });
  }

 private:
  static constexpr size_t kMaxProducts = 16;  // with one input; no family has so many

  const LinearKernels& kernels_;
  const NodeShares nodes_;
  const float* x_;  // [n, k]
  EncodedInput input_;
  std::vector<Product> products_;
};

}  // namespace

CompiledOpPtr compile_linear(const CompileContext& context, std::span<const int32_t> nodes) {
  return compile_linear(context, nodes, std::nullopt);
}

CompiledOpPtr compile_linear(const CompileContext& context, std::span<const int32_t> nodes,
                             std::optional<NormRows> norm) {
  const LinearKernels& kernels = context.kernels.linear;
  const TensorId x_id = std::get<LinearOp>(context.node(nodes.front()).op).x;
  const Tensor& x = context.tensor(x_id);
  std::vector<Product> products;
  std::vector<DType> dtypes;
  size_t multiply_bytes = 0;
  for (int32_t index : nodes) {
    const Node& node = context.node(index);
    const auto& op = std::get<LinearOp>(node.op);
    TANDEM_CHECK(op.x == x_id);
    const Tensor& w = context.tensor(op.weight);
    Product p{{}, w.weight, x.extent, x.n_rows};
    p.call.dtype = w.dtype;
    p.call.w = context.address<std::byte>(op.weight);
    p.call.m = w.n_rows;
    p.call.k = w.n_cols;
    p.call.y = context.address(node.output);
    p.call.ldy = w.n_rows;
    p.call.bias = context.address(op.bias);
    p.call.residual = context.address(op.residual);
    p.call.ld_residual = w.n_rows;
    TANDEM_CHECK(w.n_cols == x.n_cols);
    products.push_back(p);
    dtypes.push_back(w.dtype);
    multiply_bytes = std::max(multiply_bytes, max_scratch_bytes(kernels, w.dtype, x.n_rows, w.n_cols));
  }
  EncodedInput input(kernels, context.address(x_id), x.n_cols, x.n_rows, dtypes, std::move(norm));
  const size_t shared_bytes = input.shared_bytes(), scratch_bytes = input.private_bytes() + multiply_bytes;
  auto compiled =
      std::make_unique<CompiledLinear>(context, context.address(x_id), std::move(input), std::move(products));
  compiled->shared_bytes = shared_bytes;
  compiled->scratch_bytes = scratch_bytes;
  return compiled;
}

}  // namespace tandem::cpu
