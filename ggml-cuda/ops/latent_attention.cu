// latent_attention: sequences with few tokens take the absorbed form, a product, attention over the cache's rows and a
// product; the others the expanded one, attention_prefill over rows that latent_rows.cu makes, a chunk of positions after
// the other, whose results are joined as those of the parts of a split cache. The step goes from range to range of its
// tokens, as the host knows its sequences (StepShape). Where tensor cores would round the cache (F32), or for sizes that
// are no multiples of eight, everything takes the absorbed form.
//
// Floors of the expanded form: those of attention_prefill.cu for H key-value heads, and of latent_rows.cu; joining a
// chunk moves 12 n H value bytes.
#include <optional>

#include "base/checked.h"
#include "device/latent_ranges.h"
#include "ggml-cuda/attention_fragments.h"
#include "ggml-cuda/attention_mma.cuh"
#include "ggml-cuda/cache_attention.cuh"
#include "ggml-cuda/head_products.cuh"
#include "ggml-cuda/latent_rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int64_t kAbsorbedTokens = 128;   // at a time: bounds the wide queries and results
constexpr int64_t kChunkPositions = 4096;  // so many that joining chunks takes a tenth of their time
constexpr int kMinSplit = 256;             // positions: to be worth merging
constexpr int kThreads = 128;

// Adds a chunk's result [n, H * hd + H] to that of the chunks before: y [n, H * hd] with the logarithms of its sums.
// The grid's x is the row, its y the head.
__global__ void __launch_bounds__(kThreads)
    join_chunk(const float* chunk, float* y, float* logarithms, int n_head, int head_dim, bool is_first) {
  const int64_t row = blockIdx.x, head = blockIdx.y, at = row * n_head + head;
  const float* from = chunk + row * n_head * (head_dim + 1);
  const float log_new = from[static_cast<int64_t>(n_head) * head_dim + head];
  const float log_old = is_first ? -INFINITY : logarithms[at];
  const float most = fmaxf(log_old, log_new);
  const bool none = log_old == -INFINITY && log_new == -INFINITY;  // NaN is not hidden
  const float left = none || is_first ? 0.0f : expf(log_old - most),
              right = none ? 0.0f : expf(log_new - most);
  const float inverse = none ? 0.0f : 1.0f / (left + right);
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += kThreads) {
    const float old = is_first ? 0.0f : y[at * head_dim + i];
    y[at * head_dim + i] = (left * old + right * from[head * head_dim + i]) * inverse;
  }
  __syncthreads();  // all have read the logarithm
  if (threadIdx.x == 0) logarithms[at] = none ? -INFINITY : most + logf(left + right);
}

class CompiledLatentAttention final : public CompiledOp {
 public:
  CompiledLatentAttention(const CompileContext& context, const Node& node, const LatentAttentionOp& op)
      : op_(op),
        q_(context.address<const float>(op.q)),
        positions_(context.address<const int32_t>(op.positions)),
        sequences_(context.address<const int32_t>(op.sequences)),
        y_(context.address<float>(node.output)),
        k_up_(device_weight(context, op.k_up)),
        v_up_(device_weight(context, op.v_up)),
        max_tokens_(context.graph().shape.max_tokens),
        absorbed_tokens_(std::min(kAbsorbedTokens, max_tokens_)),
        n_multiprocessors_(context.gpu.n_multiprocessors) {
    const KvLayer& kv = context.segment.kv[node.layer];
    plan_absorbed(context, kv);
    plan_expanded(context, kv);
    if (!prefill_.kernel || !makes_latent_rows(rows_)) op_.form = LatentForm::absorbed;
    if (op_.form != LatentForm::absorbed && !context.segment.addresses.empty())
      allow_shared(prefill_, shared_limit(context.gpu.compute_capability));
  }

  // The expanded form reads as many positions as there are.
  bool repeats(const StepShape& shape) const override {
    bool repeats = true;
    for_each_latent_range(op_, shape, absorbed_tokens_,
                          [&](const TokenRange& range) { repeats &= !range.expanded; });
    return repeats;
  }

  void launch(const LaunchContext& context) const override {
    bool unpacked = false;  // the scratch of the absorbed form is in the same place
    for_each_latent_range(op_, context.shape, absorbed_tokens_, [&](const TokenRange& range) {
      if (range.expanded && !unpacked) unpack(context);
      unpacked = range.expanded;
      range.expanded ? expand(range, context) : absorb(range, context);
    });
  }

 private:
  static size_t floats(int64_t n) { return sizeof(float) * static_cast<size_t>(n); }
  template <class T>
  static T* at(const LaunchContext& context, size_t offset) {
    return reinterpret_cast<T*>(context.scratch + offset);
  }

