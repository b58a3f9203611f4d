// Work, each line a loop over items for all workers:
//   once a step:  16 rows of a head's k_up, unpacked and transposed
//   for a chunk:  some positions, as floats and encoded for both products
//                 a head's keys, or values, of a block of positions: the product, then rows of the dtype
//
// Floor: 2 * H * rank * (key - n_rot + value) operations a position at the pace of linear; the bytes are small, the
// cache's rows once and those made once.
#include "cpu/ops/latent_rows.h"

#include <cstring>
#include <numeric>

#include "base/checked.h"
#include "cpu/ops/linear_group.h"
#include "cpu/ops/scratch_pieces.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kBlockPositions = 256;          // in a product: bounds the encoded rows
constexpr int64_t kRowsBytes = int64_t{8} << 20;  // of a chunk's keys and values: they stay in the caches
constexpr int64_t kUnpackedRows = 16;             // of k_up at a time: a cache line of a column

DType dtype_of_rows(DType cache) {
  return cache == DType::F32 || cache == DType::BF16 ? cache : DType::F16;
}

int64_t max_positions(const CompileContext& context, const KvLayer& kv, const LatentAttentionOp& op) {
  return context.tensor(op.block_table).n_cols * kv.block_size;
}

}  // namespace

struct LatentRows::Shared {
  std::byte* k_transposed;           // [n_head, key - n_rot, rank]
  float *latent, *rotated;           // [chunk, rank], [chunk, n_rot]
  std::byte *k_encoded, *v_encoded;  // by block
  std::byte *keys, *values;          // [n_head, chunk, key], [n_head, chunk, value]
  size_t bytes;

  Shared(const LatentRows& r, std::byte* base) {
    ScratchPieces pieces(base);
    const LatentAttentionParams& op = r.op_;
    const auto bytes_of = [&](DType dtype, int64_t n_rows, int64_t n_cols) {
      return pieces.take<std::byte>(n_rows * static_cast<int64_t>(row_bytes(dtype, n_cols)));
    };
    const int64_t n_blocks = ceil_div(r.chunk_, r.block_);
    k_transposed = bytes_of(r.transposed_, op.n_head * (op.key - op.n_rot), op.rank);
    latent = pieces.take<float>(r.chunk_ * op.rank);
    rotated = pieces.take<float>(r.chunk_ * op.n_rot);
    k_encoded = pieces.take<std::byte>(n_blocks * static_cast<int64_t>(r.k_encoded_bytes_));
    v_encoded = pieces.take<std::byte>(n_blocks * static_cast<int64_t>(r.v_encoded_bytes_));
    keys = bytes_of(r.dtype_, op.n_head * r.chunk_, op.key);
    values = bytes_of(r.dtype_, op.n_head * r.chunk_, op.value);
    bytes = pieces.used();
  }
};

// A worker's part of the scratch.
struct LatentRows::Local {
  float* rows;     // of unpack: [kUnpackedRows, key - n_rot]; of load: [rank + n_rot]
  float* column;   // [kUnpackedRows]
  float* product;  // [block, key - n_rot or value]
  std::byte* scratch;
  size_t bytes;

  Local(const LatentRows& r, std::byte* base) {
    ScratchPieces pieces(base);
    const LatentAttentionParams& op = r.op_;
    rows = pieces.take<float>(std::max(kUnpackedRows * (op.key - op.n_rot), op.rank + op.n_rot));
    column = pieces.take<float>(kUnpackedRows);
    product = pieces.take<float>(r.block_ * std::max(op.key - op.n_rot, op.value));
    scratch = pieces.take<std::byte>(static_cast<int64_t>(r.product_bytes_));
    bytes = pieces.used();
  }
};

