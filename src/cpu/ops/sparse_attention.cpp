// A token takes four loops over all workers: scores of chunks of positions; the choice of positions for each key-value head;
// exact attention over pieces of the chosen ones, whose rows are gathered first; the sum of the pieces and the mean.
//
// The floor is the bytes that sparse_read_bytes() counts, over bandwidth. With R components, K positions and heads of d columns
// of half floats that is n * (R + 4) + n / 16 * d + (K + 68) * 4 * d for each key-value head, where dense attention reads
// n * 4 * d: at 32768 positions of d = 128, R = 16 and K = 2048 an eighth.
#include "cpu/ops/sparse_attention.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/checked.h"
#include "cpu/ops/largest.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kChunk = 4096;  // positions that are scored at a time
constexpr int64_t kPiece = 256;   // chosen positions that are gathered at a time: both halves stay in the L2
constexpr float kLeastShare = 1e-6f;  // of the weight, that the chosen positions are taken to have

// Calls fn(first block in the pool, blocks before, blocks) for runs of blocks that are neighbours there.
template <class Fn>
void for_each_run(const int32_t* blocks, int64_t n, Fn&& fn) {
  for (int64_t first = 0; first < n;) {
    int64_t end = first + 1;
    while (end < n && blocks[end] == blocks[end - 1] + 1) ++end;
    fn(int64_t{blocks[first]}, first, end - first);
    first = end;
  }
}

}  // namespace

// What workers pass to each other, of one token.
struct SparseAttention::Shared {
  int64_t *read_scoring, *read_means,
      *read_rows;       // bytes; [n_head_kv, n_chunks], [n_head_kv], [n_head_kv, n_pieces]
  float* scores;        // [n_head, ld], then exponentials
  float* chunk_max;     // [n_head, n_chunks]
  int32_t* listed;      // [n_head_kv, list_room] positions to attend to, ascending
  float* share;         // [n_head] of the weight that these have
  float* mean;          // [n_head_kv, head_dim_v]
  float* acc;           // [n_head, n_pieces, head_dim_v]
  float *sum, *max;     // [n_head, n_pieces]
  std::byte* dense;     // of dense attention
  int64_t* dense_read;  // [1] bytes
  int64_t n_counts, ld;

  Shared(const SparseAttention& op, ScratchPieces& pieces) {
    const int64_t n_head = op.op_.n_head, n_kv = op.op_.n_head_kv;
    n_counts = n_kv * (op.n_chunks_ + 1 + op.n_pieces_) + 1;
    ld = static_cast<int64_t>(align_up(static_cast<size_t>(op.max_positions_), 64));
    read_scoring = pieces.take<int64_t>(n_counts);
    read_means = read_scoring + n_kv * op.n_chunks_;
    read_rows = read_means + n_kv;
    dense_read = read_rows + n_kv * op.n_pieces_;
    scores = pieces.take<float>(n_head * ld);
    chunk_max = pieces.take<float>(n_head * op.n_chunks_);
    listed = pieces.take<int32_t>(n_kv * op.list_room());
    share = pieces.take<float>(n_head);
    mean = pieces.take<float>(n_kv * op.op_.head_dim_v);
    acc = pieces.take<float>(n_head * op.n_pieces_ * op.op_.head_dim_v);
    sum = pieces.take<float>(n_head * op.n_pieces_);
    max = pieces.take<float>(n_head * op.n_pieces_);
    dense = pieces.take<std::byte>(static_cast<int64_t>(op.dense_.shared_bytes()));
  }
};

struct SparseAttention::Local {
  float* magnitudes;  // [head_dim_k]
  int32_t* chosen;    // [head_dim_k], the first n_components of them
  float* q;           // [group, n_components]
  float* total;       // [ld]
  float* inverse;     // [group]
  LargestScratch largest;
  const float** queries;
  int32_t* positions;
  std::byte *k, *v;  // [kPiece] rows
  std::byte* kernel;
  std::byte* dense;