  // Its three steps use the scratch behind the wide rows one after the other.
  void plan_absorbed(const CompileContext& context, const KvLayer& kv) {
    const AttentionParams params = absorbed_attention(op_);
    AttentionOp attention{params};
    attention.block_table = op_.block_table;
    ScratchLayout wide;
    wide_q_at_ = wide.take(floats(absorbed_tokens_ * op_.n_head * params.head_dim_k));
    latent_at_ = wide.take(floats(absorbed_tokens_ * op_.n_head * params.head_dim_v));
    ScratchLayout first = wide, second = wide, third = wide;
    q_product_.emplace(context, op_.k_up, op_.key, absorbed_tokens_, first);
    attention_.emplace(context, kv, attention, absorbed_tokens_, second);
    value_product_.emplace(context, op_.v_up, op_.rank, absorbed_tokens_, third);
    scratch_bytes = std::max({first.n_bytes(), second.n_bytes(), third.n_bytes()});
  }

  void plan_expanded(const CompileContext& context, const KvLayer& kv) {
    dtype_ = kv.k_dtype == DType::BF16 ? DType::BF16 : DType::F16;
    const int64_t H = op_.n_head;
    const Tensor& table = context.tensor(op_.block_table);
    const int64_t most = table.n_cols * kv.block_size;
    chunk_ = std::min(kChunkPositions, most);
    rows_ = {.cache = {reinterpret_cast<const uint8_t*>(kv.k), kv.k_dtype, static_cast<int>(kv.head_dim_k),
                       static_cast<int>(row_bytes(kv.k_dtype, kv.head_dim_k))},
             .sequence = nullptr,
             .block_table = context.address<const int32_t>(op_.block_table),
             .block_size = static_cast<int>(kv.block_size),
             .max_blocks = static_cast<int>(table.n_cols),
             .first = 0,
             .n = 0,
             .n_head = static_cast<int>(H),
             .rank = static_cast<int>(op_.rank),
             .n_rot = static_cast<int>(op_.n_rot),
             .n_key = static_cast<int>(op_.key - op_.n_rot),
             .n_value = static_cast<int>(op_.value),
             .chunk = static_cast<int>(chunk_),
             .k_up = nullptr,
             .v_up = nullptr,
             .keys = nullptr,
             .values = nullptr};
    plan_attention(context.gpu.compute_capability);
    if (!prefill_.kernel || !makes_latent_rows(rows_)) return;
    ScratchLayout scratch;
    only_block_at_ = scratch.take(sizeof(int32_t));
    if (k_up_.dtype != dtype_) k_up_at_ = scratch.take(static_cast<size_t>(2 * H * op_.rank * rows_.n_key));
    if (v_up_.dtype != dtype_) v_up_at_ = scratch.take(static_cast<size_t>(2 * H * op_.rank * op_.value));
    keys_at_ = scratch.take(static_cast<size_t>(2 * H * chunk_ * op_.key));
    values_at_ = scratch.take(static_cast<size_t>(2 * H * chunk_ * op_.value));
    result_at_ = scratch.take(floats(max_tokens_ * H * (op_.value + 1)));
    logarithms_at_ = scratch.take(floats(max_tokens_ * H));
    int64_t partial_rows = 0;
    for (int64_t n = 1; n <= max_tokens_; ++n) {
      if (splits_of(n) > 1) partial_rows = std::max(partial_rows, n * H * splits_of(n));
    }
    partial_at_ = scratch.take(floats(partial_rows * (op_.value + 2)));
    scratch_bytes = std::max(scratch_bytes, scratch.n_bytes());
  }

  // All heads have keys and values of their own, in one block of `chunk_` rows a head.
  void plan_attention(int compute_capability) {
    call_.k = {nullptr, dtype_, static_cast<int>(op_.key), static_cast<int>(2 * op_.key)};
    call_.v = {nullptr, dtype_, static_cast<int>(op_.value), static_cast<int>(2 * op_.value)};
    call_.sinks = {nullptr, DType::F32};
    call_.n_head = call_.n_head_kv = static_cast<int>(op_.n_head);
    call_.group = 1;
    call_.block_size = static_cast<int>(chunk_);
    call_.max_blocks = 0;  // so that every sequence has the same one
    call_.window = op_.window < INT32_MAX ? static_cast<int>(op_.window) : 0;
    call_.scale = op_.scale;
    call_.softcap = op_.softcap;
    prefill_ = prefill_kernel(call_, shared_limit(compute_capability));
  }

  int splits_of(int64_t n_tokens) const {
    return split_count(n_multiprocessors_, query_tiles(n_tokens, 1) * op_.n_head, chunk_, kMinSplit);
  }

  void absorb(const TokenRange& range, const LaunchContext& context) const {
    float *wide_q = at<float>(context, wide_q_at_), *latent = at<float>(context, latent_at_);
    q_product_->launch(q_ + range.first * op_.n_head * op_.key, wide_q, range.n, context);
    attention_->launch({range.n, wide_q, positions_ + range.first, sequences_ + range.first, latent},
                       context);
    value_product_->launch(latent, y_ + range.first * op_.n_head * op_.value, range.n, context);
  }