LatentRows::LatentRows(const CompileContext& context, const KvLayer& kv, const LatentAttentionOp& op)
    : op_(op),
      linear_(context.kernels.linear),
      store_row_(context.kernels.attention.store_row),
      dequantize_(context.kernels.rows.dequantize),
      kv_(kv),
      k_up_(*context.tensor(op.k_up).weight),
      v_up_(*context.tensor(op.v_up).weight),
      k_data_(context.address<const std::byte>(op.k_up)),
      v_data_(context.address<const std::byte>(op.v_up)),
      dtype_(dtype_of_rows(kv.k_dtype)),
      transposed_(k_up_.dtype == DType::F16 || k_up_.dtype == DType::BF16 ? k_up_.dtype : DType::F32) {
  const auto position_bytes =
      static_cast<int64_t>(row_bytes(dtype_, op_.key) + row_bytes(dtype_, op_.value)) * op_.n_head;
  const int64_t most = max_positions(context, kv_, op);
  const int64_t n_blocks = std::max<int64_t>(1, kRowsBytes / (position_bytes * kBlockPositions));
  chunk_ = std::min(most, n_blocks * kBlockPositions);
  block_ = std::min(chunk_, kBlockPositions);
  for (int64_t n = 1; n <= block_; ++n) {
    k_encoded_bytes_ = std::max(k_encoded_bytes_, align64(linear_.encoded_bytes(transposed_, n, op_.rank)));
    v_encoded_bytes_ = std::max(v_encoded_bytes_, align64(linear_.encoded_bytes(v_up_.dtype, n, op_.rank)));
  }
  product_bytes_ = std::max(max_scratch_bytes(linear_, transposed_, block_, op_.rank),
                            max_scratch_bytes(linear_, v_up_.dtype, block_, op_.rank));
  shared_bytes_ = Shared(*this, nullptr).bytes;
  scratch_bytes_ = Local(*this, nullptr).bytes;
}

void LatentRows::unpack(Worker& worker, std::byte* shared_base, std::byte* scratch) const {
  const Shared shared(*this, shared_base);
  const Local local(*this, scratch);
  const int64_t n_strips = ceil_div(op_.rank, kUnpackedRows), m = op_.key - op_.n_rot;
  const size_t k_row = row_bytes(k_up_.dtype, m);
  worker.for_each(op_.n_head * n_strips, [&](int64_t item) {
    const int64_t head = item / n_strips, row0 = item % n_strips * kUnpackedRows;
    const int64_t n = std::min(kUnpackedRows, op_.rank - row0);
    for (int64_t r = 0; r < n; ++r) {
      dequantize_(k_up_.dtype, k_data_ + static_cast<size_t>(head * op_.rank + row0 + r) * k_row,
                  local.rows + r * m, m);
    }
    for (int64_t c = 0; c < m; ++c) {
      for (int64_t r = 0; r < n; ++r) local.column[r] = local.rows[r * m + c];
      const int64_t at = (head * m + c) * op_.rank + row0;
      store_row_(transposed_, local.column,
                 shared.k_transposed + static_cast<size_t>(at) * row_bytes(transposed_, 1), n);
    }
  });
}

LatentRows::Block LatentRows::block_at(int64_t index, int64_t n_positions) const {
  return {index, index * block_, std::min(block_, n_positions - index * block_)};
}

// Positions of a block that an item encodes.
int64_t LatentRows::encode_step(int64_t n) const {
  constexpr int64_t kLeast = 16;
  const int64_t step =
      std::lcm(linear_.encode_granularity(transposed_, n), linear_.encode_granularity(v_up_.dtype, n));
  return step * ceil_div(kLeast, step);
}

void LatentRows::make(Worker& worker, const int32_t* table, int64_t first, int64_t n, std::byte* shared_base,
                      std::byte* scratch) const {
  const Shared shared(*this, shared_base);
  const Local local(*this, scratch);
  const int64_t n_blocks = ceil_div(n, block_), n_parts = ceil_div(block_, encode_step(block_));
  worker.for_each(n_blocks * n_parts, [&](int64_t item) {
    const Block block = block_at(item / n_parts, n);
    const int64_t step = encode_step(block.n);
    // A smaller block may have smaller steps: the last part takes what is left.
    const int64_t begin = std::min(item % n_parts * step, block.n);
    const int64_t end = item % n_parts == n_parts - 1 ? block.n : std::min(begin + step, block.n);
    if (begin < end) load(block, begin, end, table, first, shared, local.rows);
  });
  worker.for_each(2 * op_.n_head * n_blocks, [&](int64_t item) {
    const Block block = block_at(item / 2 % n_blocks, n);
    const int64_t head = item / 2 / n_blocks;
    item % 2 == 0 ? make_keys(head, block, shared, local) : make_values(head, block, shared, local);
  });
}

