#include "ggml-cuda/products.cuh"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ggml-cuda/launch.cuh"
#include "ggml-cuda/matvec.cuh"
#include "ggml-cuda/ops/rows.cuh"
#include "ggml-cuda/quantize.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

// Rows of a weight as bf16 or f16: `to` [n_blocks * 32], from block `first` on, for matrix blockIdx.y. A thread takes word w of a block:
// columns 4w..4w+3 and 16+4w..16+4w+3, two 8-byte stores; four threads fill a block's 64 bytes. Bytes: the
// weight's once, 2 an element written: 2.6 an element of Q4_K.
template <DType T, DType To>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(DeviceWeight weight, uint32_t first, uint32_t n_blocks, uint16_t* to) {
  const Planes planes = expert_planes(weight, static_cast<int>(blockIdx.y));
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto at = static_cast<uint32_t>(thread / 4);
  const int w = static_cast<int>(thread % 4);
  if (at >= n_blocks) return;
  const uint32_t block = first + at;
  const CodeWords codes = load_codes<T>(planes, block, w);
  const BlockScales scales = load_scales<T>(planes, block);
  ushort4 values[2];
  const auto convert = [&](uint32_t word, int half) {
    return ushort4{
        narrowed<To>(element<T>(word, 0, scales, half)), narrowed<To>(element<T>(word, 1, scales, half)),
        narrowed<To>(element<T>(word, 2, scales, half)), narrowed<To>(element<T>(word, 3, scales, half))};
  };
  values[0] = convert(codes.first, 0);
  values[1] = convert(codes.second, 1);
  const uint64_t block_of_all = static_cast<uint64_t>(blockIdx.y) * n_blocks + at;
  uint16_t* row = to + block_of_all * kBlockColumns + 4 * w;
  *reinterpret_cast<ushort4*>(row) = values[0];
  *reinterpret_cast<ushort4*>(row + 16) = values[1];
}

// The same for the generic path, as floats: `to` [n_pieces * 32], from piece `first` on, a piece a thread.
template <class Block>
__global__ void __launch_bounds__(kThreads)
    floats_kernel(const Block* blocks, uint32_t first, uint32_t n_pieces, float* to) {
  constexpr uint32_t kPieces = Block::kElements / kBlockColumns;
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= n_pieces) return;
  const uint32_t piece = first + at;
  dequantize_32(blocks[piece / kPieces], static_cast<int>(piece % kPieces),
                to + static_cast<uint64_t>(at) * kBlockColumns);
}

template <class Block, DType To>
__global__ void __launch_bounds__(kThreads)
    narrow_blocks_kernel(const Block* blocks, uint32_t n_pieces, uint16_t* to) {
  constexpr uint32_t kPieces = Block::kElements / kBlockColumns;
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= n_pieces) return;
  float x[kBlockColumns];
  dequantize_32(blocks[at / kPieces], static_cast<int>(at % kPieces), x);
  for (int i = 0; i < kBlockColumns; ++i)
    to[static_cast<uint64_t>(at) * kBlockColumns + i] = narrowed<To>(x[i]);
}

template <DType To>
__global__ void __launch_bounds__(kThreads) narrow_plain_kernel(PlainValues x, int64_t n, uint16_t* to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) to[i] = narrowed<To>(x[i]);
}

// Bytes of an element of a panel; 0 for floats, which need none.
int64_t panel_element_bytes(DType dtype) {
  return has_planes(dtype) ? 2 : is_plain(dtype) ? 0 : 4;
}

int64_t panel_row_bytes(const DeviceWeight& w) {
  return panel_element_bytes(w.dtype) * w.k;
}

void dequantize_rows(const DeviceWeight& w, int64_t row0, int64_t n_rows, void* to, cudaStream_t stream) {
  const int64_t per_row = w.k / kBlockColumns;
  const auto first = static_cast<uint32_t>(row0 * per_row), count = static_cast<uint32_t>(n_rows * per_row);
  const auto grid = static_cast<unsigned>((int64_t{4} * count + kThreads - 1) / kThreads);
  for_format(w.dtype, [&]<DType T>() {
    const auto kernel = dequantize_kernel<T, DType::BF16>;
    kernel<<<grid, kThreads, 0, stream>>>(w, first, count, static_cast<uint16_t*>(to));
  });
  for_generic_block(w.dtype, [&]<class Block>() {
    const auto* blocks = reinterpret_cast<const Block*>(w.planes.low);
    floats_kernel<Block><<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(blocks, first, count,
                                                                                     static_cast<float*>(to));
  });
  check_launch("dequantize_kernel");
}

