// head_linear: a product for each head, with a matrix of its own.
//
// Up to eight tokens: one launch over all (token, head) pairs, each a pair of a token and an "expert" for the
// kernels of matvec.h. Floor: the bytes of W over the memory's bandwidth (128 matrices of 512 x 128 in F16: 17 MB,
// 6 us at 3 TB/s); a second token reads W again, from the L2 cache where it fits.
//
// More: the heads' columns are gathered, [head][token], and multiplied one head after the other as in linear;
// kMaxTokens at a time, which bounds the scratch. Floor: 2 n H m k operations; moving the columns takes 8 n H (k + m)
// bytes more.
#include "ggml-cuda/head_products.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxTokens = 256;

unsigned blocks_for(int64_t n) {
  return static_cast<unsigned>((n + kThreads - 1) / kThreads);
}

// Columns of (token, head) pairs, [n, H, columns]; with a stride, which is from head to head, [H, n, columns].
struct Pairs {
  int n_head, columns;
  int64_t stride;

  __device__ int64_t at(int64_t pair) const {
    return stride == 0 ? pair * columns : pair % n_head * stride + pair / n_head * columns;
  }
};

// x -> the columns to multiply.
__global__ void __launch_bounds__(kThreads)
    gather_heads(const float* x, float* to, HeadShape s, int n, Pairs gathered) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(n) * s.n_head * s.k) return;
  const int64_t pair = i / s.k, column = i % s.k;
  to[gathered.at(pair) + column] = x[pair * s.x_cols + column];
}

// The products and the last columns of x -> y.
__global__ void __launch_bounds__(kThreads)
    scatter_heads(const float* products, const float* x, float* y, HeadShape s, int n, Pairs made) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(n) * s.n_head * s.y_cols) return;
  const int column = static_cast<int>(i % s.y_cols);
  const int64_t pair = i / s.y_cols;
  y[i] = column < s.m ? products[made.at(pair) + column] : x[pair * s.x_cols + s.k + column - s.m];
}

// The route of moe_ffn that sends pair (token, head) to matrix `head`.
__global__ void __launch_bounds__(kThreads) route_heads(float* route, int n_head, int n_pairs) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= n_pairs) return;
  route[2 * i] = __int_as_float(i % n_head);
  route[2 * i + 1] = 1.0f;
}

HeadShape shape_of(const Weight& w, int64_t x_cols) {
  return {static_cast<int>(w.n_mats), static_cast<int>(w.n_cols), static_cast<int>(w.n_rows),
          static_cast<int>(x_cols), static_cast<int>(w.n_rows + x_cols - w.n_cols)};
}

// From head to head, in floats: whole 16 bytes.
int64_t stride_of(int64_t n, int64_t columns) {
  return (n * columns + 3) / 4 * 4;
}

bool keeps_columns(const HeadShape& shape) {
  return shape.x_cols > shape.k;
}

float* floats_at(const LaunchContext& context, size_t at) {
  return reinterpret_cast<float*>(context.scratch + at);
}

class CompiledHeadLinear final : public CompiledOp {
 public:
  CompiledHeadLinear(const CompileContext& context, const Node& node, const HeadLinearOp& op,
                     ScratchLayout scratch = {})
      : input_(context.tensor(op.x)),
        x_(context.address<const float>(op.x)),
        y_(context.address<float>(node.output)),
        products_(context, op.weight, input_.n_cols / context.tensor(op.weight).weight->n_mats, input_.n_rows,
                  scratch) {
    scratch_bytes = scratch.n_bytes();
  }

  void launch(const LaunchContext& context) const override {
    products_.launch(x_, y_, row_count(input_, context.shape), context);
  }

 private:
  const Tensor& input_;
  const float* x_;  // [n, H * x_cols]
  float* y_;        // [n, H * y_cols]
  HeadProducts products_;
};

}  // namespace

