// glu: act(x Wgate^T) * (x Wup^T). A worker takes a strip of rows, computes both products of the strip into
// its own scratch, and combines them while they are warm in cache: of size n x m, only the result is stored.
#include <array>

#include "cpu/compiled_op.h"
#include "cpu/ops/linear_group.h"

namespace tandem::cpu {
namespace {

// Maximum rows of a strip: with 512 tokens its two results take 256 KB of the worker's L2.
constexpr int64_t kMaxStripRows = 64;

class CompiledGlu : public CompiledOp {
 public:
  CompiledGlu(const Kernels& kernels, Activation activation, EncodedInput input, LinearCall gate,
              LinearCall up, const Tensor& in, float* y, size_t multiply_bytes)
      : kernels_(kernels),
        activation_(activation),
        input_(std::move(input)),
        gate_(gate),
        up_(up),
        extent_(in.extent),
        fixed_rows_(in.n_rows),
        y_(y),
        multiply_bytes_(multiply_bytes) {}

  void observe(const ProductObserver& observer, const RunContext& context) const override {
    const int64_t n = row_count(extent_, fixed_rows_, context.shape);
    for (const Weight* weight : weights) observer({*weight, 0, x, nullptr, n});
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n = row_count(extent_, fixed_rows_, context.shape);
    if (n == 0) return;
    const std::byte* encoded = input_.encode(worker, n, context.shared, context.scratch);
    std::byte* scratch = context.scratch + input_.private_bytes();
    float* gate = reinterpret_cast<float*>(scratch + multiply_bytes_);
    float* up = gate + n * kMaxStripRows;
    const int64_t m = gate_.m;
    const ProductItems items = divide(n, worker.count());
    worker.for_each(items.count(), [&](int64_t item) {
      LinearCall part;
      const auto [row0, row1] = items.select(item, part);
      const int64_t rows = row1 - row0;
      multiply_strip(gate_, encoded, n, part, row0, rows, gate, scratch);
      multiply_strip(up_, encoded, n, part, row0, rows, up, scratch);
      for (int64_t t = part.token0; t < part.token1; ++t) {
        kernels_.rows.glu(activation_, gate + t * kMaxStripRows, up + t * kMaxStripRows, y_ + t * m + row0,
                          rows);
      }
    });
  }

  const float* x = nullptr;                   // [n, k], for the observer
  std::array<const Weight*, 2> weights = {};  // gate and up

 private:
  // Strips that both weights' kernels accept; granularities are powers of two.
  ProductItems divide(int64_t n, int n_workers) const {
    const LinearKernels& k = kernels_.linear;
    ProductItems a = divide_product(k, gate_.dtype, n, gate_.m, gate_.k, n_workers);
    const ProductItems b = divide_product(k, up_.dtype, n, up_.m, up_.k, n_workers);
    const int64_t step = std::max(k.row_granularity(gate_.dtype, n, gate_.m, gate_.k),
                                  k.row_granularity(up_.dtype, n, up_.m, up_.k));
    TANDEM_CHECK(step <= kMaxStripRows);
    a.rows = std::min(std::max(a.rows, b.rows), kMaxStripRows) / step * step;
    a.n_rows = (gate_.m + a.rows - 1) / a.rows;
    // Parts of the tokens that both accept too: those of the same length.
    if (a.tokens != b.tokens) a.tokens = n, a.n_tokens = 1;
    return a;
  }

  // Computes the strip as a product of its own, for the tokens of `part`: y is [n, kMaxStripRows].
  void multiply_strip(const LinearCall& whole, const std::byte* encoded, int64_t n, const LinearCall& part,
                      int64_t row0, int64_t rows, float* y, std::byte* scratch) const {
    LinearCall call = whole;
    call.token0 = part.token0;
    call.token1 = part.token1;
    call.w += row_bytes(call.dtype, call.k) * static_cast<size_t>(row0);
    if (call.bias) call.bias += row0;
    call.n = n;
    call.m = rows;
    call.x = input_.at(encoded, call.dtype, n);
    call.y = y;
    call.ldy = kMaxStripRows;
    kernels_.linear.multiply(call, 0, rows, scratch);
  }

  const Kernels& kernels_;
  Activation activation_;
  EncodedInput input_;
  LinearCall gate_, up_;  // of the whole weights; n, x and y are the strip's
  Extent extent_;
  int64_t fixed_rows_;
  float* y_;  // [n, m]
  size_t multiply_bytes_;
};

LinearCall weight_call(const CompileContext& context, TensorId weight, TensorId bias) {
  const Tensor& w = context.tensor(weight);
  LinearCall call;
  call.dtype = w.dtype;
  call.w = context.address<std::byte>(weight);
  call.m = w.n_rows;
  call.k = w.n_cols;
  call.bias = context.address(bias);
  return call;
}

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const GluOp& op) {
  return compile_glu(context, node, op, std::nullopt);
}

CompiledOpPtr compile_glu(const CompileContext& context, const Node& node, const GluOp& op,
                          std::optional<NormRows> norm) {
  const Tensor& x = context.tensor(op.x);
  const LinearCall gate = weight_call(context, op.gate, op.gate_bias);
  const LinearCall up = weight_call(context, op.up, op.up_bias);
  TANDEM_CHECK(gate.m == up.m && gate.k == x.n_cols && up.k == x.n_cols);
  const LinearKernels& kernels = context.kernels.linear;
  EncodedInput input(kernels, context.address(op.x), x.n_cols, x.n_rows, {gate.dtype, up.dtype},
                     std::move(norm));
  const size_t multiply_bytes = std::max(max_scratch_bytes(kernels, gate.dtype, x.n_rows, gate.k),
                                         max_scratch_bytes(kernels, up.dtype, x.n_rows, up.k));
  const size_t strip_bytes = 2 * sizeof(float) * static_cast<size_t>(x.n_rows * kMaxStripRows);
  const size_t shared_bytes = input.shared_bytes();
  const size_t scratch_bytes = input.private_bytes() + multiply_bytes + strip_bytes;
  auto compiled = std::make_unique<CompiledGlu>(context.kernels, op.activation, std::move(input), gate, up, x,
                                                context.address(node.output), multiply_bytes);
  compiled->x = context.address(op.x);
  compiled->weights = {context.tensor(op.gate).weight, context.tensor(op.up).weight};
  compiled->shared_bytes = shared_bytes;
  compiled->scratch_bytes = scratch_bytes;
  return compiled;
}

}  // namespace tandem::cpu