// y [n, m] = bias + residual, the start value of a product; either may be null, residual may be y.
__global__ void __launch_bounds__(kThreads)
    seed_kernel(const float* bias, const float* residual, float* y, int m, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  y[i] = (bias ? bias[i % m] : 0.0f) + (residual ? residual[i] : 0.0f);
}

__global__ void __launch_bounds__(kThreads)
    combine_kernel(Activation activation, const float* gate, const float* up, float* y, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) y[i] = gated(activation, gate[i], up[i]);
}

// The same as 16-bit floats, four at a time, and as floats where y is not null.
template <DType To>
__global__ void __launch_bounds__(kThreads)
    combine_narrow_kernel(Activation activation, const float* gate, const float* up, float* y,
                          ColumnOrder order, uint16_t* to, int64_t n) {
  const int64_t i = 4 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (i >= n) return;
  const float4 g = *reinterpret_cast<const float4*>(gate + i), u = *reinterpret_cast<const float4*>(up + i);
  const float4 v{gated(activation, g.x, u.x), gated(activation, g.y, u.y), gated(activation, g.z, u.z),
                 gated(activation, g.w, u.w)};
  if (y) *reinterpret_cast<float4*>(y + i) = v;
  const int at = static_cast<int>(i % 16);
  store_narrow<To>(order, {v.x, v.y, v.z, v.w}, to + (i - at), at);
}

unsigned blocks_for(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

// Chooses how many warps share a pair of an expert's rows, for some of them at a time.
int slice_bits_of(const MatvecArgs& args, int n_copies, int n_multiprocessors) {
  const DeviceWeight& w = args.targets[0].w;
  return matvec_slice_bits(n_pairs(args.mode, w.m) * n_copies, w.n_pieces, n_multiprocessors);
}

unsigned blocks_of_target(const MatvecArgs& args, int target) {
  return blocks_for(n_pairs(args.mode, args.targets[target].w.m), pairs_per_block(args.slice_bits));
}

}  // namespace

std::string why_not_weight(const Graph& graph, TensorId id) {
  const Weight& w = *graph.tensor(id).weight;
  if (dtype_support(w.dtype).multiply == KernelPath::none)
    return w.name + ": dtype " + std::string(dtype_name(w.dtype)) + " has no kernel";
  // Rows and columns are counted in ints, the pieces of a matrix in 32 bits.
  if (w.n_rows > INT32_MAX / 2 || w.n_cols > INT32_MAX / 4 ||
      w.n_rows * pieces_of_row(w.dtype, static_cast<int>(w.n_cols)) > UINT32_MAX) {
    return w.name + ": too large";
  }
  return "";
}

namespace {

template <DType To>
void narrow_weight_to(const DeviceWeight& w, int64_t n_mats, uint16_t* values, cudaStream_t stream) {
  const int64_t n = static_cast<int64_t>(w.m) * w.k, n_all = n * n_mats;
  if (is_plain(w.dtype)) {
    const auto kernel = narrow_plain_kernel<To>;
    kernel<<<blocks_for(n_all, kThreads), kThreads, 0, stream>>>(PlainValues{w.planes.low, w.dtype}, n_all,
                                                                 values);
  }
  for_format(w.dtype, [&]<DType T>() {
    const auto n_blocks = static_cast<uint32_t>(n / kBlockColumns);
    const dim3 grid(blocks_for(int64_t{4} * n_blocks, kThreads), static_cast<unsigned>(n_mats));
    const auto kernel = dequantize_kernel<T, To>;
    kernel<<<grid, kThreads, 0, stream>>>(w, 0, n_blocks, values);
  });
  for_generic_block(w.dtype, [&]<class Block>() {
    const auto n_pieces = static_cast<uint32_t>(n_all / kBlockColumns);
    const auto kernel = narrow_blocks_kernel<Block, To>;
    kernel<<<blocks_for(n_pieces, kThreads), kThreads, 0, stream>>>(
        reinterpret_cast<const Block*>(w.planes.low), n_pieces, values);
  });
  check_launch("narrow_weight");
}

}  // namespace

void narrow_weight(const DeviceWeight& w, int64_t n_mats, DType to, uint16_t* values, cudaStream_t stream) {
  to == DType::BF16 ? narrow_weight_to<DType::BF16>(w, n_mats, values, stream)
                    : narrow_weight_to<DType::F16>(w, n_mats, values, stream);
}