// Positions [begin, end) of a block of the chunk that begins at `first`.
void LatentRows::load(const Block& block, int64_t begin, int64_t end, const int32_t* table, int64_t first,
                      const Shared& shared, float* row) const {
  const size_t cached = row_bytes(kv_.k_dtype, kv_.head_dim_k);
  float* latent = shared.latent + block.first * op_.rank;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t position = first + block.first + i;
    const int64_t slot = table[position / kv_.block_size] * kv_.block_size + position % kv_.block_size;
    dequantize_(kv_.k_dtype, kv_.k + static_cast<size_t>(slot) * cached, row, kv_.head_dim_k);
    memcpy(latent + i * op_.rank, row, static_cast<size_t>(op_.rank) * sizeof(float));
    memcpy(shared.rotated + (block.first + i) * op_.n_rot, row + op_.rank,
           static_cast<size_t>(op_.n_rot) * sizeof(float));
  }
  const auto block_index = static_cast<size_t>(block.index);
  linear_.encode(transposed_, latent, op_.rank, block.n, op_.rank, begin, end,
                 shared.k_encoded + block_index * k_encoded_bytes_);
  linear_.encode(v_up_.dtype, latent, op_.rank, block.n, op_.rank, begin, end,
                 shared.v_encoded + block_index * v_encoded_bytes_);
}

void LatentRows::make_keys(int64_t head, const Block& block, const Shared& shared, const Local& local) const {
  const int64_t m = op_.key - op_.n_rot;
  LinearCall call;
  call.dtype = transposed_;
  call.w = shared.k_transposed + static_cast<size_t>(head * m) * row_bytes(transposed_, op_.rank);
  call.n = block.n;
  call.m = call.ldy = m;
  call.k = op_.rank;
  call.x = shared.k_encoded + static_cast<size_t>(block.index) * k_encoded_bytes_;
  call.y = local.product;
  linear_.multiply(call, 0, m, local.scratch);
  const size_t key_bytes = row_bytes(dtype_, op_.key);
  std::byte* to = shared.keys + static_cast<size_t>(head * chunk_ + block.first) * key_bytes;
  for (int64_t i = 0; i < block.n; ++i, to += key_bytes) {
    store_row_(dtype_, local.product + i * m, to, m);
    store_row_(dtype_, shared.rotated + (block.first + i) * op_.n_rot, to + row_bytes(dtype_, m), op_.n_rot);
  }
}

void LatentRows::make_values(int64_t head, const Block& block, const Shared& shared,
                             const Local& local) const {
  LinearCall call;
  call.dtype = v_up_.dtype;
  call.w = v_data_ + static_cast<size_t>(head * op_.value) * row_bytes(v_up_.dtype, op_.rank);
  call.n = block.n;
  call.m = call.ldy = op_.value;
  call.k = op_.rank;
  call.x = shared.v_encoded + static_cast<size_t>(block.index) * v_encoded_bytes_;
  call.y = local.product;
  linear_.multiply(call, 0, op_.value, local.scratch);
  const size_t value_bytes = row_bytes(dtype_, op_.value);
  std::byte* to = shared.values + static_cast<size_t>(head * chunk_ + block.first) * value_bytes;
  store_row_(dtype_, local.product, to, block.n * op_.value);
}

const std::byte* LatentRows::keys(std::byte* shared, int64_t head) const {
  return Shared(*this, shared).keys + static_cast<size_t>(head * chunk_) * row_bytes(dtype_, op_.key);
}
const std::byte* LatentRows::values(std::byte* shared, int64_t head) const {
  return Shared(*this, shared).values + static_cast<size_t>(head * chunk_) * row_bytes(dtype_, op_.value);
}

}  // namespace tandem::cpu
