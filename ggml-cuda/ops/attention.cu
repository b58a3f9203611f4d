// attention: chooses the kernels of a step (attention_call.cuh), and holds the scratch of partial results.
//
// Parts of a split cache use the same kernels: positions count from the part's first, and the kernel that
// writes y stores the logarithm of the sum after it.
//
// Steps of few tokens, and all steps over caches that tensor cores would round (F32), use the decode or the packed
// kernel and are merged; other steps use the prefill kernel, also in splits if its tiles are too few for the GPU.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "ggml-cuda/attention_fragments.h"
#include "ggml-cuda/cache_attention.cuh"

namespace tandem::cuda {
namespace {

CachePool pool_of(Half half, const std::byte* data, const std::byte* open, DType dtype, int64_t head_dim) {
  return {reinterpret_cast<const uint8_t*>(data),       dtype, static_cast<int>(head_dim),
          static_cast<int>(row_bytes(dtype, head_dim)), half,  reinterpret_cast<const uint8_t*>(open)};
}

CachePart part_of(const AttentionOp& op) {
  switch (op.part) {
    case KvPart::whole: return op.gives_logarithms ? CachePart::merged : CachePart::whole;
    case KvPart::cold: return CachePart::cold;
    case KvPart::hot: return CachePart::hot;
  }
  return CachePart::whole;
}

// Floats of one split of one token and head: acc, max, sum.
int64_t partial_floats(const AttentionCall& call) {
  return call.v.head_dim + 2;
}

// Packed rows take fewer instructions for any number of heads (FLOORS.md). The environment's TANDEM_CUDA_ATTENTION=floats asks for
// attention_decode, to measure both.
bool packed_wanted() {
  const char* text = std::getenv("TANDEM_CUDA_ATTENTION");
  return text == nullptr || std::strcmp(text, "floats") != 0;
}

constexpr int64_t kFewTokens = 4;
constexpr int64_t kWideTiles = 2;        // the least number of whole tiles of twice the rows, which fewer would leave half empty
constexpr int kPrefillMinSplit = 256;  // positions: several tiles, to be worth merging

class CompiledAttention final : public CompiledOp {
 public:
  CompiledAttention(const CompileContext& context, const Node& node, const AttentionOp& op,
                    ScratchLayout scratch = {})
      : attention_(context, context.segment.kv[node.layer], op, context.graph().shape.max_tokens, scratch),
        tensors_{0, context.address<const float>(op.q), context.address<const int32_t>(op.positions),
                 context.address<const int32_t>(op.sequences), context.address<float>(node.output)} {
    scratch_bytes = scratch.n_bytes();
    if (attention_.makes_bytes(context.graph().shape.max_tokens)) maker_.tensor = node.output;
  }

  BytesMaker* bytes_maker() override { return &maker_; }

  void launch(const LaunchContext& context) const override {
    AttentionTensors tensors = tensors_;
    tensors.n_tokens = context.shape.n_tokens;
    tensors.made = maker_.bytes.made(context, tensors.n_tokens);
    attention_.launch(tensors, context);
  }

