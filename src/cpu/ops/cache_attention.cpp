// Attention: every token against the cached keys and values of its sequence.
//
// An item is a tile of query rows (tokens x query heads) of one key-value head over a range of cached
// positions; the kernel returns its unnormalized sums. Where the positions of a tile are cut into chunks, a
// second phase merges the chunks in order. Over a hot cache, positions count from its first. Cost: 2 * (hd_k
// + hd_v) operations per query row and position; each tile reads the cache once.
#include "cpu/ops/cache_attention.h"

#include <cmath>
#include <limits>

#include "base/checked.h"
#include "gguf/kivi.h"

namespace tandem::cpu {

// A worker's part of the scratch.
struct CacheAttention::Local {
  int32_t* order;
  AttentionTile* tiles;
  const float** q;  // rows of the current item
  int32_t* positions;
  AttentionCall* calls;
  Partials partials;

  Local(const CacheAttention& op, ScratchPieces& pieces)
      : order(pieces.take<int32_t>(op.max_tokens_)),
        tiles(pieces.take<AttentionTile>(op.max_tokens_)),
        q(pieces.take<const float*>(op.n_listed_rows())),
        positions(pieces.take<int32_t>(op.n_listed_rows())),
        calls(pieces.take<AttentionCall>(op.n_calls_)),
        partials(pieces, op.max_rows_, op.op_.head_dim_v) {}
};

CacheAttention::CacheAttention(const CompileContext& context, const KvLayer& kv, const AttentionOp& op,
                               int64_t max_tokens)
    : op_(op),
      kernels_(context.kernels.attention),
      scale_row_(context.kernels.rows.scale),
      kv_(kv),
      parts_(op_, kernels_.max_queries),
      n_slots_(op_.n_head_kv * parts_.parts),
      max_tokens_(max_tokens),
      max_blocks_(context.tensor(op.block_table).n_cols),
      block_table_(context.address<const int32_t>(op.block_table)),
      sinks_(context, op.sinks),
      hot_from_(context.address<const int32_t>(op.hot_from)),
      n_sequences_(context.tensor(op.block_table).n_rows) {
  TANDEM_CHECK(kv_.n_head_kv == op_.n_head_kv && kv_.head_dim_k == op_.head_dim_k &&
               kv_.head_dim_v == (op_.values_in_keys ? 0 : op_.head_dim_v) && kv_.block_size > 0);
  TANDEM_CHECK((op_.part == KvPart::whole) == (op.hot_from == kNoTensor));
  TANDEM_CHECK((!is_kivi(kv_.k_dtype) && !is_kivi(kv_.v_dtype)) || kv_.block_size == kKiviGroup);
  TANDEM_CHECK(op_.key_set < kv_.n_key_sets);
  n_cols_ = op_.n_result_columns();
  max_rows_ = std::min(parts_.tokens, max_tokens_) * parts_.heads;
  if (takes_heads(parts_.heads)) n_calls_ = n_slots_;
  n_partial_rows_ =
      max_partial_rows(parts_, n_slots_, max_tokens_, max_blocks_ * kv_.block_size, n_calls_ > 0);
  ScratchPieces shared(nullptr), local(nullptr);
  Partials(shared, n_partial_rows_, op_.head_dim_v);
  Local(*this, local);
  AttentionCall call = call_of_head(0);
  call.n_queries = max_rows_;
  shared_bytes_ = shared.used();
  size_t kernel_bytes = kernels_.scratch_bytes(call);
  if (n_calls_ > 0) {
    call.n_queries = std::min(max_rows_, kTogetherRows);
    const auto n_heads = static_cast<size_t>(std::min(n_calls_, kHeadsAtOnce));
    kernel_bytes = std::max(kernel_bytes, n_heads * kernels_.scratch_bytes(call));
  }
  scratch_bytes_ = local.used() + kernel_bytes;
}

bool CacheAttention::takes_heads(int64_t n_rows) const {
  if (n_slots_ == 1 || parts_.parts > 1 || n_rows > kTogetherRows || !kernels_.takes_heads) return false;
  AttentionCall call = call_of_head(0);
  call.n_queries = n_rows;
  return kernels_.takes_heads(call);
}

void CacheAttention::run(Worker& worker, const AttentionTensors& t, std::byte* shared_base,
                         std::byte* scratch_base) const {
  ScratchPieces shared(shared_base), pieces(scratch_base);
  const Partials partials(shared, n_partial_rows_, op_.head_dim_v);
  const Local local(*this, pieces);
  std::byte* scratch = scratch_base + pieces.used();
  const size_t n = static_cast<size_t>(t.n_tokens);
  const AttentionInputs in{
      {t.positions, n}, {t.sequences, n}, n_slots_,   kv_.block_size,
      op_.window,       op_.part,         hot_from(), n_calls_ > 0 && takes_heads(t.n_tokens * parts_.heads)};
  const AttentionWork work = divide_attention(in, parts_, local.order, local.tiles);

  worker.for_each(work.n_items, [&](int64_t item) {
    const AttentionTile& tile = work.tile_of_item(item);
    if (work.together) return attend_together(t, work, tile, item, local, partials, scratch);
    const int64_t slot = (item - tile.first_item) / tile.n_chunks;
    const int64_t chunk = (item - tile.first_item) % tile.n_chunks;
    attend(t, work, tile, slot, chunk, local, tile.split() ? &partials : nullptr, scratch);
  });
  if (!work.split) return;
  for_each_row(worker, n_slots_ * t.n_tokens, 8 * parts_.heads * op_.head_dim_v,
               [&](int64_t i) { merge(t, work, i / t.n_tokens, i % t.n_tokens, partials); });
}

// Returns the first query head of a slot.
int64_t CacheAttention::first_head(int64_t slot) const {
  return slot / parts_.parts * parts_.group + slot % parts_.parts * parts_.heads;
}
int64_t CacheAttention::head_count(int64_t slot) const {
  return std::min(parts_.heads, parts_.group - slot % parts_.parts * parts_.heads);
}

AttentionCall CacheAttention::call_of_head(int64_t head_kv) const {
  const size_t k_head = row_bytes(kv_.k_dtype, kv_.head_dim_k) * static_cast<size_t>(kv_.block_size);
  const size_t v_head = row_bytes(kv_.v_dtype, kv_.head_dim_v) * static_cast<size_t>(kv_.block_size);
  AttentionCall call;
  call.k_dtype = kv_.k_dtype;
  call.v_dtype = kv_.v_dtype;
  call.head_dim_k = kv_.head_dim_k;
  call.head_dim_v = op_.head_dim_v;
  call.values_in_keys = op_.values_in_keys;
  call.block_size = kv_.block_size;
  const auto head_k = static_cast<size_t>(op_.key_set * op_.n_head_kv + head_kv);
  call.k = kv_.k + head_k * k_head;
  call.v = kv_.v + static_cast<size_t>(head_kv) * v_head;
  call.k_block_stride = static_cast<size_t>(kv_.n_head_k()) * k_head;
  call.v_block_stride = static_cast<size_t>(kv_.n_head_kv) * v_head;
  if (is_kivi(kv_.k_dtype) || is_kivi(kv_.v_dtype)) {
    const size_t k_open = row_bytes(DType::F16, kv_.head_dim_k) * static_cast<size_t>(kv_.block_size);
    const size_t v_open = row_bytes(DType::F16, kv_.head_dim_v) * static_cast<size_t>(kv_.block_size);
    call.open_of = kv_.open_of;
    call.k_open = kv_.k_open + head_k * k_open;
    call.v_open = kv_.v_open + static_cast<size_t>(head_kv) * v_open;
    call.k_open_stride = static_cast<size_t>(kv_.n_head_k()) * k_open;
    call.v_open_stride = static_cast<size_t>(kv_.n_head_kv) * v_open;
  }
  if (kv_.n_spilled > 0) {
    call.n_blocks = static_cast<int32_t>(kv_.n_blocks);
    call.k_spilled = kv_.k_spilled + head_k * k_head;
    call.v_spilled = kv_.v_spilled + static_cast<size_t>(head_kv) * v_head;
  }
  call.scale = op_.scale;
  call.softcap = op_.softcap;
  call.window = op_.window;
  return call;
}

std::span<const int32_t> CacheAttention::hot_from() const {
  return {hot_from_, op_.part == KvPart::whole ? 0 : static_cast<size_t>(n_sequences_)};
}

AttentionCall CacheAttention::call_of(const AttentionTensors& t, const AttentionWork& work,
                                      const AttentionTile& tile, int64_t slot, int64_t chunk,
                                      const Local& local, int64_t at, const Partials& to,
                                      int64_t row0) const {
  AttentionCall call = call_of_head(slot / parts_.parts);
  const int32_t* tokens = work.order.data() + tile.first;
  const int64_t head0 = first_head(slot), n_heads = head_count(slot);
  // The position of the first row of the block table.
  const int32_t origin = op_.part == KvPart::hot ? hot_from_[t.sequences[tokens[0]]] : 0;
  call.q = local.q + at;
  call.positions = local.positions + at;
  for (int64_t i = 0; i < tile.n_tokens; ++i) {
    for (int64_t h = 0; h < n_heads; ++h, ++call.n_queries) {
      local.q[at + call.n_queries] = t.q + (tokens[i] * op_.n_head + head0 + h) * op_.head_dim_k;
      local.positions[at + call.n_queries] = t.positions[tokens[i]] - origin;
    }
  }
  call.block_table = block_table_ + t.sequences[tokens[0]] * max_blocks_;
  const int64_t begin = tile.kv_begin + chunk * tile.chunk;
  call.kv_begin = begin - origin;
  call.kv_end = (tile.n_chunks == 1 ? tile.kv_end : std::min(tile.kv_end, begin + tile.chunk)) - origin;
  call.kv_then = tile.kv_end - origin - call.kv_end;  // a worker's items are one after the other
  call.acc = to.acc + row0 * op_.head_dim_v;
  call.sum = to.sum + row0;
  call.max = to.max + row0;
  return call;
}

// Into the shared partial sums if its tile is split, else directly to y.
void CacheAttention::attend(const AttentionTensors& t, const AttentionWork& work, const AttentionTile& tile,
                            int64_t slot, int64_t chunk, const Local& local, const Partials* partials,
                            std::byte* scratch) const {
  const Partials& to = partials ? *partials : local.partials;
  const AttentionCall call =
      call_of(t, work, tile, slot, chunk, local, 0, to, partials ? partial_row(tile, slot, chunk) : 0);
  kernels_.attend(call, scratch);
  if (partials) return;
  const int64_t n_heads = head_count(slot);
  for (int64_t r = 0; r < call.n_queries; ++r) {
    finish(t, work.order[tile.first + r / n_heads], first_head(slot) + r % n_heads, local.partials, r, 0, 1);
  }
}

// Such tiles are long, and so split.
void CacheAttention::attend_together(const AttentionTensors& t, const AttentionWork& work,
                                     const AttentionTile& tile, int64_t chunk, const Local& local,
                                     const Partials& partials, std::byte* scratch) const {
  for (int64_t slot = 0; slot < n_slots_; ++slot) {
    local.calls[slot] = call_of(t, work, tile, slot, chunk, local, slot * kTogetherRows, partials,
                                partial_row(tile, slot, chunk));
  }
  kernels_.attend_heads(local.calls, n_slots_, scratch);
}

int64_t CacheAttention::partial_row(const AttentionTile& tile, int64_t slot, int64_t chunk) const {
  return tile.first_partial_row + (slot * tile.n_chunks + chunk) * tile.rows(parts_);
}

// Merges all heads of a slot for the i-th token of the order, if its tile is split.
void CacheAttention::merge(const AttentionTensors& t, const AttentionWork& work, int64_t slot, int64_t i,
                           const Partials& partials) const {
  const AttentionTile& tile = work.tile_of_token(i);
  if (!tile.split()) return;
  const int64_t n_heads = head_count(slot);
  for (int64_t h = 0; h < n_heads; ++h) {
    const int64_t row = partial_row(tile, slot, 0) + (i - tile.first) * n_heads + h;
    finish(t, work.order[i], first_head(slot) + h, partials, row, tile.rows(parts_), tile.n_chunks);
  }
}

// y of a token and head from n partial results, rows row, row + stride, ...:
//   m = greatest max, y = sum of e^(max - m) * acc / (sum of e^(max - m) * sum + e^(sink - m)),
// and of a part m + ln of the divisor behind all heads.
void CacheAttention::finish(const AttentionTensors& t, int32_t token, int64_t head, const Partials& partials,
                            int64_t row, int64_t stride, int64_t n) const {
  const int64_t n_cols = op_.head_dim_v;
  float* row_of_y = t.y + token * n_cols_;
  float* y = row_of_y + head * n_cols;
  const bool has_sink = sinks_.data() != nullptr;
  float m = has_sink ? sinks_.data()[head] : -std::numeric_limits<float>::infinity();
  for (int64_t c = 0; c < n; ++c) m = std::max(m, partials.max[row + c * stride]);
  if (std::isinf(m) && m < 0) m = 0;  // no visible position, or only NaN
  const auto weight = [&](int64_t c) { return std::exp(partials.max[row + c * stride] - m); };
  float total = has_sink ? std::exp(sinks_.data()[head] - m) : 0.0f;
  for (int64_t c = 0; c < n; ++c) total += weight(c) * partials.sum[row + c * stride];
  if (op_.has_logarithms()) row_of_y[op_.n_head * n_cols + head] = m + std::log(total);
  const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
  scale_row_(partials.acc + row * n_cols, weight(0) * inverse, y, n_cols);
  for (int64_t c = 1; c < n; ++c) {
    const float factor = weight(c) * inverse;
    const float* acc = partials.acc + (row + c * stride) * n_cols;
    for (int64_t d = 0; d < n_cols; ++d) y[d] += factor * acc[d];
  }
}

}  // namespace tandem::cpu