std::string why_not_bias(const Graph& graph, TensorId id) {
  if (id == kNoTensor || graph.tensor(id).dtype == DType::F32) return "";
  return graph.tensor(id).name + ": a bias of dtype " + std::string(dtype_name(graph.tensor(id).dtype));
}

namespace {

// Targets of one kind.
template <class Kernels>
void launch_matvec_of(MatvecArgs args, const Gpu& gpu, cudaStream_t stream) {
  int pairs = 0, pieces = 0;
  int64_t n_bytes = 0;
  for (int i = 0; i < args.n_targets; ++i) {
    const DeviceWeight& w = args.targets[i].w;
    if (i < n_task_targets(args)) pairs += n_pairs(args.mode, w.m);
    pieces = std::max(pieces, w.n_pieces);
    n_bytes += w.mat_bytes;
  }
  const int resident = matvec_resident(args.n, gpu.n_multiprocessors);
  args.slice_bits = matvec_grid(pairs, pieces, resident).slice_bits;
  number_tasks(args);
  const int turns = (args.n_blocks + resident - 1) / resident;
  const auto grid = static_cast<unsigned>((args.n_blocks + turns - 1) / turns);
  // As many tasks a block as leave half of the L2 cache free.
  if (gpu.l2_bytes > 0)
    args.n_prefetched = static_cast<int>(turns * (gpu.l2_bytes / 2) / std::max<int64_t>(n_bytes, 1));
  const auto kernel = args.n == 1   ? matvec_kernel<1, Kernels>
                      : args.n == 2 ? matvec_kernel<2, Kernels>
                      : args.n <= 4 ? matvec_kernel<4, Kernels>
                                    : matvec_kernel<8, Kernels>;
  launch_overlapping(kernel, grid, 32 * kMatvecWarps, 0, stream, args);
}

}  // namespace

// Every kind of kernels has a launch of its own.
void launch_matvec(const MatvecArgs& args, const Gpu& gpu, cudaStream_t stream) {
  for_each_kind(args,
                [&]<class Kernels>(const MatvecArgs& part) { launch_matvec_of<Kernels>(part, gpu, stream); });
}

void launch_expert_matvec(MatvecArgs args, const Gpu& gpu, cudaStream_t stream) {
  const bool down = args.mode == MatvecMode::experts_down;
  const int per_token = down ? 1 : args.n_used;
  args.slice_bits = down ? (args.n_used >= 4 ? 2 : args.n_used / 2)
                         : slice_bits_of(args, std::min(args.n, 8) * per_token, gpu.n_multiprocessors);
  const int tokens_at_once = 65535 / per_token;  // the grid's limit
  for (args.token0 = 0; args.token0 < args.n; args.token0 += tokens_at_once) {
    const int n = std::min(tokens_at_once, args.n - args.token0);
    const dim3 grid(blocks_of_target(args, 0), static_cast<unsigned>(n * per_token));
    with_kernels_of(args.targets[0].w.dtype, [&]<class Kernels>() {
      launch_overlapping(expert_matvec_kernel<Kernels>, grid, 32 * kMatvecWarps, 0, stream, args);
    });
  }
}

void combine_glu(Activation activation, const float* gate, const float* up, float* y, int64_t n,
                 cudaStream_t stream) {
  combine_kernel<<<blocks_for(n, kThreads), kThreads, 0, stream>>>(activation, gate, up, y, n);
  check_launch("combine_kernel");
}

void combine_glu(Activation activation, const float* gate, const float* up, float* y, const NarrowTo& to,
                 int64_t n, cudaStream_t stream) {
  const auto kernel =
      to.form.dtype == DType::F16 ? combine_narrow_kernel<DType::F16> : combine_narrow_kernel<DType::BF16>;
  kernel<<<blocks_for(n / 4, kThreads), kThreads, 0, stream>>>(
      activation, gate, up, to.and_floats ? y : nullptr, to.form.order, to.values, n);
  check_launch("combine_narrow_kernel");
}

InputEncodings::InputEncodings(int64_t k, int64_t max_n, const std::vector<DType>& dtypes,
                               ScratchLayout& scratch)
    : k_(k), max_n_(max_n) {
  for (DType dtype : dtypes) {
    if (has_planes(dtype)) wanted_[static_cast<int>(encoding_of(dtype))] = true;
  }
  for (int e = 0; e < kEncodings; ++e) {
    if (wanted_[e]) at_[e] = scratch.take(static_cast<size_t>(activation_bytes(max_n, k)));
  }
}