HeadProducts::HeadProducts(const CompileContext& context, TensorId weight, int64_t x_cols, int64_t max_tokens,
                           ScratchLayout& scratch)
    : w_(device_weight(context, weight)),
      shape_(shape_of(*context.tensor(weight).weight, x_cols)),
      max_n_(std::min(kMaxTokens, max_tokens)),
      max_few_(std::min<int64_t>(kMaxMatvecTokens, max_n_)),
      pair_encodings_(w_.k, max_few_ * shape_.n_head, {w_.dtype}, scratch),
      encodings_(w_.k, max_n_, {w_.dtype}, scratch),
      large_(context, w_.k, max_n_, {w_}, LargeProducts::Use::products, scratch) {
  const auto floats = [](int64_t n) { return sizeof(float) * static_cast<size_t>(n); };
  gathered_at_ = scratch.take(floats(stride_of(max_n_, shape_.k) * shape_.n_head));
  products_at_ = scratch.take(floats(stride_of(max_n_, shape_.m) * shape_.n_head));
  route_at_ = scratch.take(floats(2 * max_few_ * shape_.n_head));
}

void HeadProducts::launch(const float* x, float* y, int64_t n, const LaunchContext& context) const {
  for (int64_t first = 0; first < n; first += kMaxTokens) {
    const Part part{static_cast<int>(std::min(kMaxTokens, n - first)),
                    x + first * shape_.n_head * shape_.x_cols, y + first * shape_.n_head * shape_.y_cols};
    part.n > kMaxMatvecTokens ? launch_many(part, context) : launch_few(part, context);
  }
}

void HeadProducts::gather(const Part& part, float* to, int64_t stride, cudaStream_t stream) const {
  const int64_t count = static_cast<int64_t>(part.n) * shape_.n_head * shape_.k;
  gather_heads<<<blocks_for(count), kThreads, 0, stream>>>(part.x, to, shape_, part.n,
                                                           Pairs{shape_.n_head, shape_.k, stride});
  check_launch("gather_heads");
}
void HeadProducts::scatter(const Part& part, const float* products, int64_t stride,
                           cudaStream_t stream) const {
  const int64_t count = static_cast<int64_t>(part.n) * shape_.n_head * shape_.y_cols;
  scatter_heads<<<blocks_for(count), kThreads, 0, stream>>>(products, part.x, part.y, shape_, part.n,
                                                            Pairs{shape_.n_head, shape_.m, stride});
  check_launch("scatter_heads");
}

// Without columns that stay, the rows of x and y are those of the pairs already.
void HeadProducts::launch_few(const Part& part, const LaunchContext& context) const {
  const int n_pairs = part.n * shape_.n_head;
  float* route = floats_at(context, route_at_);
  route_heads<<<blocks_for(n_pairs), kThreads, 0, context.stream>>>(route, shape_.n_head, n_pairs);
  check_launch("route_heads");
  const float* x = part.x;
  if (keeps_columns(shape_)) {
    gather(part, floats_at(context, gathered_at_), 0, context.stream);
    x = floats_at(context, gathered_at_);
  }
  float* products = keeps_columns(shape_) ? floats_at(context, products_at_) : part.y;
  MatvecArgs args;
  args.input = pair_encodings_.encode(x, n_pairs, context.scratch, context.stream);
  args.route = route;
  args.n = n_pairs;
  args.mode = MatvecMode::experts;
  args.n_targets = 1;
  args.targets[0].w = w_;
  args.targets[0].y = products;
  launch_expert_matvec(args, large_.gpu(), context.stream);
  if (keeps_columns(shape_)) scatter(part, products, 0, context.stream);
}

void HeadProducts::launch_many(const Part& part, const LaunchContext& context) const {
  float* gathered = floats_at(context, gathered_at_);
  float* products = floats_at(context, products_at_);
  const int64_t k_stride = stride_of(part.n, shape_.k), m_stride = stride_of(part.n, shape_.m);
  gather(part, gathered, k_stride, context.stream);
  for (int head = 0; head < shape_.n_head; ++head) {
    MatvecTarget target;
    target.w = w_;
    target.w.planes = expert_planes(w_, head);
    target.y = products + head * m_stride;
    large_.multiply({&target, 1}, large_.prepare(encodings_, gathered + head * k_stride, part.n, context),
                    context);
  }
  scatter(part, products, m_stride, context.stream);
}

std::string why_not(const Graph& graph, const HeadLinearOp& op) {
  return why_not_weight(graph, op.weight);
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const HeadLinearOp& op) {
  return std::make_unique<CompiledHeadLinear>(context, node, op);
}

}  // namespace tandem::cuda
