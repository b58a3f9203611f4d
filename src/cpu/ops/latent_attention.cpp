// latent_attention: sequences with few tokens take the absorbed form, a product, attention over the cache's rows and a
// product; the others the expanded one, attention over rows that latent_rows.h makes, a chunk of positions after the
// other. The step goes from range to range of its tokens, so that the scratch of both forms is bounded.
//
// In the expanded form an item is a head and a tile of queries over a chunk; the result over the chunks before is in y,
// unnormalized, with its sums beside. Floors: 2 * (key + value) operations a head, query and position at the pace of
// attention, and those of latent_rows.cpp. On a core of Zen 4 (AVX512, of about 118 GFLOP/s) DeepSeek-V2-Lite's 16 heads
// reach 78 to 98 in either form, so that the forms' times are as their operations: for 512 tokens at the start of a text
// 88 and 45 ms a layer, behind 4096 others 868 and 478, and for 128 behind 4096, which stay absorbed, 200 and 244. With
// AVX2 the four are 127 and 49, 931 and 563.
#include <cmath>
#include <cstring>

#include "cpu/ops/cache_attention.h"
#include "cpu/ops/head_products.h"
#include "cpu/ops/latent_rows.h"
#include "device/latent_ranges.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kAbsorbedTokens = 128;  // at a time: bounds the wide queries and results

class CompiledLatentAttention final : public CompiledOp {
 public:
  CompiledLatentAttention(const CompileContext& context, const Node& node, const LatentAttentionOp& op)
      : op_(op),
        kernels_(context.kernels.attention),
        scale_row_(context.kernels.rows.scale),
        max_tokens_(context.graph().shape.max_tokens),
        max_blocks_(context.tensor(op.block_table).n_cols),
        q_(context.address<const float>(op.q)),
        positions_(context.address<const int32_t>(op.positions)),
        sequences_(context.address<const int32_t>(op.sequences)),
        block_table_(context.address<const int32_t>(op.block_table)),
        y_(context.address<float>(node.output)),
        rows_(context, context.segment.kv[node.layer], op),
        absorbed_tokens_(std::min(kAbsorbedTokens, max_tokens_)),
        k_up_(context, op.k_up, op.key, absorbed_tokens_),
        attention_(context, context.segment.kv[node.layer], absorbed_op(op), absorbed_tokens_),
        v_up_(context, op.v_up, op.rank, absorbed_tokens_) {
    max_queries_ = std::min(kernels_.max_queries, max_tokens_);
    const Absorbed absorbed(*this, nullptr);
    const Expanded expanded(*this, nullptr);
    AttentionCall call = call_of(0, nullptr);
    call.n_queries = max_queries_;
    attend_bytes_ = kernels_.scratch_bytes(call);
    shared_bytes = std::max(absorbed.bytes + attention_.shared_bytes(), expanded.bytes);
    scratch_bytes = std::max({k_up_.scratch_bytes(), attention_.scratch_bytes(), v_up_.scratch_bytes(),
                              rows_.scratch_bytes(), Local(*this, nullptr).bytes});
  }

  void run(Worker& worker, const RunContext& context) const override {
    bool unpacked = false;
    for_each_latent_range(op_, context.shape, absorbed_tokens_, [&](const TokenRange& range) {
      if (!range.expanded) {
        // Its scratch is in the place of what was unpacked.
        unpacked = false;
        return absorb(worker, range, context);
      }
      if (!unpacked) rows_.unpack(worker, Expanded(*this, context.shared).rows, context.scratch);
      unpacked = true;
      expand(worker, range, context);
    });
  }

 private:
  // The shared scratch of each form.
  struct Absorbed {
    float* q;       // [absorbed_tokens, n_head * (rank + n_rot)]
    float* latent;  // [absorbed_tokens, n_head * rank]
    size_t bytes;

    Absorbed(const CompiledLatentAttention& op, std::byte* base) {
      ScratchPieces pieces(base);
      const int64_t n = op.absorbed_tokens_ * op.op_.n_head;
      q = pieces.take<float>(n * op.k_up_.y_cols());
      latent = pieces.take<float>(n * op.op_.rank);
      bytes = pieces.used();
    }
  };
  struct Expanded {
    float *max, *sum;  // [max_tokens, n_head], of the chunks so far
    std::byte* rows;
    size_t bytes;

    Expanded(const CompiledLatentAttention& op, std::byte* base) {
      ScratchPieces pieces(base);
      max = pieces.take<float>(op.max_tokens_ * op.op_.n_head);
      sum = pieces.take<float>(op.max_tokens_ * op.op_.n_head);
      rows = pieces.take<std::byte>(static_cast<int64_t>(op.rows_.shared_bytes()));
      bytes = pieces.used();
    }
  };
  // A worker's part of the scratch while it attends.
  struct Local {
    const float** q;
    int32_t* positions;
    float *acc, *max, *sum;  // [max_queries, value], [max_queries]
    std::byte* scratch;
    size_t bytes;

    Local(const CompiledLatentAttention& op, std::byte* base) {
      ScratchPieces pieces(base);
      q = pieces.take<const float*>(op.max_queries_);
      positions = pieces.take<int32_t>(op.max_queries_);
      acc = pieces.take<float>(op.max_queries_ * op.op_.value);
      max = pieces.take<float>(op.max_queries_);
      sum = pieces.take<float>(op.max_queries_);
      scratch = pieces.take<std::byte>(static_cast<int64_t>(op.attend_bytes_));
      bytes = pieces.used();
    }
  };
  // Positions [first, first + n) of a sequence, of [begin, end) that its queries see.
  struct Chunk {
    int64_t first, n;
    bool is_first, is_last;
  };