ProductInput InputEncodings::encode(const float* x, int64_t n, std::byte* scratch,
                                    cudaStream_t stream) const {
  ProductInput input;
  input.x = x;
  for (int e = 0; e < kEncodings; ++e) {
    if (!wanted_[e]) continue;
    input.encoded[e] = activations_at(scratch + at_[e], max_n_, k_);
    quantize_activations(static_cast<Encoding>(e), x, n, k_, input.encoded[e], stream);
  }
  return input;
}

ProductInput InputEncodings::encode(const float* x, int64_t n, const HandedBytes& handed,
                                    const LaunchContext& context) const {
  if (!handed.is_handed(n)) return encode(x, n, context.scratch, context.stream);
  ProductInput input;
  input.x = x;
  for (int e = 0; e < kEncodings; ++e) {
    if (wanted_[e]) input.encoded[e] = handed.at(context, e);
  }
  return input;
}

BytesReader InputEncodings::reader(TensorId x) const {
  return {x, {-1, k_, {wanted_[0], wanted_[1]}}};
}

LargeProducts::LargeProducts(const CompileContext& context, int64_t k, int64_t max_n,
                             const std::vector<DeviceWeight>& weights, Use use, ScratchLayout& scratch)
    : gpu_(context.gpu), k_(k), max_mma_tokens_(max_int8_tokens(context.gpu.compute_capability)) {
  if (max_n <= kMaxMatvecTokens) return;
  choose_kernels(max_n, weights);
  const bool all_by_mma = max_n <= max_mma_tokens_;
  size_t partial_bytes = 0, other_bytes = 0;
  for (const DeviceWeight& w : weights) {
    const bool quantized = has_planes(w.dtype);
    any_quantized_ |= quantized;
    reads_floats_ |= !quantized && w.dtype != DType::F16 && w.dtype != DType::BF16;
    f16_ |= by_cublas_ && w.dtype == DType::F16;
    bf16_ |= by_cublas_ && w.dtype == DType::BF16;
    if (quantized) {
      partial_bytes =
          std::max(partial_bytes, matmul_scratch_bytes(w, std::min(max_n, max_mma_tokens_), gpu_));
      if (all_by_mma) continue;
      bf16_panels_ = true;
    }
    if (by_wgmma_ && (use == Use::products || is_one_launch(weights[0], weights[1]))) continue;
    if (by_cublas_)
      panel_bytes_ = std::max(panel_bytes_, static_cast<size_t>(rows_at_once(w) * panel_row_bytes(w)));
    other_bytes = std::max(other_bytes, sizeof(float) * static_cast<size_t>(max_n * w.m));
  }
  const auto narrow_bytes = static_cast<size_t>(2 * max_n * k);
  partial_at_ = scratch.take(partial_bytes);
  if (f16_) f16_at_ = scratch.take(narrow_bytes);
  if (bf16_ || bf16_panels_) bf16_at_ = scratch.take(narrow_bytes);
  panel_at_ = scratch.take(panel_bytes_);
  if (use == Use::gate_and_up) other_at_ = scratch.take(other_bytes);
  if (!by_cublas_) return;
  workspace_at_ = scratch.take(kCublasWorkspaceBytes);
  if (context.cublas) cublas_ = context.cublas->get();
}

void LargeProducts::choose_kernels(int64_t max_n, const std::vector<DeviceWeight>& weights) {
  by_wgmma_ = has_wgmma(gpu_) && std::all_of(weights.begin(), weights.end(),
                                             [&](const DeviceWeight& w) { return wgmma_takes(w, max_n); });
  if (by_wgmma_) return;
  const auto needs_cublas = [&](const DeviceWeight& w) { return !by_mma(w.dtype, max_n); };
  if (std::none_of(weights.begin(), weights.end(), needs_cublas)) return;
  by_cublas_ = has_cublas();
  if (!by_cublas_) max_mma_tokens_ = INT64_MAX;
}

void LargeProducts::ask_for_narrow(HandedBytes& handed, int64_t max_n) const {
  const bool bf16 = bf16_ || bf16_panels_;
  if (!(by_cublas_ || by_wgmma_) || reads_floats_ || f16_ == bf16) return;
  handed.narrow = NarrowForm{f16_ ? DType::F16 : DType::BF16,
                             by_wgmma_ ? ColumnOrder::fragments : ColumnOrder::ascending};
  handed.few = any_quantized_ ? std::max<int64_t>(kMaxMatvecTokens, max_mma_tokens_) : kMaxMatvecTokens;
  handed.max_n = max_n;
}