 private:
  CacheAttention attention_;
  AttentionTensors tensors_;  // of the whole step
  BytesMaker maker_;
};

}  // namespace

CacheAttention::CacheAttention(const CompileContext& context, const KvLayer& kv, const AttentionOp& op,
                               int64_t max_tokens, ScratchLayout& scratch)
    : n_multiprocessors_(context.gpu.n_multiprocessors) {
  TANDEM_CHECK(kv.n_head_kv == op.n_head_kv && kv.head_dim_k == op.head_dim_k &&
               kv.head_dim_v == (op.values_in_keys ? 0 : op.head_dim_v) && kv.block_size > 0 &&
               op.n_head % op.n_head_kv == 0 && op.key_set < kv.n_key_sets);
  TANDEM_CHECK(kv.n_key_sets == 1 || !op.values_in_keys);
  call_.block_table = context.address<const int32_t>(op.block_table);
  call_.hot_from = context.address<const int32_t>(op.hot_from);
  call_.sinks = plain_values(context, op.sinks);
  call_.k = pool_of(Half::keys, kv.k, kv.k_open, kv.k_dtype, kv.head_dim_k);
  call_.v = pool_of(Half::values, kv.v, kv.v_open, kv.v_dtype, kv.head_dim_v);
  const bool is_grouped = is_kivi(kv.k_dtype) || is_kivi(kv.v_dtype);
  TANDEM_CHECK(!is_grouped || (kv.block_size == kKiviGroup && !op.values_in_keys));
  if (is_grouped) call_.open_of = reinterpret_cast<const int32_t*>(kv.open_table);
  if (op.values_in_keys) {  // the rows of the keys, of which fewer columns are read
    call_.v = call_.k;
    call_.v.head_dim = static_cast<int>(op.head_dim_v);
  }
  call_.k.first_head = static_cast<int>(op.key_set * op.n_head_kv);
  call_.k.n_more_heads = static_cast<int>(kv.n_head_k() - kv.n_head_kv);
  call_.part = part_of(op);
  call_.n_head = static_cast<int>(op.n_head);
  call_.n_head_kv = static_cast<int>(op.n_head_kv);
  call_.group = static_cast<int>(op.n_head / op.n_head_kv);
  call_.y_cols = static_cast<int>(op.n_result_columns());
  call_.block_size = static_cast<int>(kv.block_size);
  const Tensor& table = context.tensor(op.block_table);
  call_.max_blocks = static_cast<int>(table.n_cols);
  call_.window = op.window < std::numeric_limits<int>::max() ? static_cast<int>(op.window) : 0;
  call_.scale = op.scale;
  call_.softcap = op.softcap;
  max_positions_ = table.n_cols * kv.block_size;
  n_few_tokens_ = std::max(kFewTokens, table.n_rows);
  choose_kernels(context, op.values_in_keys);
  size_t most = 0;
  for (int64_t n = 1; n <= max_tokens; ++n) {
    const Way way = way_of(n);
    if (is_partial(way)) most = std::max(most, partial_bytes(n, way.n_splits));
  }
  partial_at_ = scratch.take(most);
}

// Every way of a step of few tokens must end with the merge.
bool CacheAttention::makes_bytes(int64_t max_tokens) const {
  for (int64_t n = 1; n <= std::min(kMaxHandedTokens, max_tokens); ++n) {
    if (!is_partial(way_of(n))) return false;
  }
  return makes_merged_bytes(call_);
}

void CacheAttention::launch(const AttentionTensors& tensors, const LaunchContext& context) const {
  const int64_t n = tensors.n_tokens;
  if (n == 0) return;
  const Way way = way_of(n);
  AttentionCall call = call_of(tensors, way.n_splits, context);
  const bool is_packed = way.kind == Kind::packed;
  const bool itself = (is_packed || way.kind == Kind::decode) && merges_itself(is_packed ? packed_ : decode_, call, kCounters);
  call.counters = itself ? context.counters : nullptr;
  switch (way.kind) {
    case Kind::decode: launch_decode(decode_, call, context.stream); break;
    case Kind::packed: launch_packed(packed_, call, context.stream); break;
    case Kind::prefill: launch_prefill(way.is_wide ? wide_prefill_ : prefill_, call, context.stream); break;
    case Kind::latent: launch_latent(latent_, call, context.stream); break;
    case Kind::simple: launch_simple(call, context.stream); break;
  }
  if (is_partial(way) && !itself) launch_merge(call, context.stream);
}

AttentionCall CacheAttention::call_of(const AttentionTensors& tensors, int n_splits, const LaunchContext& context) const {
  AttentionCall call = call_;
  call.q = tensors.q;
  call.positions = tensors.positions;
  call.sequences = tensors.sequences;
  call.y = tensors.y;
  call.made = tensors.made;
  call.n_tokens = static_cast<int>(tensors.n_tokens);
  call.n_splits = n_splits;
  const int64_t n_rows = tensors.n_tokens * call.n_head * call.n_splits;
  call.acc = reinterpret_cast<float*>(context.scratch + partial_at_);
  call.max = call.acc + n_rows * call.v.head_dim;
  call.sum = call.max + n_rows;
  return call;
}

CacheAttention::Way CacheAttention::way_of(int64_t n_tokens) const {
  const bool few = n_tokens <= n_few_tokens_;
  if (few && is_packed_) {  // of tokens of one sequence; more blocks, of shorter texts, if they are of several
    const int64_t n_slots = ceil_div(n_tokens, packed_tokens(call_.group)) * call_.n_head_kv * ceil_div(call_.group, kPackedRows);
    return {Kind::packed, split_count(n_multiprocessors_, n_slots, max_positions_, kSplitUnit, packed_.n_resident)};
  }
  if (decode_.kernel && (few || !prefill_.kernel)) return decode_way(n_tokens);
  if (prefill_.kernel) {
    const bool is_wide = wide_prefill_.kernel && n_tokens * call_.group >= kWideTiles * wide_prefill_.query_rows;
    const int rows = is_wide ? wide_prefill_.query_rows : prefill_.query_rows;
    const int64_t n_slots = query_tiles(n_tokens, call_.group, rows) * call_.n_head_kv;
    return {Kind::prefill, split_count(n_multiprocessors_, n_slots, max_positions_, kPrefillMinSplit), is_wide};
  }
  if (latent_.kernel) {
    const int64_t n_slots = n_tokens * call_.n_head_kv * ceil_div(call_.group, latent_.heads);
    return {Kind::latent, split_count(n_multiprocessors_, n_slots, max_positions_, kPrefillMinSplit)};
  }
  return {Kind::simple, 1};
}

CacheAttention::Way CacheAttention::decode_way(int64_t n_tokens) const {
  const int64_t n_slots = n_tokens * call_.n_head_kv * ceil_div(call_.group, decode_.heads);
  return {Kind::decode, split_count(n_multiprocessors_, n_slots, max_positions_, kSplitUnit)};
}

bool CacheAttention::is_partial(const Way& way) {
  return way.kind == Kind::decode || way.kind == Kind::packed || way.kind == Kind::latent ||
         (way.kind == Kind::prefill && way.n_splits > 1);
}

void CacheAttention::choose_kernels(const CompileContext& context, bool values_in_keys) {
  const size_t limit = shared_limit(context.gpu.compute_capability);
  decode_ = decode_kernel(call_, limit);
  packed_ = packed_kernel(call_, limit);
  is_packed_ = packed_.kernel && (!decode_.kernel || packed_wanted());
  prefill_ = prefill_kernel(call_, limit);
  wide_prefill_ = wide_prefill_kernel(call_, limit);
  if (values_in_keys && !decode_.kernel && !prefill_.kernel) latent_ = latent_kernel(call_, limit);
  if (context.segment.addresses.empty()) return;  // no GPU present
  for (const AttentionKernel* kernel : {&decode_, &packed_, &prefill_, &wide_prefill_, &latent_}) allow_shared(*kernel, limit);
}

void allow_shared(const AttentionKernel& kernel, size_t limit) {
  if (kernel.kernel) allow_shared(reinterpret_cast<const void*>(kernel.kernel), limit);
}

size_t CacheAttention::partial_bytes(int64_t n_tokens, int n_splits) const {
  return static_cast<size_t>(n_tokens * call_.n_head * n_splits * partial_floats(call_)) * sizeof(float);
}

std::string why_not(const Graph& graph, const AttentionOp& op) {
  return why_not_plain(graph, op.sinks, "attention");
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const AttentionOp& op) {
  return std::make_unique<CompiledAttention>(context, node, op);
}

}  // namespace tandem::cuda