  Local(const SparseAttention& op, ScratchPieces& pieces)
      : largest(op.max_positions_, op.op_.sparse.n_positions, pieces) {
    magnitudes = pieces.take<float>(op.op_.head_dim_k);
    chosen = pieces.take<int32_t>(op.op_.head_dim_k);
    q = pieces.take<float>(op.group_ * op.n_components_);
    total = pieces.take<float>(op.max_positions_);
    inverse = pieces.take<float>(op.group_);
    queries = pieces.take<const float*>(op.group_);
    positions = pieces.take<int32_t>(op.group_);
    k = pieces.take<std::byte>(kPiece * static_cast<int64_t>(op.k_row_bytes_));
    v = pieces.take<std::byte>(kPiece * static_cast<int64_t>(op.v_row_bytes_));
    kernel = pieces.take<std::byte>(static_cast<int64_t>(op.kernel_bytes_));
    dense = pieces.take<std::byte>(static_cast<int64_t>(op.dense_.scratch_bytes()));
  }
};

SparseAttention::SparseAttention(const CompileContext& context, const KvLayer& kv, const AttentionOp& op,
                                 int64_t max_tokens)
    : dense_(context, kv, op, max_tokens),
      op_(op),
      kernels_(context.kernels.attention),
      sparse_(context.kernels.sparse),
      kv_(kv),
      index_(kv),
      sinks_(context, op.sinks),
      block_table_(context.address<const int32_t>(op.block_table)),
      hot_from_(context.address<const int32_t>(op.hot_from)),
      max_blocks_(context.tensor(op.block_table).n_cols),
      max_positions_(max_blocks_ * kv.block_size),
      group_(op.n_head / op.n_head_kv),
      n_components_(std::min(op.sparse.n_components, op.head_dim_k)),
      chunk_(static_cast<int64_t>(align_up(kChunk, static_cast<size_t>(kv.block_size)))),
      n_chunks_(ceil_div(max_positions_, chunk_)),
      k_row_bytes_(row_bytes(kv.k_dtype, kv.head_dim_k)),
      v_row_bytes_(row_bytes(kv.v_dtype, kv.head_dim_v)) {
  TANDEM_CHECK(op_.part != KvPart::hot && op_.window == 0 && !op_.values_in_keys && kv_.n_key_sets == 1 &&
               !op_.gives_logarithms);
  n_pieces_ = ceil_div(list_room(), kPiece);
  AttentionCall call;
  call.k_dtype = kv_.k_dtype;
  call.v_dtype = kv_.v_dtype;
  call.head_dim_k = op_.head_dim_k;
  call.head_dim_v = op_.head_dim_v;
  call.block_size = kPiece;
  call.n_queries = std::min(group_, kernels_.max_queries);
  kernel_bytes_ = kernels_.scratch_bytes(call);
  ScratchPieces shared(nullptr), local(nullptr);
  Shared(*this, shared);
  Local(*this, local);
  shared_bytes_ = shared.used();
  scratch_bytes_ = local.used();
}

SparseAttention::Token SparseAttention::token(const AttentionTensors& t, int64_t index) const {
  const int32_t sequence = t.sequences[index], position = t.positions[index];
  int64_t n = int64_t{position} + 1;
  if (op_.part == KvPart::cold) n = std::min<int64_t>(n, hot_from_[sequence]);
  return {index, n, position, t.q + index * op_.n_head * op_.head_dim_k,
          block_table_ + sequence * max_blocks_};
}

void SparseAttention::run(Worker& worker, const AttentionTensors& t, std::byte* shared_base,
                          std::byte* scratch_base) const {
  ScratchPieces shared_pieces(shared_base), local_pieces(scratch_base);
  const Shared shared(*this, shared_pieces);
  const Local local(*this, local_pieces);
  const auto is_sparse = [&](const Token& token) {
    return reads_sparsely(op_.sparse, kv_.block_size, token.n_positions, token.position);
  };
  int64_t n_sparse = 0, n_dense_read = 0;
  for (int64_t i = 0; i < t.n_tokens; ++i) {
    const Token each = token(t, i);
    if (is_sparse(each)) {
      ++n_sparse;
    } else {
      n_dense_read += each.n_positions * op_.n_head_kv * static_cast<int64_t>(k_row_bytes_ + v_row_bytes_);
    }
  }
  worker.for_each(1, [&](int64_t) {
    std::fill_n(shared.read_scoring, shared.n_counts, 0);
    *shared.dense_read = n_dense_read;
  });
  if (n_sparse == 0) return dense_.run(worker, t, shared.dense, local.dense);
  for (int64_t i = 0; i < t.n_tokens; ++i) {
    const Token each = token(t, i);
    if (is_sparse(each)) {
      run_sparse(worker, t, each, shared, local);
      continue;
    }
    const int64_t n_cols = op_.n_head * (op_.head_dim_v + (op_.part == KvPart::whole ? 0 : 1));
    dense_.run(worker, {1, each.q, t.positions + i, t.sequences + i, t.y + i * n_cols}, shared.dense,
               local.dense);
  }
}