LargeProducts::Input LargeProducts::prepare(const InputEncodings& encodings, const float* x, int64_t n,
                                            const LaunchContext& context, const HandedBytes& handed) const {
  if (const uint16_t* narrow = handed.narrow_at(context, n)) return {n, {}, narrow, narrow};
  Input input{n, {}, context.scratch + f16_at_, context.scratch + bf16_at_};
  input.encoded.x = x;
  const bool mma = n <= max_mma_tokens_;
  if (any_quantized_ && mma) input.encoded = encodings.encode(x, n, context.scratch, context.stream);
  if (f16_) narrow_activations({DType::F16}, x, n * k_, context.scratch + f16_at_, context.stream);
  if (bf16_ || (bf16_panels_ && !mma)) {
    const ColumnOrder order = by_wgmma_ ? ColumnOrder::fragments : ColumnOrder::ascending;
    narrow_activations({DType::BF16, order}, x, n * k_, context.scratch + bf16_at_, context.stream);
  }
  return input;
}

void LargeProducts::multiply(std::span<const MatvecTarget> targets, const Input& input,
                             const LaunchContext& context) const {
  if (by_wgmma_ && input.n > max_mma_tokens_) return multiply_by_wgmma(targets, input, context);
  for (const MatvecTarget& target : targets) {
    if (by_mma(target.w.dtype, input.n)) {
      multiply_by_mma(MatmulStore::result, Activation::silu, target, input, context);
    } else {
      by_cublas_ ? multiply_by_cublas(target, input, context) : multiply_in_steps(target, input, context);
    }
  }
}

namespace {

WgmmaTarget wgmma_target(const MatvecTarget& t) {
  return {t.w, t.bias, t.residual, t.y, 0};
}
WgmmaArgs wgmma_args(const LargeProducts::Input& input) {
  WgmmaArgs args;
  args.x = static_cast<const uint16_t*>(input.bf16);
  args.n = static_cast<int>(input.n);
  return args;
}

}  // namespace

// Weights of one dtype that follow each other are one launch.
void LargeProducts::multiply_by_wgmma(std::span<const MatvecTarget> targets, const Input& input,
                                      const LaunchContext& context) const {
  for (size_t i = 0; i < targets.size();) {
    WgmmaArgs args = wgmma_args(input);
    const DType dtype = targets[i].w.dtype;
    for (; i < targets.size() && args.n_targets < kWgmmaTargets && targets[i].w.dtype == dtype; ++i)
      args.targets[args.n_targets++] = wgmma_target(targets[i]);
    launch_wgmma(args, gpu_, context.stream);
  }
}

bool LargeProducts::is_one_launch(const DeviceWeight& gate, const DeviceWeight& up) {
  return gate.dtype == up.dtype && gate.m % 8 == 0;
}

void LargeProducts::multiply_gated(Activation activation, const MatvecTarget& gate, const MatvecTarget& up,
                                   const Input& input, const LaunchContext& context,
                                   const NarrowTo& to) const {
  const bool up_by_mma = by_mma(up.w.dtype, input.n);
  if (by_wgmma_ && !up_by_mma && is_one_launch(gate.w, up.w)) {
    WgmmaArgs args = wgmma_args(input);
    args.targets[args.n_targets++] = wgmma_target(gate);
    args.targets[args.n_targets++] = wgmma_target(up);
    args.gated = true;
    args.activation = activation;
    args.made = to.values;
    args.made_form = to.form;
    if (to.values && !to.and_floats) args.targets[0].y = nullptr;
    return launch_wgmma(args, gpu_, context.stream);
  }
  multiply({&gate, 1}, input, context);
  MatvecTarget other = up;
  other.y = gate.y;
  if (up_by_mma) return multiply_by_mma(MatmulStore::with_gate, activation, other, input, context);
  other.y = reinterpret_cast<float*>(context.scratch + other_at_);
  multiply({&other, 1}, input, context);
  const int64_t n = input.n * up.w.m;
  to.values ? combine_glu(activation, gate.y, other.y, gate.y, to, n, context.stream)
            : combine_glu(activation, gate.y, other.y, gate.y, n, context.stream);
}