  void unpack(const LaunchContext& context) const {
    TANDEM_CUDA(cudaMemsetAsync(context.scratch + only_block_at_, 0, sizeof(int32_t), context.stream));
    if (k_up_.dtype != dtype_)
      narrow_weight(k_up_, op_.n_head, dtype_, at<uint16_t>(context, k_up_at_), context.stream);
    if (v_up_.dtype != dtype_)
      narrow_weight(v_up_, op_.n_head, dtype_, at<uint16_t>(context, v_up_at_), context.stream);
  }

  const uint16_t* narrow(const DeviceWeight& w, const LaunchContext& context, size_t offset) const {
    return w.dtype == dtype_ ? reinterpret_cast<const uint16_t*>(w.planes.low)
                             : at<uint16_t>(context, offset);
  }

  void expand(const TokenRange& range, const LaunchContext& context) const {
    LatentRowsCall rows = rows_;
    rows.sequence = sequences_ + range.first;
    rows.k_up = narrow(k_up_, context, k_up_at_);
    rows.v_up = narrow(v_up_, context, v_up_at_);
    rows.keys = at<uint16_t>(context, keys_at_);
    rows.values = at<uint16_t>(context, values_at_);
    AttentionCall call = call_of(range, context);
    float* y = y_ + range.first * op_.n_head * op_.value;
    const int64_t begin = first_seen(op_, range.n_past), end = range.n_past + range.n;
    for (int64_t first = begin; first < end; first += chunk_) {
      rows.first = call.chunk_first = static_cast<int>(first);
      rows.n = call.chunk_size = static_cast<int>(std::min(chunk_, end - first));
      launch_latent_rows(dtype_, rows, context.stream);
      const bool is_all = first == 0 && end <= chunk_;
      call.part = is_all ? CachePart::whole : CachePart::chunk;
      call.y = is_all ? y : at<float>(context, result_at_);
      call.y_cols = static_cast<int>(op_.n_head * (op_.value + (is_all ? 0 : 1)));
      launch_prefill(prefill_, call, context.stream);
      if (call.n_splits > 1) launch_merge(call, context.stream);
      if (is_all) return;
      const dim3 grid(static_cast<unsigned>(range.n), static_cast<unsigned>(op_.n_head));
      join_chunk<<<grid, kThreads, 0, context.stream>>>(call.y, y, at<float>(context, logarithms_at_),
                                                        static_cast<int>(op_.n_head),
                                                        static_cast<int>(op_.value), first == begin);
      check_launch("join_chunk");
    }
  }

  AttentionCall call_of(const TokenRange& range, const LaunchContext& context) const {
    AttentionCall call = call_;
    call.q = q_ + range.first * op_.n_head * op_.key;
    call.positions = positions_ + range.first;
    call.sequences = sequences_ + range.first;
    call.block_table = at<int32_t>(context, only_block_at_);
    call.k.data = at<uint8_t>(context, keys_at_);
    call.v.data = at<uint8_t>(context, values_at_);
    call.n_tokens = static_cast<int>(range.n);
    call.n_splits = splits_of(range.n);
    const int64_t n_rows = range.n * op_.n_head * call.n_splits;
    call.acc = at<float>(context, partial_at_);
    call.max = call.acc + n_rows * op_.value;
    call.sum = call.max + n_rows;
    return call;
  }

  LatentAttentionOp op_;
  const float* q_;            // [n, H * key]
  const int32_t* positions_;  // [n]
  const int32_t* sequences_;  // [n]
  float* y_;                  // [n, H * value]
  DeviceWeight k_up_, v_up_;  // [H, rank, key - n_rot], [H, value, rank]
  int64_t max_tokens_, absorbed_tokens_, chunk_ = 0;
  int n_multiprocessors_;
  std::optional<HeadProducts> q_product_, value_product_;
  std::optional<CacheAttention> attention_;
  size_t wide_q_at_ = 0, latent_at_ = 0;
  DType dtype_ = DType::F16;  // of rows that are made
  LatentRowsCall rows_{};
  AttentionCall call_{};
  AttentionKernel prefill_;
  size_t only_block_at_ = 0, k_up_at_ = 0, v_up_at_ = 0, keys_at_ = 0, values_at_ = 0, result_at_ = 0,
         logarithms_at_ = 0, partial_at_ = 0;
};

}  // namespace

std::string why_not(const Graph& graph, const LatentAttentionOp& op) {
  const std::string why = why_not_weight(graph, op.k_up);
  return why.empty() ? why_not_weight(graph, op.v_up) : why;
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const LatentAttentionOp& op) {
  return std::make_unique<CompiledLatentAttention>(context, node, op);
}

}  // namespace tandem::cuda