int64_t SparseAttention::bytes_read(std::byte* shared_base) const {
  ScratchPieces pieces(shared_base);
  const Shared shared(*this, pieces);
  return std::accumulate(shared.read_scoring, shared.read_scoring + shared.n_counts, int64_t{0});
}

void SparseAttention::run_sparse(Worker& worker, const AttentionTensors& t, const Token& token,
                                 const Shared& shared, const Local& local) const {
  const int64_t n_chunks = ceil_div(token.n_positions, chunk_);
  const int64_t n_pieces = ceil_div(n_listed(token), kPiece);
  worker.for_each(op_.n_head_kv * n_chunks,
                  [&](int64_t i) { score(token, i / n_chunks, i % n_chunks, shared, local); });
  worker.for_each(op_.n_head_kv, [&](int64_t head_kv) {
    choose_positions(token, head_kv, shared, local);
    mean_values(token, head_kv, shared);
  });
  worker.for_each(op_.n_head_kv * n_pieces,
                  [&](int64_t i) { attend(token, i / n_pieces, i % n_pieces, shared, local); });
  for_each_row(worker, op_.n_head, n_pieces * op_.head_dim_v,
               [&](int64_t head) { finish(t, token, head, shared); });
}

// The columns of the group's queries with the largest sums of magnitudes, and the queries' values there, scaled.
void SparseAttention::choose_components(const Token& token, int64_t head_kv, const Local& local) const {
  const int64_t n_cols = op_.head_dim_k;
  const float* q = token.q + head_kv * group_ * n_cols;
  std::fill_n(local.magnitudes, n_cols, 0.0f);
  for (int64_t h = 0; h < group_; ++h) {
    for (int64_t c = 0; c < n_cols; ++c) local.magnitudes[c] += std::fabs(q[h * n_cols + c]);
  }
  std::iota(local.chosen, local.chosen + n_cols, 0);
  const auto larger = [&](int32_t a, int32_t b) {
    const float x = local.magnitudes[a], y = local.magnitudes[b];
    return x != y ? x > y : a < b;
  };
  if (n_components_ < n_cols)
    std::nth_element(local.chosen, local.chosen + n_components_, local.chosen + n_cols, larger);
  std::sort(local.chosen, local.chosen + n_components_);  // in the order of memory
  for (int64_t h = 0; h < group_; ++h) {
    const float* from = q + h * n_cols;
    float of_all = 0, of_chosen = 0;
    for (int64_t c = 0; c < n_cols; ++c) of_all += std::fabs(from[c]);
    for (int64_t i = 0; i < n_components_; ++i) of_chosen += std::fabs(from[local.chosen[i]]);
    const float factor = of_chosen > 0 ? op_.scale / std::sqrt(of_chosen / of_all) : op_.scale;
    for (int64_t i = 0; i < n_components_; ++i)
      local.q[h * n_components_ + i] = from[local.chosen[i]] * factor;
  }
}