#ifdef TANDEM_HAVE_WGMMA
// To be measured: the environment's TANDEM_CUDA_WGMMA=1 asks for it.
bool has_wgmma(const Gpu& gpu) {
  const char* text = std::getenv("TANDEM_CUDA_WGMMA");
  return gpu.compute_capability == 90 && text && std::strcmp(text, "1") == 0;
}
#else
bool has_wgmma(const Gpu&) {
  return false;
}
void launch_wgmma(WgmmaArgs, const Gpu&, cudaStream_t) {}
#endif

bool wgmma_takes(const DeviceWeight& w, int64_t max_n) {
  return has_planes(w.dtype) && int64_t{2} * max_n * w.k <= UINT32_MAX;
}

void LargeProducts::multiply_by_mma(MatmulStore store, Activation activation, const MatvecTarget& target,
                                    const Input& input, const LaunchContext& context) const {
  MatmulArgs args;
  args.w = target.w;
  args.x = input.encoded.encoded[static_cast<int>(encoding_of(target.w.dtype))];
  args.bias = target.bias;
  args.residual = target.residual;
  args.y = target.y;
  args.n = static_cast<int>(input.n);
  args.store = store;
  args.activation = activation;
  launch_matmul(args, context.scratch + partial_at_, gpu_, context.stream);
}

// Of a weight that is not quantized, by the kernel for few tokens.
void LargeProducts::multiply_in_steps(const MatvecTarget& target, const Input& input,
                                      const LaunchContext& context) const {
  for (int64_t t = 0; t < input.n; t += kMaxMatvecTokens) {
    MatvecArgs args;
    args.input.x = input.encoded.x + t * k_;
    args.n = static_cast<int>(std::min<int64_t>(kMaxMatvecTokens, input.n - t));
    args.n_targets = 1;
    args.targets[0] = target;
    args.targets[0].y += t * target.w.m;
    if (target.residual) args.targets[0].residual += t * target.w.m;
    launch_matvec(args, gpu_, context.stream);
  }
}

// Rows of a weight that cuBLAS reads in one go: panels of equal size.
int64_t LargeProducts::rows_at_once(const DeviceWeight& w) const {
  const int64_t n_panels = (w.m * panel_row_bytes(w) + gpu_.panel_bytes - 1) / gpu_.panel_bytes;
  return n_panels <= 1 ? w.m : (w.m + n_panels - 1) / n_panels;
}

// In cuBLAS's columns: y^T [m, n] = W [m, k] x^T [k, n]; rows of W, x and y are its columns.
void LargeProducts::multiply_by_cublas(const MatvecTarget& target, const Input& input,
                                       const LaunchContext& context) const {
  const DeviceWeight& w = target.w;
  const int64_t n = input.n;
  const bool seeded = target.bias || target.residual;
  if (target.bias || (target.residual && target.residual != target.y)) {
    seed_kernel<<<blocks_for(n * w.m, kThreads), kThreads, 0, context.stream>>>(target.bias, target.residual,
                                                                                target.y, w.m, n * w.m);
    check_launch("seed_kernel");
  }
  const bool in_panels = !is_plain(w.dtype), as_f32 = w.dtype == DType::F32 || is_generic(w.dtype);
  const cudaDataType type = as_f32 ? CUDA_R_32F : w.dtype == DType::F16 ? CUDA_R_16F : CUDA_R_16BF;
  const void* x = as_f32 ? input.encoded.x : w.dtype == DType::F16 ? input.f16 : input.bf16;
  const int64_t panel_rows = rows_at_once(w);
  const CublasApi& api = cublas_api();
  TANDEM_CUBLAS(api.set_workspace(cublas_, context.scratch + workspace_at_, kCublasWorkspaceBytes));
  const float one = 1.0f, beta = seeded ? 1.0f : 0.0f;
  for (int64_t row0 = 0; row0 < w.m; row0 += panel_rows) {
    const int64_t rows = std::min(panel_rows, w.m - row0);
    const void* panel = w.planes.low;
    if (in_panels) {
      dequantize_rows(w, row0, rows, context.scratch + panel_at_, context.stream);
      panel = context.scratch + panel_at_;
    }
    TANDEM_CUBLAS(api.gemm_ex(cublas_, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(rows), static_cast<int>(n),
                              w.k, &one, panel, type, w.k, x, type, w.k, &beta, target.y + row0, CUDA_R_32F,
                              w.m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
}

}  // namespace tandem::cuda