  static AttentionOp absorbed_op(const LatentAttentionOp& op) {
    AttentionOp attention{absorbed_attention(op)};
    attention.block_table = op.block_table;
    return attention;
  }

  void absorb(Worker& worker, const TokenRange& range, const RunContext& context) const {
    const Absorbed shared(*this, context.shared);
    k_up_.run(worker, q_ + range.first * op_.n_head * op_.key, shared.q, range.n, context.scratch);
    const AttentionTensors tensors{range.n, shared.q, positions_ + range.first, sequences_ + range.first,
                                   shared.latent};
    attention_.run(worker, tensors, context.shared + shared.bytes, context.scratch);
    v_up_.run(worker, shared.latent, y_ + range.first * op_.n_head * op_.value, range.n, context.scratch);
  }

  void expand(Worker& worker, const TokenRange& range, const RunContext& context) const {
    const Expanded shared(*this, context.shared);
    const int64_t begin = first_seen(op_, range.n_past), end = range.n_past + range.n;
    const int32_t* table = block_table_ + sequences_[range.first] * max_blocks_;
    const int64_t n_tiles = ceil_div(range.n, max_queries_);
    for (int64_t first = begin; first < end; first += rows_.chunk()) {
      const int64_t n = std::min(rows_.chunk(), end - first);
      const Chunk chunk{first, n, first == begin, first + n == end};
      rows_.make(worker, table, first, n, shared.rows, context.scratch);
      worker.for_each(n_tiles * op_.n_head, [&](int64_t item) {
        const int64_t tile = n_tiles - 1 - item / op_.n_head;  // the last see most
        const TokenRange queries{range.first + tile * max_queries_,
                                 std::min(max_queries_, range.n - tile * max_queries_)};
        attend(queries, item % op_.n_head, chunk, shared, context.scratch);
      });
    }
  }

  AttentionCall call_of(int64_t head, std::byte* rows) const {
    AttentionCall call;
    call.k_dtype = call.v_dtype = rows_.dtype();
    call.head_dim_k = op_.key;
    call.head_dim_v = op_.value;
    call.block_size = rows_.chunk();
    call.k = rows_.keys(rows, head);
    call.v = rows_.values(rows, head);
    call.scale = op_.scale;
    call.softcap = op_.softcap;
    call.window = op_.window;
    return call;
  }

  // A head of some queries over a chunk.
  void attend(const TokenRange& queries, int64_t head, const Chunk& chunk, const Expanded& shared,
              std::byte* scratch) const {
    static constexpr int32_t kOnlyBlock = 0;
    const Local local(*this, scratch);
    AttentionCall call = call_of(head, shared.rows);
    for (int64_t i = 0; i < queries.n; ++i) {
      local.q[i] = q_ + ((queries.first + i) * op_.n_head + head) * op_.key;
      local.positions[i] = static_cast<int32_t>(positions_[queries.first + i] - chunk.first);
    }
    call.block_table = &kOnlyBlock;
    call.n_queries = queries.n;
    call.q = local.q;
    call.positions = local.positions;
    call.kv_end = chunk.n;
    call.acc = local.acc;
    call.sum = local.sum;
    call.max = local.max;
    kernels_.attend(call, local.scratch);
    for (int64_t i = 0; i < queries.n; ++i) add(queries.first + i, head, i, chunk, local, shared);
  }

  // Adds the i-th result over a chunk to the one over the chunks before; after the last, y is normalized.
  void add(int64_t token, int64_t head, int64_t i, const Chunk& chunk, const Local& local,
           const Expanded& shared) const {
    const int64_t at = token * op_.n_head + head, n_cols = op_.value;
    float* y = y_ + at * n_cols;
    const float* acc = local.acc + i * n_cols;
    float &max = shared.max[at], &sum = shared.sum[at];
    if (chunk.is_first) {
      max = local.max[i];
      sum = local.sum[i];
      memcpy(y, acc, static_cast<size_t>(n_cols) * sizeof(float));
    } else if (local.sum[i] != 0.0f) {  // a chunk of which the query sees something
      const float most = std::max(max, local.max[i]);
      const float of_old = sum == 0.0f ? 0.0f : std::exp(max - most), of_new = std::exp(local.max[i] - most);
      sum = sum * of_old + local.sum[i] * of_new;
      max = most;
      for (int64_t d = 0; d < n_cols; ++d) y[d] = y[d] * of_old + acc[d] * of_new;
    }
    if (chunk.is_last) scale_row_(y, sum == 0.0f ? 0.0f : 1.0f / sum, y, n_cols);
  }

  LatentAttentionOp op_;
  AttentionKernels kernels_;
  decltype(RowKernels::scale) scale_row_;
  int64_t max_tokens_, max_blocks_;
  int64_t max_queries_ = 0;     // of a tile
  const float* q_;              // [n_tokens, n_head * key]
  const int32_t* positions_;    // [n_tokens]
  const int32_t* sequences_;    // [n_tokens]
  const int32_t* block_table_;  // [n_sequences, max_blocks]
  float* y_;                    // [n_tokens, n_head * value]
  LatentRows rows_;
  int64_t absorbed_tokens_;  // of a range
  HeadProducts k_up_;
  CacheAttention attention_;
  HeadProducts v_up_;
  size_t attend_bytes_ = 0;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const LatentAttentionOp& op) {
  return std::make_unique<CompiledLatentAttention>(context, node, op);
}

}  // namespace tandem::cpu