void SparseAttention::score(const Token& token, int64_t head_kv, int64_t chunk, const Shared& shared,
                            const Local& local) const {
  choose_components(token, head_kv, local);
  const int64_t begin = chunk * chunk_, end = std::min(token.n_positions, begin + chunk_);
  const int64_t first_block = begin / kv_.block_size, n_blocks = ceil_div(end - begin, kv_.block_size);
  ComponentScores call;
  call.stride = index_.stride;
  call.chosen = local.chosen;
  call.n_chosen = n_components_;
  call.q = local.q;
  call.n_heads = group_;
  call.ld = shared.ld;
  float* scores = shared.scores + head_kv * group_ * shared.ld;
  int64_t n_read = 0;
  for_each_run(token.blocks + first_block, n_blocks, [&](int64_t block, int64_t before, int64_t n) {
    const int64_t slot = block * kv_.block_size, position = begin + before * kv_.block_size;
    call.components = index_.component(head_kv, 0) + slot;
    call.scales = index_.scales_of(head_kv) + slot;
    call.n = std::min(n * kv_.block_size, end - position);
    call.scores = scores + position;
    sparse_.component_scores(call);
    n_read += call.n * (n_components_ + static_cast<int64_t>(sizeof(float)));
  });
  shared.read_scoring[head_kv * n_chunks_ + chunk] += n_read;
  for (int64_t h = 0; h < group_; ++h) {
    float* s = scores + h * shared.ld + begin;
    if (op_.softcap > 0) {
      for (int64_t i = 0; i < end - begin; ++i) s[i] = op_.softcap * std::tanh(s[i] / op_.softcap);
    }
    shared.chunk_max[(head_kv * group_ + h) * n_chunks_ + chunk] = sparse_.max_of(s, end - begin);
  }
}

void SparseAttention::choose_positions(const Token& token, int64_t head_kv, const Shared& shared,
                                       const Local& local) const {
  const int64_t n = token.n_positions, n_chunks = ceil_div(n, chunk_), head0 = head_kv * group_;
  const AlwaysRead always = always_read(op_.sparse, n, token.position);
  int32_t* listed = shared.listed + head_kv * list_room();
  float* rows = shared.scores + head0 * shared.ld;
  for (int64_t h = 0; h < group_; ++h) {
    const float max = sparse_.max_of(shared.chunk_max + (head0 + h) * n_chunks_, n_chunks);
    local.inverse[h] = 1.0f / sparse_.exponentials(rows + h * shared.ld, max, n);
  }
  if (group_ == 1) {
    std::copy_n(rows, n, local.total);
  } else {
    std::fill_n(local.total, n, 0.0f);
    for (int64_t h = 0; h < group_; ++h)
      sparse_.add_scaled(local.total, rows + h * shared.ld, local.inverse[h], n);
  }
  std::fill_n(local.total, always.n_first, -1.0f);
  std::fill_n(local.total + n - always.n_last, always.n_last, -1.0f);
  std::iota(listed, listed + always.n_first, 0);
  int64_t n_found = always.n_first;
  n_found += largest_of(sparse_, local.total, n, op_.sparse.n_positions, listed + n_found, local.largest);
  std::iota(listed + n_found, listed + n_found + always.n_last, static_cast<int32_t>(n - always.n_last));
  n_found += always.n_last;
  for (; n_found < n_listed(token); ++n_found) listed[n_found] = 0;  // only of NaN
  for (int64_t h = 0; h < group_; ++h) {
    float sum = 0;
    for (int64_t i = 0; i < n_found; ++i) sum += rows[h * shared.ld + listed[i]];
    shared.share[head0 + h] = std::clamp(sum * local.inverse[h], kLeastShare, 1.0f);
  }
}

void SparseAttention::mean_values(const Token& token, int64_t head_kv, const Shared& shared) const {
  const int64_t n_blocks = token.n_positions / kv_.block_size;
  float* mean = shared.mean + head_kv * op_.head_dim_v;
  std::fill_n(mean, op_.head_dim_v, 0.0f);
  for_each_run(token.blocks, n_blocks, [&](int64_t block, int64_t, int64_t n) {
    sparse_.add_rows(index_.mean(head_kv, block), n, op_.head_dim_v, mean);
    shared.read_means[head_kv] += n * op_.head_dim_v * static_cast<int64_t>(sizeof(fp16_t));
  });
  for (int64_t c = 0; c < op_.head_dim_v; ++c) mean[c] /= static_cast<float>(n_blocks);
}

// Copies the rows of some positions next to each other.
void SparseAttention::gather(const Token& token, int64_t head_kv, std::span<const int32_t> positions,
                             const Local& local) const {
  size_t rows[kPiece];
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t block = token.blocks[positions[i] / kv_.block_size];
    rows[i] = static_cast<size_t>((block * kv_.n_head_kv + head_kv) * kv_.block_size +
                                  positions[i] % kv_.block_size);
  }
  const auto n = static_cast<int64_t>(positions.size());
  sparse_.gather_rows({kv_.k, rows, n, k_row_bytes_, local.k});
  sparse_.gather_rows({kv_.v, rows, n, v_row_bytes_, local.v});
}

void SparseAttention::attend(const Token& token, int64_t head_kv, int64_t piece, const Shared& shared,
                             const Local& local) const {
  const int64_t first = piece * kPiece, n = std::min(kPiece, n_listed(token) - first);
  gather(token, head_kv, {shared.listed + head_kv * list_room() + first, static_cast<size_t>(n)}, local);
  shared.read_rows[head_kv * n_pieces_ + piece] += n * static_cast<int64_t>(k_row_bytes_ + v_row_bytes_);
  const int32_t block = 0;
  AttentionCall call;
  call.k_dtype = kv_.k_dtype;
  call.v_dtype = kv_.v_dtype;
  call.head_dim_k = op_.head_dim_k;
  call.head_dim_v = op_.head_dim_v;
  call.block_size = kPiece;
  call.k = local.k;
  call.v = local.v;
  call.block_table = &block;
  call.scale = op_.scale;
  call.softcap = op_.softcap;
  call.q = local.queries;
  call.positions = local.positions;
  call.kv_end = n;
  for (int64_t h = 0; h < group_; h += call.n_queries) {
    call.n_queries = std::min(kernels_.max_queries, group_ - h);
    const int64_t head = head_kv * group_ + h;
    // A piece's results of the heads are neighbours; finish() reads them piece by piece.
    const int64_t result = (head_kv * n_pieces_ + piece) * group_ + h;
    for (int64_t i = 0; i < call.n_queries; ++i) {
      local.queries[i] = token.q + (head + i) * op_.head_dim_k;
      local.positions[i] = static_cast<int32_t>(kPiece);
    }
    call.acc = shared.acc + result * op_.head_dim_v;
    call.sum = shared.sum + result;
    call.max = shared.max + result;
    kernels_.attend(call, local.kernel);
  }
}

// With m the greatest max, S = sum of e^(max - m) * sum over the pieces, and Z = S / share, what all positions are taken to
// add up to:
//   y = (sum of e^(max - m) * acc + (1 - share) * Z * mean) / (Z + e^(sink - m)),
// and of a part m + ln of the divisor behind all heads.
void SparseAttention::finish(const AttentionTensors& t, const Token& token, int64_t head,
                             const Shared& shared) const {
  const int64_t n_cols = op_.head_dim_v, n_pieces = ceil_div(n_listed(token), kPiece);
  const int64_t head_kv = head / group_, first = head_kv * n_pieces_ * group_ + head % group_;
  const bool is_part = op_.part != KvPart::whole;
  float* row = t.y + token.index * op_.n_head * (n_cols + (is_part ? 1 : 0));
  float* y = row + head * n_cols;
  float m = -std::numeric_limits<float>::infinity();
  for (int64_t p = 0; p < n_pieces; ++p) m = std::max(m, shared.max[first + p * group_]);
  if (sinks_.data()) m = std::max(m, sinks_.data()[head]);
  if (std::isinf(m) && m < 0) m = 0;  // only NaN
  float sum = 0;
  std::fill_n(y, n_cols, 0.0f);
  for (int64_t p = 0; p < n_pieces; ++p) {
    const int64_t result = first + p * group_;
    const float weight = std::exp(shared.max[result] - m);
    sum += weight * shared.sum[result];
    sparse_.add_scaled(y, shared.acc + result * n_cols, weight, n_cols);
  }
  const float share = shared.share[head], all = sum / share;
  sparse_.add_scaled(y, shared.mean + head_kv * n_cols, (1 - share) * all, n_cols);
  const float divisor = all + (sinks_.data() ? std::exp(sinks_.data()[head] - m) : 0.0f);
  for (int64_t c = 0; c < n_cols; ++c) y[c] /= divisor;
  if (is_part) row[op_.n_head * n_cols + head] = m + std::log(divisor);
}

}  // namespace tandem::cpu
